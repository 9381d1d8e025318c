// SPDX-License-Identifier: Apache-2.0
// Ranks as threads of one process over one anonymous mapping: what a rank does to another can be seen by the thread
// sanitizer. All goes through the C ABI, which is what ships.
#pragma once

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "../include/hp_native.h"
#include "check.h"

namespace hpn::ranks {

// Error numbers, as the header lists them.
inline constexpr int invalid = -1, mismatch = -2, peer_gone = -3, aborted = -4, no_memory = -5;

// A test that hangs ends by itself, and says so.
inline void limit_time(unsigned seconds) {
    signal(SIGALRM, [](int) {
        static const char text[] = "the test hangs\n";
        static_cast<void>(!write(2, text, sizeof(text) - 1));
        abort();
    });
    alarm(seconds);
}

inline double seconds_now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Zeroed memory. A page costs nothing before it is touched.
class Mapping {
public:
    explicit Mapping(uint64_t bytes) : bytes_(bytes) {
        start_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (start_ == MAP_FAILED) std::abort();
    }
    ~Mapping() { munmap(start_, bytes_); }
    Mapping(const Mapping&) = delete;
    Mapping& operator=(const Mapping&) = delete;
    void* start() const { return start_; }

private:
    void* start_;
    uint64_t bytes_;
};

// A group: one end for each of its ranks.
struct Team {
    std::unique_ptr<Mapping> memory;
    std::vector<int> processes;
    std::vector<hpn_group*> ends;

    int size() const { return static_cast<int>(processes.size()); }
    hpn_group* operator[](int rank) const { return ends[static_cast<size_t>(rank)]; }
    void close(int rank) {
        hpn_group*& end = ends[static_cast<size_t>(rank)];
        if (end != nullptr) hpn_group_close(end);
        end = nullptr;
    }
    // The rank of a process, -1 where it is no member.
    int rank_of(int process) const {
        for (size_t rank = 0; rank < processes.size(); ++rank) {
            if (processes[rank] == process) return static_cast<int>(rank);
        }
        return -1;
    }
};

// An allocation of symmetric memory: one end for each rank of its team.
struct Allocation {
    std::unique_ptr<Mapping> memory;
    std::vector<hpn_symmetric*> ends;
    std::vector<char*> parts;

    hpn_symmetric* operator[](int rank) const { return ends[static_cast<size_t>(rank)]; }
    char* part(int rank) const { return parts[static_cast<size_t>(rank)]; }
};

// A job of `size` processes, each a thread here.
class Job {
public:
    explicit Job(int size, bool oversubscribed = true) : memory_(hpn_domain_bytes(size)) {
        std::vector<int> pidfds(static_cast<size_t>(size), -1);
        for (int me = 0; me < size; ++me) {
            domains_.push_back(
                hpn_domain_open(memory_.start(), size, me, nullptr, pidfds.data(), oversubscribed ? 1 : 0));
            if (domains_.back() == nullptr) std::abort();
        }
    }
    ~Job() {
        for (Allocation& allocation : allocations_) {
            for (hpn_symmetric* end : allocation.ends) hpn_symmetric_close(end);
        }
        for (Team& team : teams_) {
            for (int rank = 0; rank < team.size(); ++rank) team.close(rank);
        }
        for (hpn_domain* domain : domains_) {
            if (domain != nullptr) hpn_domain_close(domain);
        }
    }
    Job(const Job&) = delete;
    Job& operator=(const Job&) = delete;

    int size() const { return static_cast<int>(domains_.size()); }
    hpn_domain* domain(int process) const { return domains_[static_cast<size_t>(process)]; }

    Team& team(std::vector<int> processes, uint64_t slot_bytes = 4096) {
        int size = static_cast<int>(processes.size());
        auto memory = std::make_unique<Mapping>(hpn_group_plan(size, 0, slot_bytes).total_bytes);
        std::vector<hpn_group*> ends;
        for (int rank = 0; rank < size; ++rank) {
            ends.push_back(hpn_group_open(domain(processes[static_cast<size_t>(rank)]), memory->start(), -1, rank,
                                          size, processes.data(), slot_bytes));
            if (ends.back() == nullptr) std::abort();
        }
        teams_.push_back({std::move(memory), std::move(processes), std::move(ends)});
        return teams_.back();
    }

    // All processes, in order.
    Team& everybody(uint64_t slot_bytes = 4096) {
        std::vector<int> processes(domains_.size());
        std::iota(processes.begin(), processes.end(), 0);
        return team(std::move(processes), slot_bytes);
    }

    Allocation& allocate(const Team& team, uint64_t bytes) {
        hpn_symmetric_layout plan = hpn_symmetric_plan(team.size(), 0, bytes);
        Allocation made{std::make_unique<Mapping>(plan.total_bytes), {}, {}};
        for (int rank = 0; rank < team.size(); ++rank) {
            made.ends.push_back(hpn_symmetric_open(team[rank], allocations_.size() + 1, made.memory->start(), bytes));
            made.parts.push_back(static_cast<char*>(made.memory->start()) +
                                 hpn_symmetric_plan(team.size(), rank, bytes).part_offset);
        }
        allocations_.push_back(std::move(made));
        return allocations_.back();
    }

    // Run `body(process)` in a thread for each process.
    void run(const std::function<void(int)>& body) const {
        std::vector<std::thread> threads;
        for (int process = 0; process < size(); ++process) threads.emplace_back(body, process);
        for (std::thread& thread : threads) thread.join();
    }

private:
    Mapping memory_;
    std::vector<hpn_domain*> domains_;
    std::deque<Team> teams_;  // references to its elements stay valid
    std::deque<Allocation> allocations_;
};

// Wait for an operation, and let go of it unless the result is 0.
inline int wait_for(intptr_t operation, double seconds) {
    int result = hpn_wait(operation, seconds);
    if (result != 0) hpn_drop(operation);
    return result;
}

// Wait until an operation is done; its result, as hpn_wait's. `operation` may be one that was done, or failed, at once.
inline int finish(intptr_t operation, double seconds = 60.0) {
    if (operation == 1) return 1;
    if (operation == 0) return hpn_error_code();
    return wait_for(operation, seconds);
}

// Leave an operation to the library's thread.
inline intptr_t leave(intptr_t operation) {
    if (operation != 0 && operation != 1) hpn_leave(operation);
    return operation;
}

}  // namespace hpn::ranks
