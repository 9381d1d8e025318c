// SPDX-License-Identifier: Apache-2.0
// Real processes over one memory file: ends, deaths at random moments, stops.
#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <random>

#include "calls.h"

#if defined(__SANITIZE_THREAD__)
// It would have every process that ends sleep for a second first, and here it counts how soon they do.
extern "C" __attribute__((visibility("default"))) const char* __tsan_default_options() { return "atexit_sleep_ms=0"; }
#endif

namespace {

using namespace hpn::ranks;

constexpr int num_ranks = 4;
constexpr uint64_t slot_bytes = 4096;

int memory_file(uint64_t bytes) {
    int fd = memfd_create("hp-native-test", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, static_cast<off_t>(bytes)) != 0) abort();
    return fd;
}

void* map(int fd, uint64_t bytes) {
    void* start = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (start == MAP_FAILED) abort();
    return start;
}

// A job of processes forked from this one, which takes no part itself.
class Processes {
public:
    using Body = std::function<int(int rank, hpn_domain* domain, hpn_group* group)>;

    // What `body` returns is the process's exit status.
    explicit Processes(const Body& body) {
        hpn_group_layout plan = hpn_group_plan(num_ranks, 0, slot_bytes);
        int domain_file = memory_file(hpn_domain_bytes(num_ranks));
        int group_file = memory_file(plan.total_bytes);
        for (int rank = 0; rank < num_ranks; ++rank) {
            CHECK_EQ(pipe(pipes_[rank]), 0);
            if (rank == 0) CHECK_EQ(pipe(ready_), 0);
            pids_[rank] = fork();
            if (pids_[rank] == 0) _exit(be(rank, domain_file, group_file, body));
        }
        for (int rank = 0; rank < num_ranks; ++rank) {
            pidfds_[rank] = static_cast<int>(syscall(SYS_pidfd_open, pids_[rank], 0));
            CHECK(write(pipes_[rank][1], pids_, sizeof(pids_)) == sizeof(pids_));
            close(pipes_[rank][0]);
            close(pipes_[rank][1]);
        }
        close(domain_file);
        close(group_file);
        close(ready_[1]);
        char one = 0;
        for (int rank = 0; rank < num_ranks; ++rank) CHECK_EQ(read(ready_[0], &one, 1), 1);
        close(ready_[0]);
    }
    ~Processes() {
        for (int rank = 0; rank < num_ranks; ++rank) {
            if (!reaped_[rank]) {
                kill(pids_[rank], SIGKILL);
                waitpid(pids_[rank], nullptr, 0);
            }
            close(pidfds_[rank]);
        }
    }
    Processes(const Processes&) = delete;
    Processes& operator=(const Processes&) = delete;

    void signal(int rank, int number) const { kill(pids_[rank], number); }
    // Whether it ends in time; not reaped, as a launcher may take its time too.
    bool ends(int rank, double seconds) const {
        pollfd ask{pidfds_[rank], POLLIN, 0};
        return poll(&ask, 1, static_cast<int>(seconds * 1000)) == 1;
    }
    // Its exit status, or minus the signal that ended it.
    int status(int rank) {
        int status = 0;
        waitpid(pids_[rank], &status, 0);
        reaped_[rank] = true;
        return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    }

private:
    int be(int rank, int domain_file, int group_file, const Body& body) {
        limit_time(300);
        int pids[num_ranks];
        if (read(pipes_[rank][0], pids, sizeof(pids)) != sizeof(pids)) return 100;
        int pidfds[num_ranks];
        int processes[num_ranks];
        for (int other = 0; other < num_ranks; ++other) {
            // Half of the jobs without: /proc is asked then.
            pidfds[other] = pids[0] % 2 == 0 ? -1 : static_cast<int>(syscall(SYS_pidfd_open, pids[other], 0));
            processes[other] = other;
        }
        hpn_group_layout plan = hpn_group_plan(num_ranks, rank, slot_bytes);
        if (hpn_allocate(domain_file, 0, hpn_domain_bytes(num_ranks)) != 0) return 101;
        if (hpn_allocate(group_file, 0, plan.control_bytes) != 0) return 101;
        if (hpn_allocate(group_file, plan.staging_offset, plan.staging_bytes) != 0) return 101;
        void* domain_memory = map(domain_file, hpn_domain_bytes(num_ranks));
        hpn_domain* domain = hpn_domain_open(domain_memory, num_ranks, rank, pids, pidfds, 1);
        if (domain == nullptr) return 102;
        hpn_group* group = hpn_group_open(domain, map(group_file, plan.total_bytes), group_file, rank, num_ranks,
                                          processes, slot_bytes);
        if (group == nullptr) return 103;
        bool there = finish(hpn_barrier(group)) == 1 && write(ready_[1], "", 1) == 1;
        return there ? body(rank, domain, group) : 104;
    }

    pid_t pids_[num_ranks] = {};
    int pidfds_[num_ranks] = {};
    int pipes_[num_ranks][2] = {};  // the ids of all, for each
    int ready_[2] = {};             // from all: past the first barrier
    bool reaped_[num_ranks] = {};
};

constexpr int ended_well = 7;    // the exit status of a rank that was told what happened
constexpr int came_out_wrong = 8;

