// SPDX-License-Identifier: Apache-2.0
// Encodings of float32 for the wire. Only kernels.inc.h includes this, inside the namespace of one instruction set.
//
// Here elements keep their order in memory while their size changes. That is left to plain loops without branches,
// which compilers make vectors of with each processor's instructions for it; arithmetic is on vectors where such loops
// would be too much for the compiler.

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

// --- e4m3: always whole blocks, a shorter last one through padding ---------------------------------------------------

constexpr std::size_t block_values = e4m3_block_values;
constexpr std::size_t lanes = width / sizeof(float);
constexpr std::uint32_t infinity_bits = 0x7f800000U;
constexpr std::uint32_t largest_e4m3_bits = 0x43e00000U;  // 448

// Magnitudes compare as the integers that their bits are.
HPN_INLINE float e4m3_scale(const char* src) {
    I32 largest = {};
    for (std::size_t i = 0; i < block_values; i += lanes) {
        const U32 magnitude = load_vector<U32>(src + i * sizeof(float)) & 0x7fffffffU;
        const I32 finite = bits<I32>(magnitude) & below(magnitude, infinity_bits);
        largest = largest < finite ? finite : largest;
    }
    std::int32_t found = 0;
    for (std::size_t i = 0; i < lanes; ++i) found = found < largest[i] ? largest[i] : found;
    const float scale = float_of(static_cast<std::uint32_t>(found)) / float_of(largest_e4m3_bits);
    return scale > 0.0F ? scale : 1.0F;  // also where the quotient of a subnormal is 0
}

HPN_INLINE U32 e4m3_codes(F32 values, F32 scale) {
    const U32 finite = bits<U32>(below(bits<U32>(values) & 0x7fffffffU, infinity_bits));
    const U32 u = bits<U32>(values / scale);
    const U32 sign = (u >> 24) & 0x80U;
    const U32 exact = u & 0x7fffffffU;
    const U32 magnitude = below(exact, largest_e4m3_bits) ? exact : broadcast(largest_e4m3_bits);
    const U32 normal = (magnitude - (120U << 23) + 0x7ffffU + ((magnitude >> 20) & 1U)) >> 20;
    // Adding 2^14, whose last place is the format's smallest step 2^-9, makes the processor round at that place.
    const U32 subnormal = bits<U32>(bits<F32>(magnitude) + 0x1p14F) - 0x46800000U;
    const U32 code = sign | (below(magnitude, 121U << 23) ? subnormal : normal);
    return (code & finite) | (0x7fU & ~finite);
}

HPN_INLINE F32 e4m3_values(U32 codes) {
    const U32 sign = (codes & 0x80U) << 24;
    const U32 magnitude = codes & 0x7fU;
    const U32 normal = (magnitude << 20) + (120U << 23);
    const U32 subnormal = bits<U32>(__builtin_convertvector(bits<I32>(magnitude), F32) * 0x1p-9F);
    const U32 finite = below(magnitude, 8U) ? subnormal : normal;
    return bits<F32>(sign | (below(magnitude, 0x7fU) ? finite : broadcast<std::uint32_t>(0x7fc00000U)));
}

HPN_INLINE void e4m3_encode_block(std::uint8_t* dst, const char* src) {
    const float scale = e4m3_scale(src);
    const F32 scales = broadcast(scale);
    std::uint32_t codes[block_values];
    for (std::size_t i = 0; i < block_values; i += lanes) {
        const U32 v = e4m3_codes(load_vector<F32>(src + i * sizeof(float)), scales);
        __builtin_memcpy(codes + i, &v, sizeof v);
    }
    std::memcpy(dst, &scale, sizeof scale);
    for (std::size_t i = 0; i < block_values; ++i) dst[sizeof scale + i] = static_cast<std::uint8_t>(codes[i]);
}

template <bool accumulate>
HPN_INLINE void e4m3_decode_block(char* dst, const std::uint8_t* src) {
    float scale;
    std::memcpy(&scale, src, sizeof scale);
    const F32 scales = broadcast(scale);
    std::uint32_t codes[block_values];
    for (std::size_t i = 0; i < block_values; ++i) codes[i] = src[sizeof scale + i];
    for (std::size_t i = 0; i < block_values; i += lanes) {
        U32 v;
        __builtin_memcpy(&v, codes + i, sizeof v);
        const F32 values = e4m3_values(v) * scales;
        char* const to = dst + i * sizeof(float);
        store_vector(to, one_nan(accumulate ? load_vector<F32>(to) + values : values));
    }
}

void e4m3_encode(std::uint8_t* dst, const float* src, std::size_t count) {
    for (; count >= block_values; count -= block_values, src += block_values, dst += e4m3_block_bytes) {
        e4m3_encode_block(dst, reinterpret_cast<const char*>(src));
    }
    if (count == 0) return;
    float padded[block_values] = {};
    std::uint8_t encoded[e4m3_block_bytes];
    std::memcpy(padded, src, count * sizeof(float));
    e4m3_encode_block(encoded, reinterpret_cast<const char*>(padded));
    std::memcpy(dst, encoded, sizeof(float) + count);
}

template <bool accumulate>
HPN_INLINE void e4m3_decode_all(float* dst, const std::uint8_t* src, std::size_t count) {
    for (; count >= block_values; count -= block_values, src += e4m3_block_bytes, dst += block_values) {
        e4m3_decode_block<accumulate>(reinterpret_cast<char*>(dst), src);
    }
    if (count == 0) return;
    float padded[block_values] = {};
    std::uint8_t encoded[e4m3_block_bytes] = {};
    std::memcpy(encoded, src, sizeof(float) + count);
    if (accumulate) std::memcpy(padded, dst, count * sizeof(float));
    e4m3_decode_block<accumulate>(reinterpret_cast<char*>(padded), encoded);
    std::memcpy(dst, padded, count * sizeof(float));
}

void e4m3_decode(float* dst, const std::uint8_t* src, std::size_t count) { e4m3_decode_all<false>(dst, src, count); }

void e4m3_accumulate(float* dst, const std::uint8_t* src, std::size_t count) { e4m3_decode_all<true>(dst, src, count); }
