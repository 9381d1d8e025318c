// SPDX-License-Identifier: Apache-2.0
// Encodings for the wire against definitions in double and by search, on every instruction set there is.
#include "../core/wire.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "../core/kernels.h"
#include "check.h"
#include "reduce_reference.h"

namespace {

using namespace hpn::reference;

constexpr std::size_t block = hpn::e4m3_block_values;

struct Named {
    std::string name;
    const hpn::Kernels* kernels;
};

std::vector<Named> all_kernels() {
    std::vector<Named> found;
    for (int i = 0; i < hpn::num_isas; ++i) {
        const hpn::Isa isa = static_cast<hpn::Isa>(i);
        if (const hpn::Kernels* kernels = hpn::kernels_of(isa)) found.push_back({hpn::name_of(isa), kernels});
    }
    return found;
}

// NaNs in results are one NaN, so that bits can be compared.
bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

float one_nan(float value) { return std::isnan(value) ? std::numeric_limits<float>::quiet_NaN() : value; }

std::vector<float> any_floats(std::size_t count) {
    std::vector<float> values(count);
    for (float& value : values) value = any_float<float>();
    return values;
}

// --- bf16 ------------------------------------------------------------------------------------------------------------

void test_bf16(const Named& isa, const std::vector<float>& values) {
    const std::size_t count = values.size();
    std::vector<std::uint16_t> codes(count);
    isa.kernels->bf16_encode(codes.data(), values.data(), count);
    std::vector<float> sums = any_floats(count), wanted_sums(count), wanted(count), decoded(count);
    for (std::size_t i = 0; i < count; ++i) {
        CHECK_EQ(codes[i], brain.encode(static_cast<double>(values[i])));
        wanted[i] = static_cast<float>(brain.decode(codes[i]));
        wanted_sums[i] = one_nan(sums[i] + wanted[i]);
    }
    isa.kernels->bf16_decode(decoded.data(), codes.data(), count);
    isa.kernels->bf16_accumulate(sums.data(), codes.data(), count);
    CHECK_TOLD(same_bits(decoded, wanted), isa.name + " count " + std::to_string(count));
    CHECK_TOLD(same_bits(sums, wanted_sums), isa.name + " count " + std::to_string(count));
}

// Every upper half of a float32 with the lower halves where rounding turns.
void test_bf16_rounding(const Named& isa) {
    std::vector<float> values;
    for (std::uint32_t upper = 0; upper < 65536; ++upper) {
        for (const std::uint32_t lower : {0U, 1U, 0x7fffU, 0x8000U, 0x8001U, 0xffffU}) {
            values.push_back(std::bit_cast<float>((upper << 16) | lower));
        }
    }
    test_bf16(isa, values);
}

// --- e4m3 ------------------------------------------------------------------------------------------------------------

double e4m3_value(int code) {
    const double sign = (code & 0x80) != 0 ? -1.0 : 1.0;
    const int exponent = (code >> 3) & 15;
    const int fraction = code & 7;
    if ((code & 0x7f) == 0x7f) return std::nan("");
    if (exponent == 0) return sign * std::ldexp(fraction, -9);
    return sign * std::ldexp(8 + fraction, exponent - 10);
}

// The nearest of all codes, of two equally near ones the even one. Beyond the last one: the last one.
std::uint8_t e4m3_nearest(float value) {
    const double magnitude = std::fabs(static_cast<double>(value));
    int best = 0;
    for (int code = 1; code < 0x7f; ++code) {
        const double near = std::fabs(magnitude - e4m3_value(code));
        const double best_near = std::fabs(magnitude - e4m3_value(best));
        if (near < best_near || (near == best_near && code % 2 == 0)) best = code;
    }
    return static_cast<std::uint8_t>(best | (std::signbit(value) ? 0x80 : 0));
}

std::vector<std::uint8_t> e4m3_reference(const std::vector<float>& values) {
    std::vector<std::uint8_t> out;
    for (std::size_t begin = 0; begin < values.size(); begin += block) {
        const std::size_t end = std::min(values.size(), begin + block);
        float largest = 0;
        for (std::size_t i = begin; i < end; ++i) {
            if (std::isfinite(values[i])) largest = std::max(largest, std::fabs(values[i]));
        }
        float scale = largest / 448.0F;
        if (scale == 0.0F) scale = 1.0F;
        unsigned char raw[sizeof scale];
        std::memcpy(raw, &scale, sizeof scale);
        out.insert(out.end(), raw, raw + sizeof scale);
        for (std::size_t i = begin; i < end; ++i) {
            out.push_back(std::isfinite(values[i]) ? e4m3_nearest(values[i] / scale) : std::uint8_t{0x7f});
        }
    }
    return out;
}

std::vector<float> e4m3_decoded(const std::vector<std::uint8_t>& encoded, std::size_t count) {
    std::vector<float> out;
    for (std::size_t i = 0; i < count; ++i) {
        const std::size_t begin = i / block * hpn::e4m3_block_bytes;
        float scale;
        std::memcpy(&scale, encoded.data() + begin, sizeof scale);
        out.push_back(one_nan(static_cast<float>(e4m3_value(encoded[begin + sizeof scale + i % block])) * scale));
    }
    return out;
}

void test_e4m3(const Named& isa, const std::vector<float>& values) {
    const std::size_t count = values.size();
    const std::string text = isa.name + " count " + std::to_string(count);
    const auto wanted = e4m3_reference(values);
    CHECK_EQ(wanted.size(), hpn::e4m3_bytes(count));
    std::vector<std::uint8_t> encoded(wanted.size());
    isa.kernels->e4m3_encode(encoded.data(), values.data(), count);
    for (std::size_t i = 0; i < wanted.size(); ++i) {
        CHECK_TOLD(encoded[i] == wanted[i], text + " byte " + std::to_string(i) + ": " + std::to_string(encoded[i]) +
                                                ", wanted " + std::to_string(wanted[i]));
    }
    const std::vector<float> wanted_values = e4m3_decoded(wanted, count);
    std::vector<float> decoded(count), sums = any_floats(count), wanted_sums(count);
    for (std::size_t i = 0; i < count; ++i) wanted_sums[i] = one_nan(sums[i] + wanted_values[i]);
    isa.kernels->e4m3_decode(decoded.data(), wanted.data(), count);
    isa.kernels->e4m3_accumulate(sums.data(), wanted.data(), count);
    CHECK_TOLD(same_bits(decoded, wanted_values), text);
    CHECK_TOLD(same_bits(sums, wanted_sums), text);
}

// Written down by hand: with a largest value of 448 the scale is 1.
void test_e4m3_known_codes() {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const float infinity = std::numeric_limits<float>::infinity();
    const std::vector<float> values = {448, -448, 1, -1, 0, -0.0F, 0x1p-9F, 0x1p-10F, 0x1.8p-9F, 0x1p-6F, 0x1.ep-7F,
                                       1.0625F, 1.1875F, nan, infinity, -infinity, 1e-40F};
    const std::vector<int> wanted = {0x7e, 0xfe, 0x38, 0xb8, 0x00, 0x80, 0x01, 0x00, 0x02, 0x08, 0x08,
                                     0x38, 0x3a, 0x7f, 0x7f, 0x7f, 0x00};
    std::vector<std::uint8_t> encoded(hpn::e4m3_bytes(values.size()));
    hpn::e4m3_encode(encoded.data(), values.data(), values.size());
    float scale;
    std::memcpy(&scale, encoded.data(), sizeof scale);
    CHECK_EQ(scale, 1.0F);
    for (std::size_t i = 0; i < values.size(); ++i) CHECK_EQ(int{encoded[4 + i]}, wanted[i]);
    std::vector<float> decoded(values.size()), sums(values.size(), 1.0F);
    hpn::e4m3_decode(decoded.data(), encoded.data(), values.size());
    hpn::e4m3_accumulate(sums.data(), encoded.data(), values.size());
    CHECK_EQ(decoded[0], 448.0F);
    CHECK_EQ(sums[0], 449.0F);
    CHECK(std::isnan(decoded[13]) && std::isnan(decoded[14]) && std::isnan(sums[15]));
}

void test_e4m3_sizes() {
    CHECK_EQ(hpn::e4m3_bytes(0), 0U);
    CHECK_EQ(hpn::e4m3_bytes(1), 5U);
    CHECK_EQ(hpn::e4m3_bytes(128), 132U);
    CHECK_EQ(hpn::e4m3_bytes(129), 137U);
}

// Values at and around every boundary between two codes, for a scale of 1 and for an awkward one.
void test_e4m3_rounding(const Named& isa) {
    for (const float largest : {448.0F, 447.99F, 3e-5F, 1e30F, 0x1p-149F, 0x1p-140F, 3.4e38F}) {
        std::vector<float> values;
        for (int code = 0; code < 0x7e; ++code) {
            const double middle = (e4m3_value(code) + e4m3_value(code + 1)) / 2 * static_cast<double>(largest) / 448;
            const float at = static_cast<float>(middle);
            for (const float value : {at, std::nextafter(at, 0.0F), std::nextafter(at, 1e38F)}) {
                if (values.size() % block == 0) values.push_back(largest);
                values.push_back(value);
                if (values.size() % block != 0) values.push_back(-value);
            }
        }
        test_e4m3(isa, values);
    }
}

// Cut between blocks: the same bytes.
void test_e4m3_chunking(const Named& isa) {
    const std::vector<float> values = any_floats(1000);
    std::vector<std::uint8_t> whole(hpn::e4m3_bytes(1000)), parts(whole.size());
    isa.kernels->e4m3_encode(whole.data(), values.data(), 1000);
    isa.kernels->e4m3_encode(parts.data(), values.data(), 384);
    isa.kernels->e4m3_encode(parts.data() + hpn::e4m3_bytes(384), values.data() + 384, 1000 - 384);
    CHECK(whole == parts);
}

// The public functions are those of the chosen instruction set.
void test_dispatch() {
    const std::vector<float> values = any_floats(300);
    std::vector<std::uint16_t> halves(300);
    hpn::bf16_encode(halves.data(), values.data(), 300);
    std::vector<float> decoded(300), sums(300, 1.0F);
    hpn::bf16_decode(decoded.data(), halves.data(), 300);
    hpn::bf16_accumulate(sums.data(), halves.data(), 300);
    for (std::size_t i = 0; i < 300; ++i) {
        CHECK_EQ(halves[i], brain.encode(static_cast<double>(values[i])));
        CHECK(std::isnan(decoded[i]) || decoded[i] == static_cast<float>(brain.decode(halves[i])));
        CHECK(std::isnan(decoded[i]) || sums[i] == 1.0F + decoded[i]);
    }
}

}  // namespace

int main() {
    test_e4m3_sizes();
    test_e4m3_known_codes();
    test_dispatch();
    for (const Named& isa : all_kernels()) {
        test_bf16_rounding(isa);
        test_e4m3_rounding(isa);
        test_e4m3_chunking(isa);
        for (const std::size_t count : {0, 1, 2, 7, 31, 64, 127, 128, 129, 1000, 4099}) {
            test_bf16(isa, any_floats(count));
            test_e4m3(isa, any_floats(count));
            std::vector<float> ordinary(count);
            for (float& value : ordinary) value = std::normal_distribution<float>(0, 1e-3F)(engine);
            test_e4m3(isa, ordinary);
        }
    }
    return hpn::check::report();
}
