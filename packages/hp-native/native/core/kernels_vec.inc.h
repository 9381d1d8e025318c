// SPDX-License-Identifier: Apache-2.0
// Vectors of HPN_WIDTH bytes and how the element types are loaded into them and stored from them.
// Only kernels.inc.h includes this file, inside the namespace of one instruction set.
//
// The vectors are the compiler's own (GCC and Clang): one source for every instruction set, and each operation is
// the IEEE one on each lane, so lanes and widths cannot change a result. Intrinsics are left for what the language has
// no word for: float16 conversions and non-temporal stores.

#define HPN_INLINE static inline __attribute__((always_inline))

constexpr std::size_t width = HPN_WIDTH;

template <class T>
struct VecOf {
    typedef T type __attribute__((vector_size(HPN_WIDTH)));
};
template <class T>
using Vec = typename VecOf<T>::type;

// The element type of a vector.
template <class V>
using Lane = std::remove_reference_t<decltype(V{}[0])>;

using F32 = Vec<float>;
using F64 = Vec<double>;
using U32 = Vec<std::uint32_t>;
using I32 = Vec<std::int32_t>;

template <class V>
HPN_INLINE V load_vector(const char* from) {
    V v;
    __builtin_memcpy(&v, from, sizeof v);
    return v;
}

template <class V>
HPN_INLINE void store_vector(char* to, V v) {
    __builtin_memcpy(to, &v, sizeof v);
}

// Same bits, other lanes.
template <class To, class From>
HPN_INLINE To bits(From v) {
    static_assert(sizeof(To) == sizeof(From));
    return reinterpret_cast<To>(v);
}

template <class T>
HPN_INLINE Vec<T> broadcast(T value) {
    return Vec<T>{} + value;
}

// The one NaN that results have. Which operand's payload survives an addition, and the sign of a NaN that an
// operation makes, differ between processors and even between two compilations of one expression.
HPN_INLINE F32 one_nan(F32 v) { return v != v ? bits<F32>(broadcast<std::uint32_t>(0x7fc00000U)) : v; }
HPN_INLINE F64 one_nan(F64 v) {
    return v != v ? bits<F64>(broadcast<std::uint64_t>(0x7ff8000000000000ULL)) : v;
}

// Lanewise a < b as all ones or zero, for magnitudes (bits of floats without their sign): these are below 2^31, so
// that the signed comparison, the only one that SSE and AVX2 have, will do.
HPN_INLINE I32 below(U32 a, std::uint32_t b) { return bits<I32>(a) < static_cast<std::int32_t>(b); }

// --- float16 -------------------------------------------------------------------------------------------------------

#if !defined(HPN_HARDWARE_F16)

// Lanes hold a float16 in their low half (the high half is zero). Subnormals go through an integer conversion, which
// is exact and does not depend on the processor's treatment of subnormal operands.
HPN_INLINE F32 widen_f16(U32 h) {
    const U32 sign = (h & 0x8000U) << 16;
    const U32 magnitude = h & 0x7fffU;
    const U32 normal = (magnitude << 13) + (112U << 23);
    const U32 subnormal = bits<U32>(__builtin_convertvector(bits<I32>(magnitude), F32) * 0x1p-24F);
    const U32 special = (magnitude << 13) | 0x7f800000U;
    const U32 finite = below(magnitude, 0x400U) ? subnormal : normal;
    return bits<F32>(sign | (below(magnitude, 0x7c00U) ? finite : special));
}

// To nearest even. The operand is not NaN or is the one NaN.
HPN_INLINE U32 narrow_f16(F32 v) {
    const U32 u = bits<U32>(v);
    const U32 sign = (u >> 16) & 0x8000U;
    const U32 magnitude = u & 0x7fffffffU;
    const U32 normal = (magnitude - (112U << 23) + 0xfffU + ((magnitude >> 13) & 1U)) >> 13;
    // Adding 0.5, whose last place is float16's smallest step, makes the processor round at that place.
    const U32 subnormal = bits<U32>(bits<F32>(magnitude) + 0.5F) - 0x3f000000U;
    const U32 infinity = broadcast<std::uint32_t>(0x7c00U);
    const U32 special = below(magnitude, 0x7f800001U) ? infinity : broadcast<std::uint32_t>(0x7e00U);
    const U32 finite = below(magnitude, 113U << 23) ? subnormal : normal;
    return sign | (below(magnitude, 143U << 23) ? finite : special);
}

#endif

// --- formats: how `width` bytes of elements become `parts` vectors and back ------------------------------------------

// Elements computed with as they are.
template <class T>
struct Plain {
    using Value = Vec<T>;
    static constexpr std::size_t element_bytes = sizeof(T);
    static constexpr int parts = 1;
    HPN_INLINE void load(const char* from, Value (&to)[1]) { to[0] = load_vector<Value>(from); }
    HPN_INLINE void store(char* to, const Value (&from)[1]) { store_vector(to, from[0]); }
};

// The same, with NaN made one NaN in results.
template <class T>
struct Floating : Plain<T> {
    using Value = Vec<T>;
    HPN_INLINE void store(char* to, const Value (&from)[1]) { store_vector(to, one_nan(from[0])); }
};

