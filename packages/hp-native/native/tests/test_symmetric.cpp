// SPDX-License-Identifier: Apache-2.0
// Symmetric memory: put, get, signals; collectives of operands that lie in it, on some ranks or at other places.
#include "calls.h"

namespace {

using namespace hpn::ranks;

// A ring of puts and signals: what was put before a signal is there when it is seen.
void test_put_then_signal() {
    for (bool oversubscribed : {false, true}) {
        Job job(3, oversubscribed);
        Team& team = job.everybody();
        Allocation& memory = job.allocate(team, 10'000);
        job.run([&](int rank) {
            int next = (rank + 1) % 3;
            std::vector<char> data(9000), got(9000), expected(9000);
            for (uint64_t round = 1; round <= 300; ++round) {
                fill_bytes(data.data(), data.size(), round, static_cast<uint64_t>(rank));
                CHECK_EQ(hpn_put(memory[rank], next, 1000, data.data(), data.size()), 0);
                CHECK_EQ(hpn_signal(memory[rank], next, 5, 1, 1), 0);
                CHECK_EQ(hpn_wait_signal(memory[rank], 5, round, 30), 1);
                CHECK_EQ(hpn_get(memory[rank], rank, 1000, got.data(), got.size()), 0);
                fill_bytes(expected.data(), expected.size(), round, static_cast<uint64_t>((rank + 2) % 3));
                CHECK(got == expected);
                CHECK_EQ(hpn_signal(memory[rank], (rank + 2) % 3, 6, round, 0), 0);  // its buffer is free again
                CHECK_EQ(hpn_wait_signal(memory[rank], 6, round, 30), 1);
            }
            uint64_t value = 0;
            CHECK_EQ(hpn_read_signal(memory[rank], 5, &value), 0);
            CHECK_EQ(value, uint64_t{300});
            uint32_t senders[3];
            CHECK_EQ(hpn_signal_senders(memory[rank], 5, senders), 0);
            for (int sender = 0; sender < 3; ++sender) {
                CHECK_EQ(senders[sender], sender == (rank + 2) % 3 ? 300u : 0u);
            }
        });
    }
}

void test_signal_limits() {
    Job job(2);
    Team& team = job.everybody();
    Allocation& memory = job.allocate(team, 100);
    CHECK_EQ(hpn_wait_signal(memory[0], 0, 1, 0.05), 0);
    std::thread other([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        hpn_domain_abort(job.domain(1));
    });
    double start = seconds_now();
    CHECK_EQ(hpn_wait_signal(memory[0], 0, 1, 30), aborted);
    CHECK(seconds_now() - start < 1.5);
    other.join();
}

void test_refused() {
    Job job(2);
    Team& team = job.everybody();
    Allocation& memory = job.allocate(team, 100);
    char data[200] = {};
    uint64_t value = 0;
    CHECK_EQ(hpn_put(memory[0], 2, 0, data, 1), invalid);
    CHECK_EQ(hpn_put(memory[0], -1, 0, data, 1), invalid);
    CHECK_EQ(hpn_put(memory[0], 1, 0, data, 101), invalid);
    CHECK_EQ(hpn_put(memory[0], 1, 101, data, 0), invalid);
    CHECK_EQ(hpn_get(memory[0], 1, UINT64_MAX, data, 2), invalid);
    CHECK_EQ(hpn_get(memory[0], 1, 50, data, 51), invalid);
    CHECK_EQ(hpn_get(memory[0], 1, 50, data, 50), 0);
    CHECK_EQ(hpn_signal(memory[0], 1, 64, 1, 1), invalid);
    CHECK_EQ(hpn_read_signal(memory[0], -1, &value), invalid);
    uint32_t senders[2];
    CHECK_EQ(hpn_signal_senders(memory[0], 64, senders), invalid);
}

// Where not all operands lie alike, the staging is used; the results are the same.
void test_operands() {
    constexpr uint64_t half = 1 << 20;
    for (int size : {1, 2, 3, 4}) {
        Job job(size);
        Team& team = job.everybody(60'000);
        Allocation& memory = job.allocate(team, 2 * half);
        job.run([&](int rank) {
            for (uint64_t round = 0; round < 160; ++round) {
                int kind = static_cast<int>(round % 5);
                uint64_t whole = round % 3 == 0 ? 64 << 10 : 100'000 + round * 1000;
                uint64_t ranks = static_cast<uint64_t>(size);
                uint64_t bytes = kind == all_reduce || kind == broadcast ? whole : whole / ranks;
                Spec spec{kind, f32, sum, kind == all_reduce || kind == reduce_scatter ? bytes / 4 : bytes, {}, size - 1,
                          false, round};
                spec.in_place = (kind == all_gather || kind == reduce_scatter) && round % 2 == 0;
                uint64_t mode = round / 5 % 4;
                char* in = memory.part(rank) + (mode == 1 ? 64 * rank : 0);
                char* out = in + half;
                if (mode == 2 && rank == 0) in = out = nullptr;
                if (mode == 3) (round % 2 == 0 ? in : out) = nullptr;
                Call call(spec, size, rank, in, out);
                intptr_t operation = call.start(team[rank]);
                if (round % 7 == 0) leave(operation);
                CHECK_EQ(finish(operation), 1);
                CHECK_EQ(call.complaint(), std::string());
            }
        });
    }
}

}  // namespace

int main() {
    limit_time(400);
    test_put_then_signal();
    test_signal_limits();
    test_refused();
    test_operands();
    return hpn::check::report();
}
