// SPDX-License-Identifier: Apache-2.0
#include "isa.h"

#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "reduce.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace hpn {
namespace {

#if defined(__x86_64__)

struct X86Features {
    bool avx2 = false;
    bool avx512 = false;
};

// XCR0: which register files the operating system saves on a context switch; without it AVX faults.
std::uint64_t enabled_register_files() noexcept {
    std::uint32_t low = 0;
    std::uint32_t high = 0;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (static_cast<std::uint64_t>(high) << 32) | low;
}

X86Features read_features() noexcept {
    constexpr unsigned osxsave = 1U << 27, avx = 1U << 28, f16c = 1U << 29;                    // leaf 1, ecx
    constexpr unsigned avx2 = 1U << 5;                                                          // leaf 7, ebx
    constexpr unsigned avx512 = (1U << 16) | (1U << 17) | (1U << 30) | (1U << 31);              // f, dq, bw, vl
    constexpr std::uint64_t ymm_saved = 0x6, zmm_saved = 0xe6;
    X86Features found;
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (__get_cpuid(1, &a, &b, &c, &d) == 0) return found;
    constexpr unsigned needed = osxsave | avx | f16c;
    if ((c & needed) != needed) return found;
    const std::uint64_t saved = enabled_register_files();
    if ((saved & ymm_saved) != ymm_saved || __get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return found;
    found.avx2 = (b & avx2) != 0;
    found.avx512 = found.avx2 && (b & avx512) == avx512 && (saved & zmm_saved) == zmm_saved;
    return found;
}

#endif

Isa choose() noexcept {
    Isa best = Isa::generic;
    for (int i = 0; i < num_isas; ++i) {
        if (isa_supported(static_cast<Isa>(i))) best = static_cast<Isa>(i);
    }
    const char* forced = std::getenv("HP_NATIVE_ISA");
    if (forced == nullptr) return best;
    for (int i = 0; i < num_isas; ++i) {
        const Isa isa = static_cast<Isa>(i);
        if (std::strcmp(forced, name_of(isa)) == 0 && isa_supported(isa)) return isa;
    }
    return best;
}

}  // namespace

const char* name_of(Isa isa) noexcept {
    switch (isa) {
        case Isa::generic: return "generic";
        case Isa::neon: return "neon";
        case Isa::avx2: return "avx2";
        case Isa::avx512: return "avx512";
    }
    return "unknown";
}

bool isa_supported(Isa isa) noexcept {
    if (isa == Isa::generic) return true;
#if defined(__x86_64__)
    static const X86Features features = read_features();
    if (isa == Isa::avx2) return features.avx2;
    if (isa == Isa::avx512) return features.avx512;
#elif defined(__aarch64__)
    if (isa == Isa::neon) return true;  // part of the base architecture
#endif
    return false;
}

Isa chosen_isa() noexcept {
    static const Isa isa = choose();
    return isa;
}

const char* isa() noexcept { return name_of(chosen_isa()); }

}  // namespace hpn
