// SPDX-License-Identifier: Apache-2.0
// The kernels, compiled once by each kernels_*.cpp, which sets HPN_ISA (the namespace), HPN_WIDTH (bytes of a vector)
// and HPN_HARDWARE_F16 (float16 conversions in hardware).
//
// These files are compiled with flags that not every processor can run. Whatever a linker may merge with another
// file's copy (inline functions and templates of shared headers) must not be made here: everything below is in an
// unnamed namespace, and of the standard library only types, constants and C functions are used.

#if defined(__FAST_MATH__)
#error "results must be the IEEE ones: compile without -ffast-math, with -ffp-contract=off"
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "kernels.h"
#include "wire.h"

namespace hpn::HPN_ISA {
namespace {

#include "kernels_vec.inc.h"

#include "kernels_copy.inc.h"

#include "kernels_reduce.inc.h"

#include "kernels_wire.inc.h"

}  // namespace

// In the order of Dtype; within a row in the order of Op.
constinit const Kernels table = {
    {
        HPN_INTEGER_ROW(std::uint8_t, std::uint8_t),
        HPN_INTEGER_ROW(std::int8_t, std::uint8_t),
        HPN_INTEGER_ROW(std::int16_t, std::uint16_t),
        HPN_INTEGER_ROW(std::int32_t, std::uint32_t),
        HPN_INTEGER_ROW(std::int64_t, std::uint64_t),
        HPN_FLOAT_ROW(Float16),
        HPN_FLOAT_ROW(Bfloat16),
        HPN_FLOAT_ROW(Floating<float>),
        HPN_FLOAT_ROW(Floating<double>),
        HPN_BOOLEAN_ROW,
    },
    stream_copy,
    bf16_encode,
    bf16_decode,
    bf16_accumulate,
    e4m3_encode,
    e4m3_decode,
    e4m3_accumulate,
};

}  // namespace hpn::HPN_ISA
