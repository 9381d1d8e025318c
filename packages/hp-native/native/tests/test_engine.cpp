// SPDX-License-Identifier: Apache-2.0
// The thread that goes on with what nobody waits for: it does, it rests where there is nothing, it wakes again.
#include <sys/resource.h>

#include "calls.h"

namespace {

using namespace hpn::ranks;

double cpu_seconds() {
    rusage used;
    getrusage(RUSAGE_SELF, &used);
    return static_cast<double>(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
           static_cast<double>(used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1e-6;
}

// Nobody waits, and yet it gets done: many steps, which need all ranks again and again.
void test_completes_by_itself() {
    Job job(3);
    Team& team = job.everybody();
    Spec spec{all_reduce, f32, sum, 40'000, {}, 0, false, 3};
    std::deque<Call> calls;
    std::vector<intptr_t> operations;
    for (int rank = 0; rank < 3; ++rank) {
        calls.emplace_back(spec, 3, rank);
        operations.push_back(leave(calls.back().start(team[rank])));
    }
    // Nothing drives it here meanwhile, and the wait has no time to.
    std::this_thread::sleep_for(std::chrono::milliseconds(1000));
    for (intptr_t operation : operations) CHECK_EQ(wait_for(operation, 0.0), 1);
    for (Call& call : calls) CHECK_EQ(call.complaint(), std::string());
}

void test_rests() {
    Job job(2);
    Team& team = job.everybody();
    job.run([&](int rank) { CHECK_EQ(finish(leave(hpn_barrier(team[rank]))), 1); });
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    double before = cpu_seconds();
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    CHECK_TOLD(cpu_seconds() - before < 0.02, std::to_string(cpu_seconds() - before));
    // One that waits for somebody else takes little, too.
    intptr_t operation = leave(hpn_barrier(team[0]));
    before = cpu_seconds();
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    CHECK_TOLD(cpu_seconds() - before < 0.1, std::to_string(cpu_seconds() - before));
    CHECK_EQ(finish(hpn_barrier(team[1])), 1);
    CHECK_EQ(finish(operation), 1);
}

// Parked and woken thousands of times: a wake that got lost would cost a time limit.
void test_wakes_again() {
    Job job(2);
    Team& team = job.everybody();
    job.run([&](int rank) {
        char byte = 0;
        for (int round = 0; round < 3000; ++round) {
            // A message, as only the engine of the receiver goes on with it.
            hpn_message message{rank == round % 2, 1 - rank, 1, &byte, 1};
            intptr_t operation = leave(hpn_batch(team[rank], &message, 1));
            if (round % 7 == 0) std::this_thread::sleep_for(std::chrono::microseconds(round % 90));
            CHECK_EQ(finish(operation, 30), 1);
        }
    });
}

void test_ends_with_work_left() {
    for (int turn = 0; turn < 30; ++turn) {
        Job job(2);
        Team& team = job.everybody();
        intptr_t operation = leave(hpn_barrier(team[0]));
        if (turn % 2 == 0) std::this_thread::sleep_for(std::chrono::microseconds(turn * 20));
        team.close(0);
        CHECK_EQ(finish(operation), aborted);
    }
}

void test_sees_the_abort() {
    Job job(2);
    Team& team = job.everybody();
    char byte = 0;
    hpn_message message{0, 1, 1, &byte, 1};
    intptr_t operation = leave(hpn_batch(team[0], &message, 1));
    hpn_domain_abort(job.domain(1));
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    CHECK_EQ(hpn_test(operation), aborted);
    hpn_drop(operation);
}

}  // namespace

int main() {
    limit_time(400);
    test_completes_by_itself();
    test_rests();
    test_wakes_again();
    test_ends_with_work_left();
    test_sees_the_abort();
    return hpn::check::report();
}
