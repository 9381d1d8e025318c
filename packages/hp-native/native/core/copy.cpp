// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "kernels.h"
#include "reduce.h"

namespace hpn {

void copy(void* dst, const void* src, std::size_t bytes, bool stream) noexcept {
    if (dst == src || bytes == 0) return;
    if (stream) {
        kernels().stream_copy(dst, src, bytes);
    } else {
        std::memcpy(dst, src, bytes);
    }
}

}  // namespace hpn
