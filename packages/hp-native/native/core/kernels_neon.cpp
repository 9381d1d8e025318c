// SPDX-License-Identifier: Apache-2.0
// The kernels for 64-bit Arm, whose base architecture has NEON: no flags needed.
#if defined(__aarch64__)
#define HPN_ISA neon
#define HPN_WIDTH 16
#define HPN_HARDWARE_F16 1
#include "kernels.inc.h"
#endif
