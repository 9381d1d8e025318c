// SPDX-License-Identifier: Apache-2.0
// The kernels for AVX-512. Compile this file, and no other, with -mavx512f -mavx512bw -mavx512vl -mavx512dq.
#if defined(__x86_64__)
#if !defined(__AVX512F__) || !defined(__AVX512BW__) || !defined(__AVX512VL__) || !defined(__AVX512DQ__)
#error "compile this file with -mavx512f -mavx512bw -mavx512vl -mavx512dq"
#endif
#define HPN_ISA avx512
#define HPN_WIDTH 64
#define HPN_HARDWARE_F16 1
#include "kernels.inc.h"
#endif