// Bytes as truth values: lanes are all ones or zero.
struct Boolean {
    using Value = Vec<signed char>;
    static constexpr std::size_t element_bytes = 1;
    static constexpr int parts = 1;
    HPN_INLINE void load(const char* from, Value (&to)[1]) { to[0] = load_vector<Value>(from) != 0; }
    HPN_INLINE void store(char* to, const Value (&from)[1]) { store_vector(to, from[0] & 1); }
};

// A float32 keeps its upper half. Pairs of elements are taken apart as even and odd ones by shifts and masks, which
// is cheaper than shuffles into memory order; results are put together the same way.
struct Bfloat16 {
    using Value = F32;
    static constexpr std::size_t element_bytes = 2;
    static constexpr int parts = 2;
    static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);
    HPN_INLINE void load(const char* from, Value (&to)[2]) {
        const U32 pairs = load_vector<U32>(from);
        to[0] = bits<F32>(pairs << 16);
        to[1] = bits<F32>(pairs & 0xffff0000U);
    }
    HPN_INLINE void store(char* to, const Value (&from)[2]) {
        const U32 even = rounded(one_nan(from[0]));
        const U32 odd = rounded(one_nan(from[1]));
        store_vector(to, (even >> 16) | (odd & 0xffff0000U));
    }
    // To nearest even in the upper half. The one NaN has zeros below, so that it stays as it is.
    HPN_INLINE U32 rounded(F32 v) {
        const U32 u = bits<U32>(v);
        return u + (((u >> 16) & 1U) + 0x7fffU);
    }
};

struct Float16 {
    using Value = F32;
    static constexpr std::size_t element_bytes = 2;
    static constexpr int parts = 2;
#if HPN_WIDTH == 64 && defined(HPN_HARDWARE_F16)
    HPN_INLINE void load(const char* from, Value (&to)[2]) {
        to[0] = _mm512_maskz_cvtph_ps(0xffffU, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
        to[1] = _mm512_maskz_cvtph_ps(0xffffU, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 32)));
    }
    HPN_INLINE void store(char* to, const Value (&from)[2]) {
        for (int i = 0; i < 2; ++i) {
            // With a full mask, for it is the form whose header has no variable that GCC 12 warns of.
            constexpr int nearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
            const __m256i halves = _mm512_maskz_cvtps_ph(0xffffU, one_nan(from[i]), nearest);
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + 32 * i), halves);
        }
    }
#elif HPN_WIDTH == 32 && defined(HPN_HARDWARE_F16)
    HPN_INLINE void load(const char* from, Value (&to)[2]) {
        to[0] = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
        to[1] = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 16)));
    }
    HPN_INLINE void store(char* to, const Value (&from)[2]) {
        for (int i = 0; i < 2; ++i) {
            const __m128i halves = _mm256_cvtps_ph(one_nan(from[i]), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
            _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 16 * i), halves);
        }
    }
#elif defined(HPN_HARDWARE_F16)
    HPN_INLINE void load(const char* from, Value (&to)[2]) {
        const float16x8_t halves = vreinterpretq_f16_u16(load_vector<uint16x8_t>(from));
        to[0] = bits<F32>(vcvt_f32_f16(vget_low_f16(halves)));
        to[1] = bits<F32>(vcvt_high_f32_f16(halves));
    }
    HPN_INLINE void store(char* to, const Value (&from)[2]) {
        const float16x4_t low = vcvt_f16_f32(bits<float32x4_t>(one_nan(from[0])));
        store_vector(to, vreinterpretq_u16_f16(vcvt_high_f16_f32(low, bits<float32x4_t>(one_nan(from[1])))));
    }
#else
    HPN_INLINE void load(const char* from, Value (&to)[2]) {
        const U32 pairs = load_vector<U32>(from);
        to[0] = widen_f16(pairs & 0xffffU);
        to[1] = widen_f16(pairs >> 16);
    }
    HPN_INLINE void store(char* to, const Value (&from)[2]) {
        store_vector(to, narrow_f16(one_nan(from[0])) | (narrow_f16(one_nan(from[1])) << 16));
    }
#endif
};

// --- non-temporal stores -------------------------------------------------------------------------------------------

// `to` is aligned to `width`.
template <class V>
HPN_INLINE void stream_vector(char* to, V v) {
#if defined(__x86_64__) && HPN_WIDTH == 64
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to), reinterpret_cast<__m512i>(v));
#elif defined(__x86_64__) && HPN_WIDTH == 32
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to), reinterpret_cast<__m256i>(v));
#elif defined(__x86_64__)
    _mm_stream_si128(reinterpret_cast<__m128i*>(to), reinterpret_cast<__m128i>(v));
#else
    store_vector(to, v);  // on Arm the processor itself detects long runs of stores
#endif
}

// Non-temporal stores are not ordered with later ones, not even by a release store, until this.
HPN_INLINE void stream_end() {
#if defined(__x86_64__)
    _mm_sfence();
#endif
}
