// SPDX-License-Identifier: Apache-2.0
// The reduction loops. Only kernels.inc.h includes this file, inside the namespace of one instruction set.

// --- what is done to each lane ---------------------------------------------------------------------------------------

struct Unscaled {
    explicit Unscaled(int) {}
    template <class V>
    __attribute__((always_inline)) V finish(V v) const {
        return v;
    }
};

struct Sum : Unscaled {
    using Unscaled::Unscaled;
    template <class V>
    HPN_INLINE V combine(V a, V b) {
        return a + b;
    }
};

struct Product : Unscaled {
    using Unscaled::Unscaled;
    template <class V>
    HPN_INLINE V combine(V a, V b) {
        return a * b;
    }
};

// b is taken if it is smaller or NaN; a NaN in a stays, since comparisons with it are false.
struct Min : Unscaled {
    using Unscaled::Unscaled;
    template <class V>
    HPN_INLINE V combine(V a, V b) {
        if constexpr (std::is_floating_point_v<Lane<V>>) {
            const V smaller = b < a ? b : a;
            return b != b ? b : smaller;
        } else {
            return b < a ? b : a;
        }
    }
};

struct Max : Unscaled {
    using Unscaled::Unscaled;
    template <class V>
    HPN_INLINE V combine(V a, V b) {
        if constexpr (std::is_floating_point_v<Lane<V>>) {
            const V larger = b > a ? b : a;
            return b != b ? b : larger;
        } else {
            return b > a ? b : a;
        }
    }
};

struct And : Unscaled {
    using Unscaled::Unscaled;
    template <class V>
    HPN_INLINE V combine(V a, V b) {
        return a & b;
    }
};

struct Or : Unscaled {
    using Unscaled::Unscaled;
    template <class V>
    HPN_INLINE V combine(V a, V b) {
        return a | b;
    }
};

struct Xor : Unscaled {
    using Unscaled::Unscaled;
    template <class V>
    HPN_INLINE V combine(V a, V b) {
        return a ^ b;
    }
};

template <class T>
struct Average : Sum {
    explicit Average(int num_sources) : Sum(num_sources), divisor(broadcast(static_cast<T>(num_sources))) {}
    __attribute__((always_inline)) Vec<T> finish(Vec<T> v) const { return v / divisor; }
    Vec<T> divisor;
};

// For a power of two the reciprocal is exact: multiplying gives the very bits of dividing, several times faster.
template <class T>
struct AverageOfPowerOfTwo : Sum {
    explicit AverageOfPowerOfTwo(int num_sources)
        : Sum(num_sources), factor(broadcast(static_cast<T>(1) / static_cast<T>(num_sources))) {}
    __attribute__((always_inline)) Vec<T> finish(Vec<T> v) const { return v * factor; }
    Vec<T> factor;
};

// --- loops -----------------------------------------------------------------------------------------------------------

// One position of `units` vectors' worth of bytes over all sources, accumulated in registers. fixed_sources is the
// number of sources where it is known when compiling, or 0.
template <class Format, class Op, int units, int fixed_sources, class Source>
HPN_INLINE void reduce_units(char* out, int num_sources, const Op& op, const Source& source) {
    typename Format::Value total[units][Format::parts];
    const char* first = source(0);
#pragma GCC unroll 8
    for (int u = 0; u < units; ++u) Format::load(first + u * width, total[u]);
    const int n = fixed_sources > 0 ? fixed_sources : num_sources;
    for (int k = 1; k < n; ++k) {
        const char* next = source(k);
#pragma GCC unroll 8
        for (int u = 0; u < units; ++u) {
            typename Format::Value value[Format::parts];
            Format::load(next + u * width, value);
#pragma GCC unroll 2
            for (int p = 0; p < Format::parts; ++p) total[u][p] = Op::combine(total[u][p], value[p]);
        }
    }
#pragma GCC unroll 8
    for (int u = 0; u < units; ++u) {
#pragma GCC unroll 2
        for (int p = 0; p < Format::parts; ++p) total[u][p] = op.finish(total[u][p]);
        Format::store(out + u * width, total[u]);
    }
}

// The last elements, fewer than a vector: through padded copies, so that they take the same instructions as all others.
template <class Format, class Op>
HPN_INLINE void reduce_tail(char* out, const void* const* sources, int num_sources, std::size_t offset,
                            std::size_t bytes, const Op& op) {
    alignas(width) char padded[width] = {};
    alignas(width) char result[width];
    const auto source = [&](int k) -> const char* {
        std::memcpy(padded, static_cast<const char*>(sources[k]) + offset, bytes);
        return padded;
    };
    reduce_units<Format, Op, 1, 0>(result, num_sources, op, source);
    std::memcpy(out, result, bytes);
}

// `bytes` of every source from `offset` on, to `out`.
using RangeFn = void (*)(char* out, const void* const* sources, int num_sources, std::size_t offset, std::size_t bytes);

