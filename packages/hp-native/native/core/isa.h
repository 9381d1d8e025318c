// SPDX-License-Identifier: Apache-2.0
// Which instruction sets the kernels exist for, and which of them this processor can run.
#pragma once

namespace hpn {

/// In rising order within one architecture, so that "forced to a lower one" is a comparison.
enum class Isa { generic = 0, neon, avx2, avx512 };
inline constexpr int num_isas = 4;

const char* name_of(Isa isa) noexcept;

/// Whether kernels for it were compiled and the processor and the operating system support it.
bool isa_supported(Isa isa) noexcept;

/// The best supported one, or the one that HP_NATIVE_ISA names if that is supported. Decided at the first call.
Isa chosen_isa() noexcept;

}  // namespace hpn
