// SPDX-License-Identifier: Apache-2.0
// What a group does when something goes wrong: different calls, time limits, operations given up, failing, closing, aborts.
#include "calls.h"

namespace {

using namespace hpn::ranks;

std::string why() { return hpn_error(); }
bool told(const std::string& text) { return why().find(text) != std::string::npos; }

// The rank that notices says what differs; the others fail as soon as somebody aborts.
void test_different_calls() {
    std::vector<std::pair<Spec, Spec>> pairs;
    pairs.push_back({{all_reduce, f32, sum, 100}, {all_reduce, f32, sum, 101}});
    pairs.push_back({{all_reduce, f32, sum, 100}, {all_reduce, i32, sum, 100}});
    pairs.push_back({{all_reduce, f32, sum, 100}, {all_reduce, f32, max, 100}});
    pairs.push_back({{all_reduce, f32, sum, 100'000}, {barrier}});
    pairs.push_back({{all_gather, u8, sum, 0, {1, 2, 3}}, {all_gather, u8, sum, 0, {2, 1, 3}}});
    pairs.push_back({{reduce_scatter, f32, sum, 0, {1, 2, 3}}, {reduce_scatter, f32, sum, 0, {3, 2, 1}}});
    pairs.push_back({{broadcast, u8, sum, 100}, {broadcast, u8, sum, 50'000}});
    pairs.push_back({{all_to_all, u8, sum, 100}, {all_to_all, u8, sum, 99}});
    pairs.push_back({{all_to_all, u8, sum, 10'000}, {all_gather, u8, sum, 10'000}});
    for (auto& [most, last] : pairs) {
        Job job(3);
        Team& team = job.everybody();
        std::atomic<int> num_mismatches{0};
        std::atomic<int> num_failed{0};
        job.run([&, &others = most, &different = last](int rank) {
            Call call(rank == 2 ? different : others, 3, rank);
            int result = finish(call.start(team[rank]), 30);
            if (result == mismatch) {
                ++num_mismatches;
                CHECK_TOLD(told("rank "), why());
                hpn_domain_abort(job.domain(rank));
            }
            // Who could not notice finds out with a later call.
            while (result == 1) result = finish(hpn_barrier(team[rank]), 30);
            if (result == mismatch || result == aborted) ++num_failed;
            if (result == mismatch) hpn_domain_abort(job.domain(rank));
        });
        CHECK_TOLD(num_mismatches > 0, most.text());
        CHECK_EQ(num_failed.load(), 3);
    }
}

// No rank waits for anything but its source: that sources differ is found with the next call.
void test_different_sources() {
    Job job(3);
    Team& team = job.everybody();
    std::atomic<int> num_mismatches{0};
    job.run([&](int rank) {
        char data[100] = {};
        int result = finish(hpn_broadcast(team[rank], data, sizeof(data), rank == 1 ? 1 : 0), 20);
        if (result == 1) result = finish(hpn_barrier(team[rank]), 20);
        num_mismatches += result == mismatch;
        CHECK(result < 0);
        hpn_domain_abort(job.domain(rank));
    });
    CHECK(num_mismatches > 0);
}

void test_refused_arguments() {
    Job job(2);
    Team& team = job.everybody();
    int other = 1;
    int processes[] = {0, 1};
    char data[64] = {};
    uint64_t sends[] = {8, 8};
    uint64_t receives[] = {4, 8};
    CHECK_EQ(hpn_all_reduce(team[0], data, 4, 42, sum), 0);
    CHECK_EQ(hpn_error_code(), invalid);
    CHECK_EQ(hpn_all_reduce(team[0], data, 4, f32, band), 0);
    CHECK_EQ(hpn_all_reduce(team[0], data, 4, i32, avg), 0);
    CHECK_EQ(hpn_broadcast(team[0], data, 4, 2), 0);
    CHECK_EQ(hpn_error_code(), invalid);
    CHECK_EQ(hpn_broadcast(team[0], data, 4, -1), 0);
    // A rank that sends itself more than it expects would write behind its output.
    CHECK_EQ(hpn_all_to_all(team[0], data, data + 32, 0, sends, receives), 0);
    CHECK_EQ(hpn_error_code(), invalid);
    CHECK(hpn_group_open(job.domain(0), data, -1, 0, 0, processes, 4096) == nullptr);
    CHECK(hpn_group_open(job.domain(0), data, -1, 2, 2, processes, 4096) == nullptr);
    CHECK(hpn_group_open(job.domain(0), data, -1, 0, 1, processes, 0) == nullptr);
    processes[1] = 7;
    CHECK(hpn_group_open(job.domain(0), data, -1, 0, 2, processes, 4096) == nullptr);
    CHECK(hpn_domain_open(data, 1, 1, nullptr, &other, 1) == nullptr);
    // Nothing of that was put into the queue.
    job.run([&](int rank) { CHECK_EQ(finish(hpn_barrier(team[rank])), 1); });
}

void test_time_limit_then_drop() {
    for (bool left : {false, true}) {
        Job job(2);
        Team& team = job.everybody();
        std::vector<float> data(50'000, 1.0f);
        intptr_t operation = hpn_all_reduce(team[0], data.data(), data.size(), f32, sum);
        if (left) leave(operation);
        double start = seconds_now();
        CHECK_EQ(wait_for(operation, 0.15), 0);
        double took = seconds_now() - start;
        CHECK(took > 0.14 && took < 5);
        CHECK_EQ(hpn_test(operation), 0);
        CHECK_EQ(wait_for(operation, 0.0), 0);
        intptr_t behind = hpn_barrier(team[0]);
        hpn_drop(operation);
        data = {};  // nobody touches it any more
        CHECK_EQ(wait_for(behind, 10), aborted);
        CHECK_EQ(hpn_barrier(team[0]), 0);
        CHECK_EQ(hpn_error_code(), aborted);
        // The other rank was not told; the domain does that.
        std::vector<float> other(50'000);
        intptr_t theirs = hpn_all_reduce(team[1], other.data(), other.size(), f32, sum);
        CHECK_EQ(wait_for(theirs, 0.02), 0);
        hpn_domain_abort(job.domain(0));
        CHECK_EQ(wait_for(theirs, 10), aborted);
    }
}

void test_wait_after_time_limit_goes_on() {
    Job job(2);
    Team& team = job.everybody();
    job.run([&](int rank) {
        Spec spec{all_reduce, f32, sum, 20'000, {}, 0, false, 5};
        Call call(spec, 2, rank);
        if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(100));
        intptr_t operation = call.start(team[rank]);
        int result = 0;
        int num_limits = 0;
        while (result == 0) {
            result = wait_for(operation, 0.01);
            num_limits += result == 0;
        }
        CHECK_EQ(result, 1);
        CHECK(rank == 1 || num_limits > 0);
        CHECK_EQ(call.complaint(), std::string());
    });
}

// Dropping, failing and closing while other threads wait, and with operations that are never waited for.
void test_ends_while_others_wait() {
    for (int way = 0; way < 3; ++way) {
        Job job(2);
        Team& team = job.everybody();
        intptr_t first = leave(hpn_barrier(team[0]));
        intptr_t second = hpn_barrier(team[0]);
        std::thread waiting([&] {
            CHECK_EQ(wait_for(second, 30), aborted);
            CHECK_EQ(hpn_error_code(), aborted);
            if (way == 1) CHECK_TOLD(told("no more"), why());
        });
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        if (way == 0) hpn_drop(first);
        if (way == 1) hpn_group_fail(team[0], "no more");
        if (way == 2) hpn_domain_abort(job.domain(1));
        waiting.join();
        if (way != 0) CHECK_EQ(wait_for(first, 10), aborted);
    }
}

// Whoever only asks is told, too.
void test_asking_sees_the_abort() {
    Job job(2);
    Team& team = job.everybody();
    intptr_t operation = hpn_barrier(team[0]);
    CHECK_EQ(hpn_test(operation), 0);
    hpn_domain_abort(job.domain(1));
    double start = seconds_now();
    while (hpn_test(operation) == 0 && seconds_now() - start < 5) std::this_thread::yield();
    CHECK_EQ(hpn_test(operation), aborted);
    hpn_drop(operation);
}

void test_close_under_way() {
    Job job(2);
    Team& team = job.everybody();
    intptr_t waited = leave(hpn_barrier(team[0]));
    intptr_t tested = hpn_barrier(team[0]);
    intptr_t dropped = leave(hpn_barrier(team[0]));
    team.close(0);
    CHECK_EQ(hpn_test(tested), aborted);
    CHECK_EQ(wait_for(waited, 1), aborted);
    hpn_drop(dropped);
    hpn_drop(tested);
}

void test_abort_from_another_thread() {
    for (bool oversubscribed : {false, true}) {
        Job job(4, oversubscribed);
        Team& team = job.everybody();
        std::atomic<double> when{0};
        std::thread other([&] {
            std::this_thread::sleep_for(std::chrono::milliseconds(50));
            when = seconds_now();
            hpn_domain_abort(job.domain(3));
        });
        job.run([&](int rank) {
            if (rank == 3) return;  // never comes
            std::vector<char> data(100'000);
            CHECK_EQ(finish(hpn_all_reduce(team[rank], data.data(), data.size(), u8, sum), 30), aborted);
            CHECK_TOLD(told("gave up"), why());
            CHECK(seconds_now() - when < 1.0);
        });
        other.join();
    }
}

// Threads of one rank on groups of their own and all on one: equal calls, as their order is anybody's.
void test_many_threads() {
    constexpr int num_threads = 4;
    Job job(3);
    Team& one = job.everybody();
    std::vector<Team*> own;
    for (int i = 0; i < num_threads; ++i) own.push_back(&job.everybody());
    job.run([&](int rank) {
        std::vector<std::thread> threads;
        for (int thread = 0; thread < num_threads; ++thread) {
            threads.emplace_back([&, thread] {
                for (uint64_t round = 0; round < 40; ++round) {
                    Spec spec{static_cast<int>(round % num_kinds), f32, sum, round * 50, {}, 0, false, round};
                    spec.seed += static_cast<uint64_t>(thread) * 1000;
                    Call call(spec, 3, rank);
                    CHECK_EQ(finish(call.start((*own[static_cast<size_t>(thread)])[rank])), 1);
                    CHECK_EQ(call.complaint(), std::string());
                    Call equal({all_reduce, i32, sum, 500, {}, 0, false, 7}, 3, rank);
                    CHECK_EQ(finish(round % 2 == 0 ? leave(equal.start(one[rank])) : equal.start(one[rank])), 1);
                    CHECK_EQ(equal.complaint(), std::string());
                }
            });
        }
        for (std::thread& thread : threads) thread.join();
    });
}

}  // namespace

int main() {
    limit_time(400);
    test_different_calls();
    test_different_sources();
    test_refused_arguments();
    test_time_limit_then_drop();
    test_wait_after_time_limit_goes_on();
    test_ends_while_others_wait();
    test_asking_sees_the_abort();
    test_close_under_way();
    test_abort_from_another_thread();
    test_many_threads();
    return hpn::check::report();
}
