// SPDX-License-Identifier: Apache-2.0
// Elementwise reduction over several sources and plain copies: what the shared-memory collectives compute with.
//
// Every function here is a pure function of its operands: the same bits for any alignment, count, chunking and
// instruction set. Accumulation is in the order of the sources; nothing is contracted into fused operations.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hpn {

/// Element types; the values are part of the C ABI.
enum class Dtype : std::uint8_t { u8 = 0, i8, i16, i32, i64, f16, bf16, f32, f64, boolean };
inline constexpr int num_dtypes = 10;

/// Reductions; the values are part of the C ABI.
enum class Op : std::uint8_t { sum = 0, avg, min, max, product, band, bor, bxor };
inline constexpr int num_ops = 8;

/// Bytes of one element; 0 for a value outside the enumeration.
std::size_t size_of(Dtype dtype) noexcept;

/// Which stores of a reduction go past the caches: of big results that nobody reads soon, or that others read.
enum class Stream : std::uint8_t { none = 0, second, both };

/// dst[i] = sources[0][i] op sources[1][i] op … for i < count.
///
/// dst2: a second destination that gets the same, or null. dst and dst2 may each be equal to a source; otherwise no
/// two ranges overlap. num_sources >= 1. Pointers are aligned to the element's size. stream: which of the destinations
/// is stored past the caches; all stores are visible to other processors in program order at return.
///
/// - ints wrap around; sum, product, min, max and the bit operations.
/// - f16 and bf16 sum, avg and product accumulate in float32 over all sources and round once (to nearest even).
/// - avg = sum / num_sources, a division (in float32 for f16 and bf16).
/// - min and max propagate NaN; of -0 and +0 the one from the earlier source is kept.
/// - a NaN in a result is always the positive quiet NaN without payload (0x7fc00000 and its like), whichever went in.
/// - boolean: bytes, non-zero is true, results are 0 or 1. sum, max, bor = or; product, min, band = and; bxor = parity.
using ReduceFn = void (*)(void* dst, void* dst2, const void* const* sources, int num_sources, std::size_t count,
                          Stream stream);

/// The function for a dtype and op, or null where the op is not defined (avg of ints and booleans, bit operations of
/// floats).
ReduceFn reduce_fn(Dtype dtype, Op op) noexcept;

/// Copies bytes from src to dst, which do not overlap (or are equal). stream: stores go past the caches, as in ReduceFn.
void copy(void* dst, const void* src, std::size_t bytes, bool stream) noexcept;

/// The instruction set chosen at first use: "avx512", "avx2", "neon" or "generic". The environment variable
/// HP_NATIVE_ISA forces a lower one than the processor has; a name that it does not have is ignored.
const char* isa() noexcept;

}  // namespace hpn
