// SPDX-License-Identifier: Apache-2.0
// The processes of a job on this host: waking each other, giving up together, seeing that one has ended.
#pragma once

#include <cstdint>
#include <vector>

#include "layout.h"

namespace hpn {

// Whether a process has ended (a zombie has): by its pidfd, or by /proc where that is -1. A system call, or three.
bool has_ended(int pid, int pidfd);

// This process's end of the domain. Made over memory that all processes map; owns the descriptors that it is given.
class Domain {
public:
    // pidfds[i] watches process i; -1 where there is none (then /proc is asked about pids[i], or about what that
    // process says of itself once it is here).
    Domain(void* memory, int num_processes, int me, std::vector<int> pidfds, bool oversubscribed,
           const std::vector<int>& pids = {});
    ~Domain();
    Domain(const Domain&) = delete;
    Domain& operator=(const Domain&) = delete;

    int me() const { return me_; }
    int num_processes() const { return num_processes_; }
    bool oversubscribed() const { return oversubscribed_; }

    // [Note: Stacked ranks] Schedulers put a rank that was woken on the core of the one that woke it, and may leave it there
    // while another core is idle: each then spins through the other's time, and a call takes a hundred times as long.
    // So each says on which core it works, and one that waits for long on the core of another moves off.
    void here();
    // Move the calling thread if another process was last seen on its core. At most once a millisecond: what was seen
    // may be old, and moving costs some microseconds. Does nothing where there are more processes than cores.
    void keep_apart(int64_t now_ns);

    // Wake process `index` if it sleeps. Whatever was published before is seen by it.
    void ring(int index);
    void ring_all();

    // A sleep that no ring can be lost between: ask for the ticket, look once more whether there is anything to do,
    // then sleep. `sleep` returns when rung, or after the time, or for no reason.
    class Sleep {
    public:
        explicit Sleep(Domain& domain);
        ~Sleep();
        void sleep(int64_t nanoseconds);

    private:
        ProcessLine& line_;
        uint32_t ticket_;
    };

    // Tell all processes on this host that the job gives up. They fail within a moment of their next look.
    void abort();
    bool aborted() const { return header_->aborted.load(std::memory_order_acquire) != 0; }
    int aborter() const { return static_cast<int>(header_->aborted.load(std::memory_order_acquire)) - 1; }

    // Whether process `index` has ended (a zombie counts as ended). A system call.
    bool gone(int index) const;
    int pid(int index) const { return lines_[index].pid.load(std::memory_order_relaxed); }

private:
    DomainHeader* header_;
    ProcessLine* lines_;
    int num_processes_;
    int me_;
    std::vector<int> pidfds_;
    bool oversubscribed_;
    std::atomic<int64_t> apart_ns_{0};  // when it was last asked
};

}  // namespace hpn
