// SPDX-License-Identifier: Apache-2.0
#include "wire.h"

#include "kernels.h"

namespace hpn {

void bf16_encode(std::uint16_t* dst, const float* src, std::size_t count) noexcept {
    kernels().bf16_encode(dst, src, count);
}

void bf16_decode(float* dst, const std::uint16_t* src, std::size_t count) noexcept {
    kernels().bf16_decode(dst, src, count);
}

void bf16_accumulate(float* dst, const std::uint16_t* src, std::size_t count) noexcept {
    kernels().bf16_accumulate(dst, src, count);
}

void e4m3_encode(std::uint8_t* dst, const float* src, std::size_t count) noexcept {
    kernels().e4m3_encode(dst, src, count);
}

void e4m3_decode(float* dst, const std::uint8_t* src, std::size_t count) noexcept {
    kernels().e4m3_decode(dst, src, count);
}

void e4m3_accumulate(float* dst, const std::uint8_t* src, std::size_t count) noexcept {
    kernels().e4m3_accumulate(dst, src, count);
}

}  // namespace hpn
