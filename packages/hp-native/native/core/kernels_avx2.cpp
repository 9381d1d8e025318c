// SPDX-License-Identifier: Apache-2.0
// The kernels for AVX2 with F16C. Compile this file, and no other, with -mavx2 -mf16c.
#if defined(__x86_64__)
#if !defined(__AVX2__) || !defined(__F16C__)
#error "compile this file with -mavx2 -mf16c"
#endif
#define HPN_ISA avx2
#define HPN_WIDTH 32
#define HPN_HARDWARE_F16 1
#include "kernels.inc.h"
#endif
