// SPDX-License-Identifier: Apache-2.0
#include "kernels.h"

namespace hpn {

const Kernels* kernels_of(Isa isa) noexcept {
    if (!isa_supported(isa)) return nullptr;
    switch (isa) {
        case Isa::generic: return &generic::table;
#if defined(__x86_64__)
        case Isa::avx2: return &avx2::table;
        case Isa::avx512: return &avx512::table;
#elif defined(__aarch64__)
        case Isa::neon: return &neon::table;
#endif
        default: return nullptr;
    }
}

const Kernels& kernels() noexcept {
    static const Kernels* const chosen = kernels_of(chosen_isa());
    return *chosen;
}

}  // namespace hpn
