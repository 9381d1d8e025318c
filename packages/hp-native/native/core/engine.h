// SPDX-License-Identifier: Apache-2.0
// The thread that goes on with what nobody waits for.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "group.h"

namespace hpn {

// One a process. The thread starts with the first operation that is left to it, and never takes a lock of Python's.
class Engine {
public:
    explicit Engine(Domain& domain);
    ~Engine();
    Engine(const Engine&) = delete;
    Engine& operator=(const Engine&) = delete;

    void add(Group& group);
    // Afterwards the thread does not touch the group.
    void remove(Group& group);
    // Something was put into a group that its caller will not wait for at once.
    void wake();

private:
    void run();
    bool drive_all();
    void idle();

    Domain& domain_;
    std::mutex groups_lock_;  // held while groups are driven, so that `remove` waits for it
    std::vector<Group*> groups_;
    std::mutex thread_lock_;
    std::condition_variable something_;
    std::atomic<uint64_t> wakes_{0};
    std::atomic<bool> stopping_{false};
    std::atomic<bool> parked_{false};
    std::atomic<bool> started_{false};
    std::thread thread_;
};

}  // namespace hpn
