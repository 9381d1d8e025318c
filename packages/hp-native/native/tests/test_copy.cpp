// SPDX-License-Identifier: Apache-2.0
// Copies of every small size, alignment and kind, on every instruction set there is.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "../core/kernels.h"
#include "../core/reduce.h"
#include "check.h"

namespace {

using CopyFn = void (*)(void* dst, const void* src, std::size_t bytes);

struct Way {
    std::string name;
    CopyFn copy;
};

std::vector<Way> all_ways() {
    std::vector<Way> ways = {
        {"copy", [](void* dst, const void* src, std::size_t bytes) { hpn::copy(dst, src, bytes, false); }},
        {"copy, stream", [](void* dst, const void* src, std::size_t bytes) { hpn::copy(dst, src, bytes, true); }},
    };
    for (int i = 0; i < hpn::num_isas; ++i) {
        const hpn::Isa isa = static_cast<hpn::Isa>(i);
        const hpn::Kernels* kernels = hpn::kernels_of(isa);
        if (kernels != nullptr) ways.push_back({hpn::name_of(isa), kernels->stream_copy});
    }
    return ways;
}

struct Free {
    void operator()(unsigned char* raw) const { std::free(raw); }
};
using Memory = std::unique_ptr<unsigned char, Free>;

Memory allocate(std::size_t bytes) {
    void* raw = nullptr;
    if (posix_memalign(&raw, 64, bytes) != 0) std::abort();
    return Memory(static_cast<unsigned char*>(raw));
}

void test_copy(const Way& way, std::size_t bytes, std::size_t dst_offset, std::size_t src_offset) {
    constexpr std::size_t behind = 64;
    constexpr unsigned char canary = 0xa5;
    // Nothing behind the source, so that the address sanitizer sees a read too far.
    const Memory src = allocate(src_offset + bytes + (src_offset + bytes == 0 ? 1 : 0));
    const Memory dst = allocate(dst_offset + bytes + behind);
    std::memset(dst.get(), canary, dst_offset + bytes + behind);
    for (std::size_t i = 0; i < bytes; ++i) src.get()[src_offset + i] = static_cast<unsigned char>(i * 7 + i / 251);
    way.copy(dst.get() + dst_offset, src.get() + src_offset, bytes);
    const std::string text = way.name + " bytes " + std::to_string(bytes) + " offsets " + std::to_string(dst_offset) +
                             " " + std::to_string(src_offset);
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < bytes; ++i) {
        if (dst.get()[dst_offset + i] != static_cast<unsigned char>(i * 7 + i / 251)) ++wrong;
    }
    CHECK_TOLD(wrong == 0, text);
    std::size_t touched = 0;
    for (std::size_t i = 0; i < dst_offset; ++i) touched += dst.get()[i] != canary ? 1 : 0;
    for (std::size_t i = 0; i < behind; ++i) touched += dst.get()[dst_offset + bytes + i] != canary ? 1 : 0;
    CHECK_TOLD(touched == 0, text);
}

}  // namespace

int main() {
    for (const Way& way : all_ways()) {
        for (std::size_t bytes = 0; bytes <= 600; ++bytes) {
            for (const std::size_t dst_offset : {0, 1, 4, 17, 32, 63}) {
                for (const std::size_t src_offset : {0, 3, 16, 63}) test_copy(way, bytes, dst_offset, src_offset);
            }
        }
        for (const std::size_t bytes : {4095, 4096, 4097, 65536 + 13, (1 << 20) + 1, (5 << 20) + 77}) {
            for (const std::size_t dst_offset : {0, 8, 63}) test_copy(way, bytes, dst_offset, 5);
        }
    }
    // Onto itself: nothing to do.
    unsigned char same[100] = {1, 2, 3};
    hpn::copy(same, same, sizeof same, true);
    hpn::copy(same, same, sizeof same, false);
    CHECK_EQ(same[2], 3);
    hpn::copy(nullptr, same, 0, false);
    hpn::copy(same, nullptr, 0, true);
    return hpn::check::report();
}