template <class Format, class Op>
__attribute__((noinline)) void reduce_range(char* out, const void* const* sources, int num_sources, std::size_t offset,
                                            std::size_t bytes) {
    constexpr int units = Format::parts == 1 ? 4 : 2;
    constexpr std::size_t step = units * width;
    const Op op(num_sources);
    std::size_t i = 0;
    if (num_sources == 2) {
        const char* const first = static_cast<const char*>(sources[0]) + offset;
        const char* const second = static_cast<const char*>(sources[1]) + offset;
        const auto source = [&](int k) { return (k == 0 ? first : second) + i; };
        for (; i + step <= bytes; i += step) reduce_units<Format, Op, units, 2>(out + i, 2, op, source);
    } else {
        const auto source = [&](int k) { return static_cast<const char*>(sources[k]) + offset + i; };
        for (; i + step <= bytes; i += step) reduce_units<Format, Op, units, 0>(out + i, num_sources, op, source);
    }
    const auto source = [&](int k) { return static_cast<const char*>(sources[k]) + offset + i; };
    for (; i + width <= bytes; i += width) reduce_units<Format, Op, 1, 0>(out + i, num_sources, op, source);
    if (i < bytes) reduce_tail<Format>(out + i, sources, num_sources, offset + i, bytes - i, op);
}

template <class Format>
void reduce_range_average(char* out, const void* const* sources, int num_sources, std::size_t offset,
                          std::size_t bytes) {
    using T = Lane<typename Format::Value>;
    if ((num_sources & (num_sources - 1)) == 0) {
        reduce_range<Format, AverageOfPowerOfTwo<T>>(out, sources, num_sources, offset, bytes);
    } else {
        reduce_range<Format, Average<T>>(out, sources, num_sources, offset, bytes);
    }
}

// Second destinations and non-temporal stores: block by block through the first level cache, so that the loops above
// exist once and not once for every combination of destinations and their alignments.
void reduce_blocks(RangeFn range, std::size_t element_bytes, char* dst, char* dst2, const void* const* sources,
                   int num_sources, std::size_t bytes, Stream stream) {
    constexpr std::size_t block = 4096;
    alignas(line) char scratch[block];
    // The first block is shorter where that makes all later ones begin at a line.
    const std::size_t past_line = reinterpret_cast<std::uintptr_t>(dst) % line;
    std::size_t length = past_line % element_bytes == 0 ? block - past_line : block;
    for (std::size_t offset = 0; offset < bytes; offset += length, length = block) {
        if (length > bytes - offset) length = bytes - offset;
        char* const out = stream == Stream::both ? scratch : dst + offset;
        range(out, sources, num_sources, offset, length);
        if (stream == Stream::both) stream_range(dst + offset, out, length);
        if (dst2 == nullptr) continue;
        if (stream == Stream::none) {
            std::memcpy(dst2 + offset, out, length);
        } else {
            stream_range(dst2 + offset, out, length);
        }
    }
    if (stream != Stream::none) stream_end();
}

template <RangeFn range, std::size_t element_bytes>
void reduce(void* dst, void* dst2, const void* const* sources, int num_sources, std::size_t count, Stream stream) {
    const std::size_t bytes = count * element_bytes;
    if (stream == Stream::both || dst2 != nullptr) {
        reduce_blocks(range, element_bytes, static_cast<char*>(dst), static_cast<char*>(dst2), sources, num_sources,
                      bytes, stream);
    } else {
        range(static_cast<char*>(dst), sources, num_sources, 0, bytes);
    }
}

template <class Format, class Op>
constexpr ReduceFn reducer = reduce<reduce_range<Format, Op>, Format::element_bytes>;

template <class Format>
constexpr ReduceFn averager = reduce<reduce_range_average<Format>, Format::element_bytes>;

// --- the table's rows ------------------------------------------------------------------------------------------------

// Wrapping arithmetic and bit operations are the same for signed and unsigned; unsigned has no undefined overflow.
#define HPN_INTEGER_ROW(signed_or_not, unsigned_type)                                                          \
    {                                                                                                          \
        reducer<Plain<unsigned_type>, Sum>, nullptr, reducer<Plain<signed_or_not>, Min>,                         \
            reducer<Plain<signed_or_not>, Max>, reducer<Plain<unsigned_type>, Product>,                          \
            reducer<Plain<unsigned_type>, And>, reducer<Plain<unsigned_type>, Or>,                               \
            reducer<Plain<unsigned_type>, Xor>                                                                  \
    }
#define HPN_FLOAT_ROW(format)                                                                                  \
    {                                                                                                          \
        reducer<format, Sum>, averager<format>, reducer<format, Min>, reducer<format, Max>,                 \
            reducer<format, Product>, nullptr, nullptr, nullptr                                                 \
    }
#define HPN_BOOLEAN_ROW                                                                                        \
    {                                                                                                          \
        reducer<Boolean, Or>, nullptr, reducer<Boolean, And>, reducer<Boolean, Or>, reducer<Boolean, And>,         \
            reducer<Boolean, And>, reducer<Boolean, Or>, reducer<Boolean, Xor>                                    \
    }
