// SPDX-License-Identifier: Apache-2.0
// Ranks that share a core move apart; stores go past the caches where those through them are slow.
#include <sched.h>

#include <chrono>
#include <thread>

#include "../core/cores.h"
#include "../core/domain.h"
#include "../core/publish.h"
#include "ranks.h"

namespace {

using namespace hpn::ranks;
using hpn::StorePace;

cpu_set_t allowed_cores() {
    cpu_set_t cores;
    CHECK_EQ(sched_getaffinity(0, sizeof(cores), &cores), 0);
    return cores;
}

void restrict_to(const cpu_set_t& cores) { CHECK_EQ(sched_setaffinity(0, sizeof(cores), &cores), 0); }

void test_moving_off_a_core_leaves_the_thread_as_free_as_it_was() {
    cpu_set_t before = allowed_cores();
    int start = hpn::current_core();
    int now = hpn::move_off({start});
    if (CPU_COUNT(&before) == 1) {
        CHECK_EQ(now, -1);
    } else {
        CHECK(now >= 0 && now != start);
    }
    cpu_set_t after = allowed_cores();
    CHECK(CPU_EQUAL(&before, &after) != 0);
}

void test_a_thread_that_may_go_nowhere_else_stays() {
    cpu_set_t before = allowed_cores();
    int core = hpn::current_core();
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(static_cast<size_t>(core), &one);
    restrict_to(one);
    CHECK_EQ(hpn::move_off({core}), -1);
    CHECK_EQ(hpn::current_core(), core);
    restrict_to(before);
}

// Two ranks that were put on one core: the one that waits goes to another, once.
void test_ranks_that_share_a_core_move_apart() {
    cpu_set_t before = allowed_cores();
    Mapping memory(hpn::domain_bytes(2));
    hpn::Domain first(memory.start(), 2, 0, {-1, -1}, false);
    hpn::Domain second(memory.start(), 2, 1, {-1, -1}, false);
    int core = hpn::current_core();
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(static_cast<size_t>(core), &one);
    restrict_to(one);
    second.here();
    restrict_to(before);  // which moves nobody
    bool shared = hpn::current_core() == core;
    first.keep_apart(10'000'000);
    if (shared && CPU_COUNT(&before) > 1) CHECK(hpn::current_core() != core);
    // Asked again within a millisecond it does nothing, even if they met again.
    restrict_to(one);
    restrict_to(before);
    shared = hpn::current_core() == core;
    first.keep_apart(10'500'000);
    if (shared) CHECK_EQ(hpn::current_core(), core);
}

void test_copies_are_fast_until_some_in_a_row_are_slow() {
    constexpr uint64_t bytes = 256u << 10;
    constexpr int64_t fast = bytes / 10, slow = bytes / 2;  // nanoseconds
    StorePace pace;
    for (int i = 0; i < 16; ++i) pace.went_through(bytes, 100 * slow);  // the slots' pages come
    for (int i = 0; i < 100; ++i) pace.went_through(bytes, i % 3 == 2 ? fast : slow);
    CHECK(!pace.past_caches());
    int num_slow = 0;
    for (; !pace.past_caches() && num_slow < 10; ++num_slow) pace.went_through(bytes, slow);
    CHECK(num_slow >= 2 && num_slow <= 3);
    int num_past = 0;
    for (; pace.past_caches() && num_past < 1'000'000; ++num_past) pace.went_past();
    CHECK_EQ(num_past, 1000);
    pace.went_through(bytes, slow);  // one look
    CHECK(pace.past_caches());
    while (pace.past_caches()) pace.went_past();
    pace.went_through(bytes, fast);
    pace.went_through(bytes, slow);
    CHECK(!pace.past_caches());
}

}  // namespace

int main() {
    limit_time(100);
    test_moving_off_a_core_leaves_the_thread_as_free_as_it_was();
    test_a_thread_that_may_go_nowhere_else_stays();
    test_ranks_that_share_a_core_move_apart();
    test_copies_are_fast_until_some_in_a_row_are_slow();
    return hpn::check::report();
}
