// SPDX-License-Identifier: Apache-2.0
// Speeds of the kernels from first level cache to main memory, beside memcpy. Not a test: prints a table.
//   bench_kernels [seconds a figure, 0.05 if not given]
// Figures are the best of many repetitions, since other programs may run; GB/s counts every byte read or written once.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "../core/kernels.h"
#include "../core/reduce.h"
#include "../core/wire.h"

namespace {

using Clock = std::chrono::steady_clock;

double seconds_a_figure = 0.05;

// Best seconds of one call; short calls are timed in groups, as the clock itself takes some 30 ns.
template <class Call>
double best_s(Call call, std::size_t bytes) {
    const int group = static_cast<int>(std::max<std::size_t>(1, 200000 / std::max<std::size_t>(bytes, 1)));
    call();
    double best = 1e9;
    const auto begin = Clock::now();
    do {
        const auto start = Clock::now();
        for (int i = 0; i < group; ++i) call();
        best = std::min(best, std::chrono::duration<double>(Clock::now() - start).count() / group);
    } while (std::chrono::duration<double>(Clock::now() - begin).count() < seconds_a_figure);
    return best;
}

struct Buffer {
    explicit Buffer(std::size_t bytes) {
        void* raw = nullptr;
        if (posix_memalign(&raw, 4096, bytes + 4096) != 0) std::abort();
        std::memset(raw, 0, bytes + 4096);
        data.reset(static_cast<char*>(raw));
    }
    struct Free {
        void operator()(char* raw) const { std::free(raw); }
    };
    std::unique_ptr<char, Free> data;
};

// The compiler must not see through to the same memcpy being repeated.
void* (*volatile plain_memcpy)(void*, const void*, std::size_t) = std::memcpy;

}  // namespace

int main(int argc, char** argv) {
    if (argc > 1) seconds_a_figure = std::atof(argv[1]);
    constexpr std::size_t largest = std::size_t{64} << 20;
    constexpr int max_sources = 8;
    const Buffer dst(largest), dst2(largest);
    std::vector<Buffer> buffers;
    std::vector<const void*> sources;
    for (int k = 0; k < max_sources; ++k) {
        buffers.emplace_back(largest);
        sources.push_back(buffers.back().data.get());
    }
    char* const out = dst.data.get();
    const auto* const src = static_cast<const char*>(sources[0]);
    const auto reduce_gbs = [&](hpn::Dtype dtype, hpn::Op op, int num_sources, std::size_t bytes, bool stream,
                                char* second = nullptr) {
        const hpn::ReduceFn function = hpn::reduce_fn(dtype, op);
        const std::size_t count = bytes / hpn::size_of(dtype);
        const hpn::Stream stores = stream ? hpn::Stream::both : hpn::Stream::none;
        const auto call = [&] { function(out, second, sources.data(), num_sources, count, stores); };
        return double(bytes) * (num_sources + (second == nullptr ? 1 : 2)) / best_s(call, bytes) * 1e-9;
    };
    std::printf("isa %s; GB/s\n%8s %22s | %52s\n%8s %7s %7s %7s | %7s %7s %7s %7s %7s %7s %7s %7s | %7s %7s %7s %7s\n",
                hpn::isa(), "", "copy", "reduce", "KB", "memcpy", "copy", "stream", "f32", "stream", "dst2", "f32 x4",
                "f32 x8", "bf16", "f16", "avg x3", "bf16enc", "bf16acc", "e4m3enc", "e4m3acc");
    for (std::size_t bytes = 16 << 10; bytes <= largest; bytes *= 4) {
        const double copied = 2e-9 * double(bytes);
        const std::size_t values = bytes / sizeof(float);
        auto* const floats = reinterpret_cast<float*>(out);
        auto* const halves = reinterpret_cast<std::uint16_t*>(dst2.data.get());
        auto* const codes = reinterpret_cast<std::uint8_t*>(dst2.data.get());
        const auto* const input = reinterpret_cast<const float*>(src);
        const double wire_bf16 = 1.5e-9 * double(bytes);
        const double wire_e4m3 = 1.25e-9 * double(bytes);
        using hpn::Dtype;
        using hpn::Op;
        std::printf(
            "%8zu %7.1f %7.1f %7.1f | %7.1f %7.1f %7.1f %7.1f %7.1f %7.1f %7.1f %7.1f | %7.1f %7.1f %7.1f %7.1f\n",
            bytes >> 10, copied / best_s([&] { plain_memcpy(out, src, bytes); }, bytes),
            copied / best_s([&] { hpn::copy(out, src, bytes, false); }, bytes),
            copied / best_s([&] { hpn::copy(out, src, bytes, true); }, bytes),
            reduce_gbs(Dtype::f32, Op::sum, 2, bytes, false), reduce_gbs(Dtype::f32, Op::sum, 2, bytes, true),
            reduce_gbs(Dtype::f32, Op::sum, 2, bytes, false, dst2.data.get()),
            reduce_gbs(Dtype::f32, Op::sum, 4, bytes, false), reduce_gbs(Dtype::f32, Op::sum, 8, bytes, false),
            reduce_gbs(Dtype::bf16, Op::sum, 2, bytes, false), reduce_gbs(Dtype::f16, Op::sum, 2, bytes, false),
            reduce_gbs(Dtype::f32, Op::avg, 3, bytes, false),
            wire_bf16 / best_s([&] { hpn::bf16_encode(halves, input, values); }, bytes),
            wire_bf16 / best_s([&] { hpn::bf16_accumulate(floats, halves, values); }, bytes),
            wire_e4m3 / best_s([&] { hpn::e4m3_encode(codes, input, values); }, bytes),
            wire_e4m3 / best_s([&] { hpn::e4m3_accumulate(floats, codes, values); }, bytes));
        std::fflush(stdout);
    }
    return 0;
}
