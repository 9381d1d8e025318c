// SPDX-License-Identifier: Apache-2.0
// The collectives. All memory stays valid, and inputs unchanged, until the operation's state is not 0.
#pragma once

#include <cstdint>
#include <memory>
#include <numeric>
#include <vector>

#include "collective.h"

namespace hpn {

// Reduce `count` elements in place.
std::unique_ptr<Operation> make_all_reduce(Group& group, void* data, uint64_t count, Dtype dtype, Op op,
                                           const Place& place);

// Concatenate `sizes[r]` bytes of each rank r. `input` may be its own part of `output`.
std::unique_ptr<Operation> make_all_gather(Group& group, const void* input, void* output, std::vector<uint64_t> sizes,
                                           const Place& source, const Place& target);

// Reduce, and keep piece `rank`; `counts[r]` elements go to rank r.
std::unique_ptr<Operation> make_reduce_scatter(Group& group, const void* input, void* output,
                                               std::vector<uint64_t> counts, Dtype dtype, Op op, const Place& source);

// Send `sends[r]` bytes to each rank r, and get `receives[r]` bytes from it.
std::unique_ptr<Operation> make_all_to_all(Group& group, const void* input, void* output, std::vector<uint64_t> sends,
                                           std::vector<uint64_t> receives, const Place& source);

// Overwrite `bytes` with those of rank `root`.
std::unique_ptr<Operation> make_broadcast(Group& group, void* data, uint64_t bytes, int root, const Place& place);

std::unique_ptr<Operation> make_barrier(Group& group);

// How float32 values travel.
enum class Wire : uint64_t { bf16 = 1, e4m3 = 2 };

// The same of float32 in low precision: sum and avg, counts in elements.
std::unique_ptr<Operation> make_wire_all_reduce(Group& group, float* data, uint64_t count, Op op, Wire wire);
std::unique_ptr<Operation> make_wire_reduce_scatter(Group& group, const float* input, float* output,
                                                    std::vector<uint64_t> counts, Op op, Wire wire);
std::unique_ptr<Operation> make_wire_all_gather(Group& group, const float* input, float* output,
                                                std::vector<uint64_t> counts, Wire wire);

// [Note: Slices] The part of a range of `total` that slice `index` of `width` covers, clipped at the end.
struct Slice {
    uint64_t begin;
    uint64_t length;
};
inline Slice slice(uint64_t index, uint64_t width, uint64_t total) {
    uint64_t begin = index * width;
    if (begin >= total) return {total, 0};
    return {begin, total - begin < width ? total - begin : width};
}

inline uint64_t ceil_div(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit; }

// Of the sizes of all ranks: their sum, where each begins, and a number that other sizes do not have.
inline uint64_t total_of(const std::vector<uint64_t>& sizes) {
    return std::accumulate(sizes.begin(), sizes.end(), uint64_t{0});
}
inline std::vector<uint64_t> offsets_of(const std::vector<uint64_t>& sizes) {
    std::vector<uint64_t> offsets(sizes.size());
    std::exclusive_scan(sizes.begin(), sizes.end(), offsets.begin(), uint64_t{0});
    return offsets;
}
inline uint64_t digest(const std::vector<uint64_t>& sizes, uint64_t rest = 0) {
    for (uint64_t size : sizes) rest = rest * 1000003 + size;
    return rest;
}

// What `direct` does before it lets others have a turn.
inline constexpr uint64_t kDirectStepBytes = 512u << 10;

}  // namespace hpn
