// SPDX-License-Identifier: Apache-2.0
// Waking, giving up, and seeing that a process has ended.
#include <sys/syscall.h>
#include <sys/wait.h>

#include "../core/domain.h"
#include "ranks.h"

namespace {

using namespace hpn::ranks;
using hpn::Domain;

struct Two {
    Mapping memory{hpn::domain_bytes(2)};
    Domain first{memory.start(), 2, 0, {-1, -1}, true};
    Domain second{memory.start(), 2, 1, {-1, -1}, true};
};

// Two threads hand a number to and fro: a ring that gets lost would cost a whole sleep.
void test_no_ring_is_lost() {
    Two two;
    std::atomic<int> turn{0};
    constexpr int num_turns = 20'000;
    double start = seconds_now();
    auto play = [&](Domain& own, int other, int parity) {
        for (int mine = parity; mine < num_turns; mine += 2) {
            while (turn.load(std::memory_order_acquire) != mine) {
                Domain::Sleep sleep(own);
                if (turn.load(std::memory_order_acquire) != mine) sleep.sleep(20'000'000'000);
            }
            turn.store(mine + 1, std::memory_order_release);
            own.ring(other);
        }
    };
    std::thread thread([&] { play(two.second, 0, 1); });
    play(two.first, 1, 0);
    thread.join();
    CHECK_EQ(turn.load(), num_turns);
    CHECK(seconds_now() - start < 19);
}

void test_sleep_ends_after_its_time() {
    Two two;
    double start = seconds_now();
    {
        Domain::Sleep sleep(two.first);
        sleep.sleep(30'000'000);
    }
    double took = seconds_now() - start;
    CHECK(took > 0.025 && took < 5);
}

void test_first_abort_counts() {
    Two two;
    CHECK(!two.first.aborted());
    two.second.abort();
    two.first.abort();
    CHECK(two.first.aborted() && two.second.aborted());
    CHECK_EQ(two.first.aborter(), 1);
    CHECK_EQ(two.first.pid(two.first.aborter()), getpid());
}

// A child that has ended counts as gone although nobody has reaped it, with a pidfd and without.
void test_zombie_is_gone() {
    for (bool with_pidfd : {true, false}) {
        Mapping memory(hpn::domain_bytes(2));
        int stay[2];
        CHECK_EQ(pipe(stay), 0);
        pid_t child = fork();
        if (child == 0) {
            close(stay[1]);
            Domain own(memory.start(), 2, 1, {-1, -1}, true);
            char end = 0;
            static_cast<void>(!read(stay[0], &end, 1));
            _exit(0);
        }
        int pidfd = with_pidfd ? static_cast<int>(syscall(SYS_pidfd_open, child, 0)) : -1;
        Domain own(memory.start(), 2, 0, {-1, pidfd}, true);
        CHECK(!own.gone(0));
        while (own.pid(1) == 0) std::this_thread::yield();
        CHECK(!own.gone(1));
        close(stay[1]);
        close(stay[0]);
        double start = seconds_now();
        while (!own.gone(1) && seconds_now() - start < 10) std::this_thread::yield();
        CHECK(own.gone(1));
        waitpid(child, nullptr, 0);
        CHECK(own.gone(1));
    }
}

// A process that ended before it opened its end of the domain: it never said who it is, so whoever made it has to.
void test_one_that_never_came_is_gone() {
    for (bool with_pidfd : {true, false}) {
        Mapping memory(hpn::domain_bytes(2));
        pid_t child = fork();
        if (child == 0) _exit(0);
        int pidfd = with_pidfd ? static_cast<int>(syscall(SYS_pidfd_open, child, 0)) : -1;
        Domain own(memory.start(), 2, 0, {-1, pidfd}, true, {getpid(), child});
        CHECK_EQ(own.pid(1), child);
        double start = seconds_now();
        while (!own.gone(1) && seconds_now() - start < 10) std::this_thread::yield();
        CHECK(own.gone(1));
        CHECK(!own.gone(0));
        waitpid(child, nullptr, 0);
    }
}

}  // namespace

int main() {
    limit_time(400);
    test_one_that_never_came_is_gone();
    test_zombie_is_gone();  // forks: before there are threads
    test_no_ring_is_lost();
    test_sleep_ends_after_its_time();
    test_first_abort_counts();
    return hpn::check::report();
}