// Collectives and messages until something fails.
int communicate(int rank, hpn_domain* domain, hpn_group* group) {
    std::mt19937 random(static_cast<unsigned>(rank));
    for (uint64_t round = 0;; ++round) {
        Spec spec{static_cast<int>(round % num_kinds), f32, sum, hash(1, 2, round) % 9000, {}, 1, false, round};
        Call call(spec, num_ranks, rank);
        intptr_t operation = call.start(group);
        if (round % 3 == 0) leave(operation);
        int result = finish(operation);
        if (result == 1 && !call.complaint().empty()) return came_out_wrong;
        if (result == 1 && round % 5 == 0) {
            std::vector<char> out(300'000), in(300'000);
            int32_t next = (rank + 1) % num_ranks, before = (rank + num_ranks - 1) % num_ranks;
            hpn_message messages[] = {{1, next, round, out.data(), out.size()}, {0, before, round, in.data(), in.size()}};
            result = finish(hpn_batch(group, messages, 2));
        }
        if (result == peer_gone) hpn_domain_abort(domain);  // as the library above does
        if (result != 1) return result == peer_gone || result == aborted ? ended_well : 9;
    }
}

void test_deaths(int num_jobs) {
    std::mt19937 random(7);
    for (int turn = 0; turn < num_jobs; ++turn) {
        Processes job(communicate);
        int victim = static_cast<int>(random() % num_ranks);
        std::this_thread::sleep_for(std::chrono::microseconds(5000 + random() % 30'000));
        job.signal(victim, SIGKILL);
        double start = seconds_now();
        for (int rank = 0; rank < num_ranks; ++rank) {
            if (rank == victim) continue;
            CHECK(job.ends(rank, 10));
            CHECK_TOLD(seconds_now() - start < 1.0, std::to_string(seconds_now() - start));
        }
        for (int rank = 0; rank < num_ranks; ++rank) CHECK_EQ(job.status(rank), rank == victim ? -SIGKILL : ended_well);
    }
}

// Whoever only asks, and never waits, sees a death as well.
void test_death_seen_by_asking() {
    for (int turn = 0; turn < 2; ++turn) {
        Processes job([](int rank, hpn_domain*, hpn_group* group) {
            if (rank == 2) raise(SIGKILL);
            intptr_t operation = hpn_barrier(group);
            int result = 0;
            while ((result = hpn_test(operation)) == 0) sched_yield();
            return result == peer_gone ? ended_well : 9;
        });
        for (int rank : {0, 1, 3}) CHECK(job.ends(rank, 10));
        for (int rank = 0; rank < num_ranks; ++rank) CHECK_EQ(job.status(rank), rank == 2 ? -SIGKILL : ended_well);
    }
}

// A rank that has done its part may go: what it left behind is enough for the others.
void test_early_leaver() {
    for (int turn = 0; turn < 10; ++turn) {
        Processes job([turn](int rank, hpn_domain*, hpn_group* group) {
            Spec spec{turn % num_kinds, f32, sum, 3000, {}, 0, false, 9};
            Call call(spec, num_ranks, rank);
            if (rank == 3) std::this_thread::sleep_for(std::chrono::milliseconds(10 * turn));
            if (finish(call.start(group)) != 1 || !call.complaint().empty()) return came_out_wrong;
            char data[100] = {};
            hpn_message message{rank == 0, rank == 0 ? 3 : 0, 1, data, sizeof(data)};
            if (rank == 1 || rank == 2) return 0;
            if (rank == 3) std::this_thread::sleep_for(std::chrono::milliseconds(100));
            return finish(hpn_batch(group, &message, 1)) == 1 ? 0 : 10;  // rank 0 is gone when 3 takes it
        });
        for (int rank = 0; rank < num_ranks; ++rank) CHECK_EQ(job.status(rank), 0);
    }
}

void test_stopped() {
    Processes job([](int rank, hpn_domain*, hpn_group* group) {
        if (rank == 2) {
            raise(SIGSTOP);
            return finish(hpn_barrier(group)) == 1 ? 0 : 11;
        }
        intptr_t operation = hpn_barrier(group);
        double start = seconds_now();
        if (wait_for(operation, 0.3) != 0) return 12;
        if (seconds_now() - start > 5) return 13;
        return wait_for(operation, 30) == 1 ? 0 : 14;
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(1000));
    job.signal(2, SIGCONT);
    for (int rank = 0; rank < num_ranks; ++rank) CHECK_EQ(job.status(rank), 0);
}

// A child forked from a process that communicates is told so.
void test_forked_child() {
    Job job(1);
    Team& team = job.everybody();
    pid_t child = fork();
    if (child == 0) _exit(hpn_barrier(team[0]) == 0 && hpn_error_code() == invalid ? 0 : 1);
    int status = 1;
    waitpid(child, &status, 0);
    CHECK_EQ(status, 0);
    CHECK_EQ(finish(hpn_barrier(team[0])), 1);
}

}  // namespace

int main(int argc, char** argv) {
    limit_time(400);
    test_early_leaver();
    test_stopped();
    test_forked_child();
    test_death_seen_by_asking();
    test_deaths(argc > 1 ? std::atoi(argv[1]) : 50);
    return hpn::check::report();
}
