// SPDX-License-Identifier: Apache-2.0
// Collectives in low precision, bit by bit against the encodings (which test_wire.cpp checks) and sums in rank order.
#include <cmath>

#include "../core/wire.h"
#include "calls.h"

namespace {

using namespace hpn::ranks;

enum { wire_bf16 = 1, wire_e4m3 = 2 };
constexpr uint64_t block = hpn::e4m3_block_values;

using Values = std::vector<float>;

// Magnitudes differ from block to block; a few infinities and NaNs.
Values values_of(uint64_t seed, int rank, uint64_t count) {
    Values values(count);
    for (uint64_t i = 0; i < count; ++i) {
        uint64_t bits = hash(seed, static_cast<uint64_t>(rank) + 1, i);
        float fraction = static_cast<float>(static_cast<int64_t>(bits >> 40) - (int64_t{1} << 23)) / 8388608.0f;
        values[i] = std::ldexp(fraction, static_cast<int>(hash(seed, 0, i / 100) % 40) - 20);
        if (bits % 5003 == 0) values[i] = INFINITY;
        if (bits % 5003 == 1) values[i] = NAN;
    }
    return values;
}

// What arrives of values that travel.
Values travelled(const float* values, uint64_t count, int wire) {
    Values out(count);
    if (wire == wire_bf16) {
        std::vector<uint16_t> codes(count);
        hpn::bf16_encode(codes.data(), values, count);
        hpn::bf16_decode(out.data(), codes.data(), count);
    } else {
        std::vector<uint8_t> codes(hpn::e4m3_bytes(count));
        hpn::e4m3_encode(codes.data(), values, count);
        hpn::e4m3_decode(out.data(), codes.data(), count);
    }
    return out;
}

bool same(const float* a, const float* b, uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) {
        if (std::isnan(a[i]) ? !std::isnan(b[i]) : std::memcmp(a + i, b + i, sizeof(float)) != 0) return false;
    }
    return true;
}

// The sum of `count` values from `begin`, of which `owner` adds up: its own do not travel.
Values reduced(const std::vector<Values>& inputs, uint64_t begin, uint64_t count, int owner, int op, int wire) {
    Values total;
    for (size_t rank = 0; rank < inputs.size(); ++rank) {
        const float* from = inputs[rank].data() + begin;
        Values part = static_cast<int>(rank) == owner ? Values(from, from + count) : travelled(from, count, wire);
        if (rank == 0) total = part;
        else for (uint64_t i = 0; i < count; ++i) total[i] += part[i];
    }
    if (op == avg) for (float& value : total) value /= static_cast<float>(inputs.size());
    return total;
}

