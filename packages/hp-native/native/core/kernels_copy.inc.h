// SPDX-License-Identifier: Apache-2.0
// Copies with non-temporal stores. Only kernels.inc.h includes this file, inside the namespace of one instruction set.

constexpr std::size_t line = 64;

// Whole lines go past the caches; the partial ones at both ends are stored as usual. No fence.
__attribute__((noinline)) void stream_range(char* dst, const char* src, std::size_t bytes) {
    std::size_t i = (line - reinterpret_cast<std::uintptr_t>(dst) % line) % line;
    if (i > bytes) i = bytes;
    if (i > 0) std::memcpy(dst, src, i);
    using Bytes = Vec<unsigned char>;
    constexpr std::size_t step = 4 * line;
    for (; i + step <= bytes; i += step) {
        Bytes v[step / width];
#pragma GCC unroll 16
        for (std::size_t k = 0; k < step / width; ++k) v[k] = load_vector<Bytes>(src + i + k * width);
#pragma GCC unroll 16
        for (std::size_t k = 0; k < step / width; ++k) stream_vector(dst + i + k * width, v[k]);
    }
    for (; i + line <= bytes; i += line) {
#pragma GCC unroll 4
        for (std::size_t k = 0; k < line; k += width) {
            stream_vector(dst + i + k, load_vector<Bytes>(src + i + k));
        }
    }
    if (i < bytes) std::memcpy(dst + i, src + i, bytes - i);
}

void stream_copy(void* dst, const void* src, std::size_t bytes) {
    stream_range(static_cast<char*>(dst), static_cast<const char*>(src), bytes);
    stream_end();
}
