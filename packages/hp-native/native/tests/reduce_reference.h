// SPDX-License-Identifier: Apache-2.0
// What the reductions should give, written from the definitions one value at a time, and operands to try them on.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <type_traits>
#include <vector>

#include "../core/reduce.h"

namespace hpn::reference {

using Bytes = std::vector<unsigned char>;

// --- the definitions -----------------------------------------------------------------------------------------------

// A binary format by its parameters; conversions in double, which holds every value and step of both exactly.
struct Format16 {
    int fraction_bits;
    int min_exponent;
    std::uint16_t infinity;

    double decode(std::uint16_t code) const {
        const int magnitude = code & 0x7fff;
        const double sign = (code & 0x8000) != 0 ? -1.0 : 1.0;
        if (magnitude > infinity) return std::numeric_limits<double>::quiet_NaN();
        if (magnitude == infinity) return sign * std::numeric_limits<double>::infinity();
        const int exponent = magnitude >> fraction_bits;
        const int fraction = magnitude & ((1 << fraction_bits) - 1);
        if (exponent == 0) return sign * std::ldexp(fraction, min_exponent - fraction_bits);
        return sign * std::ldexp((1 << fraction_bits) + fraction, min_exponent + exponent - 1 - fraction_bits);
    }

    std::uint16_t encode(double value) const {
        if (std::isnan(value)) return static_cast<std::uint16_t>(infinity | (1 << (fraction_bits - 1)));
        const auto sign = static_cast<std::uint16_t>(std::signbit(value) ? 0x8000 : 0);
        const double magnitude = std::fabs(value);
        if (magnitude == 0.0) return sign;
        if (std::isinf(magnitude)) return sign | infinity;
        const int exponent = std::max(std::ilogb(magnitude), min_exponent);
        // In steps of the exponent's last place. A fraction that rounds up to the next power of two carries by itself.
        const auto steps = static_cast<int>(std::nearbyint(std::ldexp(magnitude, fraction_bits - exponent)));
        const int code = ((exponent - min_exponent) << fraction_bits) + steps;
        return static_cast<std::uint16_t>(sign | std::min<int>(code, infinity));
    }
};

inline constexpr Format16 half{10, -14, 0x7c00};
inline constexpr Format16 brain{7, -126, 0x7f80};

template <class T>
inline T combine_float(Op op, T a, T b) {
    if (op == Op::sum || op == Op::avg) return a + b;
    if (op == Op::product) return a * b;
    if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<T>::quiet_NaN();
    if (op == Op::min) return b < a ? b : a;
    return b > a ? b : a;
}

template <class T>
inline T combine_int(Op op, T a, T b) {
    using U = std::make_unsigned_t<T>;
    const std::uint64_t x = static_cast<U>(a);
    const std::uint64_t y = static_cast<U>(b);
    switch (op) {
        case Op::sum: return static_cast<T>(x + y);
        case Op::product: return static_cast<T>(x * y);
        case Op::min: return std::min(a, b);
        case Op::max: return std::max(a, b);
        case Op::band: return static_cast<T>(x & y);
        case Op::bor: return static_cast<T>(x | y);
        case Op::bxor: return static_cast<T>(x ^ y);
        default: std::abort();
    }
}

inline bool combine_bool(Op op, bool a, bool b) {
    if (op == Op::sum || op == Op::max || op == Op::bor) return a || b;
    if (op == Op::bxor) return a != b;
    return a && b;
}

template <class T>
inline T element(const Bytes& from, std::size_t i) {
    T value;
    std::memcpy(&value, from.data() + i * sizeof(T), sizeof(T));
    return value;
}

template <class T>
inline void set_element(Bytes& to, std::size_t i, T value) {
    std::memcpy(to.data() + i * sizeof(T), &value, sizeof(T));
}

template <class T, class Load, class Combine, class Store>
inline void each(const std::vector<Bytes>& sources, Bytes& out, Load load, Combine combine, Store store) {
    for (std::size_t i = 0; i < out.size() / sizeof(T); ++i) {
        auto total = load(element<T>(sources[0], i));
        for (std::size_t k = 1; k < sources.size(); ++k) total = combine(total, load(element<T>(sources[k], i)));
        set_element<T>(out, i, store(total));
    }
}

template <class T>
inline void reference_int(Op op, const std::vector<Bytes>& sources, Bytes& out) {
    each<T>(
        sources, out, [](T v) { return v; }, [op](T a, T b) { return combine_int<T>(op, a, b); },
        [](T v) { return v; });
}

template <class T>
inline void reference_float(Op op, const std::vector<Bytes>& sources, Bytes& out) {
    const T n = static_cast<T>(sources.size());
    each<T>(
        sources, out, [](T v) { return v; }, [op](T a, T b) { return combine_float<T>(op, a, b); },
        [op, n](T v) {
            const T result = op == Op::avg ? v / n : v;
            return std::isnan(result) ? std::numeric_limits<T>::quiet_NaN() : result;
        });
}

inline void reference_16(const Format16& format, Op op, const std::vector<Bytes>& sources, Bytes& out) {
    const float n = static_cast<float>(sources.size());
    each<std::uint16_t>(
        sources, out, [&](std::uint16_t v) { return static_cast<float>(format.decode(v)); },
        [op](float a, float b) { return combine_float<float>(op, a, b); },
        [&, op](float v) { return format.encode(op == Op::avg ? v / n : v); });
}

inline Bytes reference(Dtype dtype, Op op, const std::vector<Bytes>& sources) {
    Bytes out(sources[0].size());
    switch (dtype) {
        case Dtype::u8: reference_int<std::uint8_t>(op, sources, out); break;
        case Dtype::i8: reference_int<std::int8_t>(op, sources, out); break;
        case Dtype::i16: reference_int<std::int16_t>(op, sources, out); break;
        case Dtype::i32: reference_int<std::int32_t>(op, sources, out); break;
        case Dtype::i64: reference_int<std::int64_t>(op, sources, out); break;
        case Dtype::f16: reference_16(half, op, sources, out); break;
        case Dtype::bf16: reference_16(brain, op, sources, out); break;
        case Dtype::f32: reference_float<float>(op, sources, out); break;
        case Dtype::f64: reference_float<double>(op, sources, out); break;
        case Dtype::boolean:
            each<unsigned char>(
                sources, out, [](unsigned char v) { return v != 0; },
                [op](bool a, bool b) { return combine_bool(op, a, b); }, [](bool v) -> unsigned char { return v; });
            break;
    }
    return out;
}

inline bool is_float(Dtype dtype) {
    return dtype == Dtype::f16 || dtype == Dtype::bf16 || dtype == Dtype::f32 || dtype == Dtype::f64;
}

inline bool defined(Dtype dtype, Op op) {
    if (op == Op::avg) return is_float(dtype);
    if (op == Op::band || op == Op::bor || op == Op::bxor) return !is_float(dtype);
    return true;
}

// --- operands ------------------------------------------------------------------------------------------------------

inline std::mt19937_64 engine(20240607);  // the same operands in every run

// A third each of ordinary values, any bits at all (NaNs with payloads, infinities, subnormals) and chosen edges.
template <class T>
inline T any_float() {
    using Raw = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
    using Limits = std::numeric_limits<T>;
    constexpr T edges[] = {T(0), -T(0), T(1), T(-1), Limits::infinity(), -Limits::infinity(), Limits::max(),
                           Limits::lowest(), Limits::min(), Limits::denorm_min(), -Limits::denorm_min(),
                           Limits::quiet_NaN(), Limits::epsilon()};
    switch (engine() % 3) {
        case 0: return std::normal_distribution<T>(0, 3)(engine);
        case 1: return std::bit_cast<T>(static_cast<Raw>(engine()));
        default: return edges[engine() % std::size(edges)];
    }
}

inline std::uint16_t any_16(const Format16& format) {
    if (engine() % 2 == 0) return static_cast<std::uint16_t>(engine());
    return format.encode(static_cast<double>(any_float<float>()));
}

inline Bytes operands(Dtype dtype, std::size_t count) {
    Bytes out(count * hpn::size_of(dtype));
    for (auto& byte : out) byte = static_cast<unsigned char>(engine());
    for (std::size_t i = 0; i < count; ++i) {
        if (dtype == Dtype::f32) set_element(out, i, any_float<float>());
        if (dtype == Dtype::f64) set_element(out, i, any_float<double>());
        if (dtype == Dtype::f16) set_element(out, i, any_16(half));
        if (dtype == Dtype::bf16) set_element(out, i, any_16(brain));
        if (dtype == Dtype::boolean && engine() % 2 == 0) out[i] = static_cast<unsigned char>(engine() % 2);
    }
    return out;
}

inline std::vector<Bytes> many_operands(Dtype dtype, std::size_t num_sources, std::size_t count) {
    std::vector<Bytes> sources;
    for (std::size_t k = 0; k < num_sources; ++k) sources.push_back(operands(dtype, count));
    return sources;
}

}  // namespace hpn::reference
