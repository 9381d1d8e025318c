// SPDX-License-Identifier: Apache-2.0
// Encodings of float32 for the wire. Only kernels.inc.h includes this file, inside the namespace of one instruction set.
//
// Plain loops without branches over single values, which the compiler makes vectors of: here elements keep their
// order in memory while their size changes, and compilers know each processor's instructions for that.

HPN_INLINE std::uint32_t bits_of(float value) {
    std::uint32_t u;
    __builtin_memcpy(&u, &value, sizeof u);
    return u;
}

HPN_INLINE float float_of(std::uint32_t u) {
    float value;
    __builtin_memcpy(&value, &u, sizeof value);
    return value;
}

// See one_nan in kernels_vec.inc.h.
HPN_INLINE float one_nan(float value) { return value != value ? float_of(0x7fc00000U) : value; }

HPN_INLINE std::uint16_t bf16_code(float value) {
    const std::uint32_t u = bits_of(one_nan(value));
    return static_cast<std::uint16_t>((u + (((u >> 16) & 1U) + 0x7fffU)) >> 16);
}

HPN_INLINE float bf16_value(std::uint16_t code) { return float_of(static_cast<std::uint32_t>(code) << 16); }

void bf16_encode(std::uint16_t* __restrict dst, const float* __restrict src, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) dst[i] = bf16_code(src[i]);
}

void bf16_decode(float* __restrict dst, const std::uint16_t* __restrict src, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) dst[i] = bf16_value(src[i]);
}

void bf16_accumulate(float* __restrict dst, const std::uint16_t* __restrict src, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) dst[i] = one_nan(dst[i] + bf16_value(src[i]));
}

// --- e4m3 ------------------------------------------------------------------------------------------------------------

constexpr std::size_t block_values = e4m3_block_values;
constexpr float largest_e4m3 = 448.0F;

// Magnitudes compare as the unsigned numbers that their bits are.
HPN_INLINE float e4m3_scale(const float* __restrict src, std::size_t count) {
    std::uint32_t largest = 0;
    for (std::size_t i = 0; i < count; ++i) {
        const std::uint32_t magnitude = bits_of(src[i]) & 0x7fffffffU;
        const std::uint32_t finite = magnitude < 0x7f800000U ? magnitude : 0U;
        largest = largest < finite ? finite : largest;
    }
    const float scale = float_of(largest) / largest_e4m3;
    return scale > 0.0F ? scale : 1.0F;  // also where the quotient of a subnormal is 0
}

HPN_INLINE std::uint8_t e4m3_code(float value, float scale) {
    const bool finite = (bits_of(value) & 0x7fffffffU) < 0x7f800000U;
    const std::uint32_t u = bits_of(value / scale);
    const std::uint32_t sign = (u >> 24) & 0x80U;
    std::uint32_t magnitude = u & 0x7fffffffU;
    const std::uint32_t limit = 0x43e00000U;  // 448
    magnitude = magnitude < limit ? magnitude : limit;
    const std::uint32_t normal = (magnitude - (120U << 23) + 0x7ffffU + ((magnitude >> 20) & 1U)) >> 20;
    // Adding 2^14, whose last place is the format's smallest step 2^-9, makes the processor round at that place.
    const std::uint32_t subnormal = bits_of(float_of(magnitude) + 0x1p14F) - 0x46800000U;
    const std::uint32_t code = magnitude < (121U << 23) ? subnormal : normal;
    return static_cast<std::uint8_t>(finite ? sign | code : 0x7fU);
}

HPN_INLINE float e4m3_value(std::uint8_t code) {
    const std::uint32_t sign = static_cast<std::uint32_t>(code & 0x80U) << 24;
    const std::uint32_t magnitude = code & 0x7fU;
    const std::uint32_t normal = (magnitude << 20) + (120U << 23);
    const std::uint32_t subnormal = bits_of(static_cast<float>(static_cast<std::int32_t>(magnitude)) * 0x1p-9F);
    const std::uint32_t finite = magnitude < 8U ? subnormal : normal;
    return float_of(sign | (magnitude == 0x7fU ? 0x7fc00000U : finite));
}

void e4m3_encode_block(std::uint8_t* __restrict dst, const float* __restrict src, std::size_t count) {
    const float scale = e4m3_scale(src, count);
    std::memcpy(dst, &scale, sizeof scale);
    for (std::size_t i = 0; i < count; ++i) dst[sizeof scale + i] = e4m3_code(src[i], scale);
}

void e4m3_encode(std::uint8_t* dst, const float* src, std::size_t count) {
    for (; count >= block_values; count -= block_values, src += block_values, dst += e4m3_block_bytes) {
        e4m3_encode_block(dst, src, block_values);
    }
    if (count > 0) e4m3_encode_block(dst, src, count);
}

template <bool accumulate>
HPN_INLINE void e4m3_decode_block(float* __restrict dst, const std::uint8_t* __restrict src, std::size_t count) {
    float scale;
    std::memcpy(&scale, src, sizeof scale);
    for (std::size_t i = 0; i < count; ++i) {
        const float value = e4m3_value(src[sizeof scale + i]) * scale;
        dst[i] = one_nan(accumulate ? dst[i] + value : value);
    }
}

template <bool accumulate>
HPN_INLINE void e4m3_decode_all(float* dst, const std::uint8_t* src, std::size_t count) {
    for (; count >= block_values; count -= block_values, src += e4m3_block_bytes, dst += block_values) {
        e4m3_decode_block<accumulate>(dst, src, block_values);
    }
    if (count > 0) e4m3_decode_block<accumulate>(dst, src, count);
}

void e4m3_decode(float* dst, const std::uint8_t* src, std::size_t count) { e4m3_decode_all<false>(dst, src, count); }

void e4m3_accumulate(float* dst, const std::uint8_t* src, std::size_t count) { e4m3_decode_all<true>(dst, src, count); }
