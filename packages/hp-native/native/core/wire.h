// SPDX-License-Identifier: Apache-2.0
// Low precision on the wire: float32 values encoded in 2 or about 1 bytes each, decoded, or decoded and added.
//
// The same bits on every instruction set. Sources and destinations do not overlap.
//
// bf16: two bytes a value, rounded to nearest even; NaN becomes the quiet NaN 0x7fc0.
//
// e4m3: blocks of 128 values, each block a float32 scale followed by its values' codes (the last block is as long as
// there are values). Scale = (largest finite magnitude of the block) / 448, or 1 where that is 0. Code = value / scale
// rounded to nearest even to 1 sign, 4 exponent and 3 fraction bits, saturating at 448 (OCP "E4M3", "e4m3fn": no
// infinities). NaN and infinities become the code of NaN, 0x7f: the format has no infinity, and one that came out as
// the block's largest finite value would hide an overflow. Decoded = code * scale in float32.
// A stream may be cut wherever a block ends: a part that begins at a multiple of 128 values encodes to the same bytes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hpn {

void bf16_encode(std::uint16_t* dst, const float* src, std::size_t count) noexcept;
void bf16_decode(float* dst, const std::uint16_t* src, std::size_t count) noexcept;
/// dst[i] += decoded src[i], in float32.
void bf16_accumulate(float* dst, const std::uint16_t* src, std::size_t count) noexcept;

inline constexpr std::size_t e4m3_block_values = 128;
inline constexpr std::size_t e4m3_block_bytes = sizeof(float) + e4m3_block_values;

/// Bytes that `count` encoded values take.
constexpr std::size_t e4m3_bytes(std::size_t count) noexcept {
    const std::size_t num_blocks = count / e4m3_block_values + (count % e4m3_block_values != 0 ? 1 : 0);
    return count + num_blocks * sizeof(float);
}

/// count: values. dst or src: e4m3_bytes(count) bytes, of any alignment.
void e4m3_encode(std::uint8_t* dst, const float* src, std::size_t count) noexcept;
void e4m3_decode(float* dst, const std::uint8_t* src, std::size_t count) noexcept;
/// dst[i] += decoded src[i], in float32.
void e4m3_accumulate(float* dst, const std::uint8_t* src, std::size_t count) noexcept;

}  // namespace hpn