struct Case {
    int size;
    uint64_t slot_bytes;
    bool left;
};
constexpr Case cases[] = {{1, 2000, false}, {2, 1024, true}, {2, 4096, false}, {3, 1000, false}, {3, 9000, true}, {5, 2560, true}};
constexpr uint64_t counts[] = {0, 1, 127, 128, 129, 383, 1000, 5000, 20'011};

std::vector<Values> inputs_of(int size, uint64_t seed, uint64_t count) {
    std::vector<Values> inputs;
    for (int rank = 0; rank < size; ++rank) inputs.push_back(values_of(seed, rank, count));
    return inputs;
}

int complete(intptr_t operation, bool left) { return finish(left ? leave(operation) : operation); }

void test_all_reduce(const Case& which, int wire, int op) {
    Job job(which.size, which.left);
    Team& team = job.everybody(which.slot_bytes);
    for (uint64_t count : counts) {
        std::vector<Values> inputs = inputs_of(which.size, count, count);
        std::vector<Values> outputs = inputs;
        job.run([&](int rank) {
            float* data = outputs[static_cast<size_t>(rank)].data();
            CHECK_EQ(complete(hpn_wire_all_reduce(team[rank], data, count, op, wire), which.left), 1);
        });
        for (const Values& output : outputs) CHECK(same(output.data(), outputs[0].data(), count));
        // Whoever owns a block added it up, and sent the result: one rank or another, nothing between.
        for (uint64_t begin = 0; begin < count; begin += block) {
            uint64_t length = std::min(block, count - begin);
            bool found = false;
            for (int owner = 0; owner < which.size && !found; ++owner) {
                Values sum = reduced(inputs, begin, length, owner, op, wire);
                found = same(outputs[0].data() + begin, travelled(sum.data(), length, wire).data(), length);
            }
            CHECK_TOLD(found, std::to_string(which.size) + " ranks, count " + std::to_string(count) + " wire " +
                                  std::to_string(wire) + " from " + std::to_string(begin));
        }
    }
}

// Pieces of all ranks, some of them empty; the same counts or, where they are equal, none.
std::vector<uint64_t> pieces_of(int size, uint64_t count, bool uneven) {
    std::vector<uint64_t> pieces;
    for (int rank = 0; rank < size; ++rank) {
        uint64_t bits = hash(count, 77, static_cast<uint64_t>(rank));
        pieces.push_back(!uneven ? count : bits % 4 == 0 ? 0 : bits % (count + 300));
    }
    return pieces;
}

void test_reduce_scatter(const Case& which, int wire, int op, bool uneven) {
    Job job(which.size, which.left);
    Team& team = job.everybody(which.slot_bytes);
    for (uint64_t count : counts) {
        std::vector<uint64_t> pieces = pieces_of(which.size, count, uneven);
        uint64_t total = std::accumulate(pieces.begin(), pieces.end(), uint64_t{0});
        std::vector<Values> inputs = inputs_of(which.size, count, total);
        job.run([&](int rank) {
            size_t me = static_cast<size_t>(rank);
            uint64_t begin = std::accumulate(pieces.begin(), pieces.begin() + rank, uint64_t{0});
            Values output(pieces[me]), before = inputs[me];
            intptr_t operation = hpn_wire_reduce_scatter(team[rank], inputs[me].data(), output.data(), count,
                                                         uneven ? pieces.data() : nullptr, op, wire);
            CHECK_EQ(complete(operation, which.left), 1);
            CHECK(same(output.data(), reduced(inputs, begin, pieces[me], rank, op, wire).data(), pieces[me]));
            CHECK(same(before.data(), inputs[me].data(), total));
        });
    }
}

void test_all_gather(const Case& which, int wire, bool uneven) {
    Job job(which.size, which.left);
    Team& team = job.everybody(which.slot_bytes);
    for (uint64_t count : counts) {
        std::vector<uint64_t> pieces = pieces_of(which.size, count, uneven);
        std::vector<Values> inputs;
        Values expected;
        for (int rank = 0; rank < which.size; ++rank) {
            inputs.push_back(values_of(count, rank, pieces[static_cast<size_t>(rank)]));
            Values part = travelled(inputs.back().data(), inputs.back().size(), wire);
            expected.insert(expected.end(), part.begin(), part.end());
        }
        job.run([&](int rank) {
            Values output(expected.size());
            intptr_t operation = hpn_wire_all_gather(team[rank], inputs[static_cast<size_t>(rank)].data(), output.data(),
                                                     count, uneven ? pieces.data() : nullptr, wire);
            CHECK_EQ(complete(operation, which.left), 1);
            CHECK(same(output.data(), expected.data(), expected.size()));
        });
    }
}

void test_refused() {
    Job job(2);
    Team& team = job.everybody();
    Team& narrow = job.everybody(64);
    Values data(1000, 1.0f), other(2000, 1.0f);
    CHECK_EQ(hpn_wire_all_reduce(team[0], data.data(), 1000, max, wire_bf16), 0);
    CHECK_EQ(hpn_error_code(), invalid);
    for (int wire : {-1, 0, 3}) {
        CHECK_EQ(hpn_wire_all_reduce(team[0], data.data(), 1000, sum, wire), 0);
        CHECK_EQ(hpn_error_code(), invalid);
        CHECK_EQ(hpn_wire_reduce_scatter(team[0], other.data(), data.data(), 1000, nullptr, sum, wire), 0);
        CHECK_EQ(hpn_wire_all_gather(team[0], data.data(), other.data(), 1000, nullptr, wire), 0);
    }
    CHECK_EQ(hpn_wire_reduce_scatter(team[0], other.data(), data.data(), 1000, nullptr, product, wire_e4m3), 0);
    CHECK_EQ(hpn_error_code(), invalid);
    // Not a block fits into what goes to one rank.
    CHECK_EQ(hpn_wire_all_reduce(narrow[0], data.data(), 1000, sum, wire_bf16), 0);
    CHECK_EQ(hpn_error_code(), invalid);
    CHECK_EQ(hpn_wire_all_gather(narrow[0], data.data(), other.data(), 1000, nullptr, wire_e4m3), 0);
    CHECK_EQ(hpn_error_code(), invalid);
    // Nothing of that was put into the queue.
    job.run([&](int rank) { CHECK_EQ(finish(hpn_barrier(team[rank])), 1); });
}

// Different wires, counts or operations, or one that is not in low precision: errors on both, not wrong values.
void test_different_calls() {
    using Start = std::function<intptr_t(hpn_group*, float*)>;
    auto reduce = [](uint64_t count, int op, int wire) -> Start {
        return [=](hpn_group* group, float* data) { return hpn_wire_all_reduce(group, data, count, op, wire); };
    };
    Start plain = [](hpn_group* group, float* data) { return hpn_all_reduce(group, data, 1000, f32, sum); };
    for (const Start& second : {reduce(1000, sum, wire_e4m3), reduce(999, sum, wire_bf16), reduce(1000, avg, wire_bf16), plain}) {
        Job job(2);
        Team& team = job.everybody();
        job.run([&](int rank) {
            Values data(1000, 1.0f);
            const Start first = reduce(1000, sum, wire_bf16);
            CHECK_EQ(finish((rank == 0 ? first : second)(team[rank], data.data())), mismatch);
        });
    }
}

}  // namespace

int main() {
    limit_time(400);
    for (const Case& which : cases) {
        for (int wire : {wire_bf16, wire_e4m3}) {
            for (int op : {sum, avg}) {
                test_all_reduce(which, wire, op);
                for (bool uneven : {false, true}) test_reduce_scatter(which, wire, op, uneven);
            }
            for (bool uneven : {false, true}) test_all_gather(which, wire, uneven);
        }
    }
    test_refused();
    test_different_calls();
    return hpn::check::report();
}
