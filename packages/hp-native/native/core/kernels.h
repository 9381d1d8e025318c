// SPDX-License-Identifier: Apache-2.0
// The table of functions that each kernels_*.cpp fills for its instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

#include "isa.h"
#include "reduce.h"

namespace hpn {

struct Kernels {
    ReduceFn reduce[num_dtypes][num_ops];  // null where the op is not defined
    void (*stream_copy)(void* dst, const void* src, std::size_t bytes);
    void (*bf16_encode)(std::uint16_t* dst, const float* src, std::size_t count);
    void (*bf16_decode)(float* dst, const std::uint16_t* src, std::size_t count);
    void (*bf16_accumulate)(float* dst, const std::uint16_t* src, std::size_t count);
    void (*e4m3_encode)(std::uint8_t* dst, const float* src, std::size_t count);
    void (*e4m3_decode)(float* dst, const std::uint8_t* src, std::size_t count);
    void (*e4m3_accumulate)(float* dst, const std::uint8_t* src, std::size_t count);
};

/// The kernels of one instruction set, or null where this processor cannot run them. For tests.
const Kernels* kernels_of(Isa isa) noexcept;

/// The kernels of chosen_isa().
const Kernels& kernels() noexcept;

namespace generic { extern const Kernels table; }
namespace avx2 { extern const Kernels table; }
namespace avx512 { extern const Kernels table; }
namespace neon { extern const Kernels table; }

}  // namespace hpn
