// SPDX-License-Identifier: Apache-2.0
#include "hp_native.h"

#ifndef HPN_BUILD_INFO
#error "HPN_BUILD_INFO is set by cmake/parts.cmake"
#endif

uint32_t hpn_abi_version(void) {
    return HPN_ABI_VERSION;
}

const char* hpn_build_info(void) {
    return HPN_BUILD_INFO;
}
