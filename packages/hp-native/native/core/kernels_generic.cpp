// SPDX-License-Identifier: Apache-2.0
// The kernels for any processor of the architecture (on x86-64: SSE2), in 16-byte vectors.
#define HPN_ISA generic
#define HPN_WIDTH 16
#include "kernels.inc.h"
