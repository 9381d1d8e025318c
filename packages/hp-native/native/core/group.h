// SPDX-License-Identifier: Apache-2.0
// One rank's end of a group: its view of the shared segment, and the queue of what it was asked to do.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "clock.h"
#include "domain.h"
#include "layout.h"
#include "operation.h"
#include "publish.h"

namespace hpn {

class Engine;
class Lanes;

// [Note: Steps]
// Every collective is cut into steps, numbered on through the life of the group. Of a step each rank fills its slot and
// posts it; where something is reduced, each then reduces its piece of all slots into its result slot; at last it reads
// what it needs and is done with the step. Slots are a ring of kDepth: a rank fills the slot of step s when all ranks
// are done with step s - kDepth. A wait is always for a count of others to reach a number, and whoever counts up rings.
class Group {
public:
    // `memory` is the segment, mapped; `fd` its descriptor, which the group owns (-1 for memory that is all there).
    // `processes[i]` is rank i's index in the domain.
    Group(Domain& domain, void* memory, int fd, int rank, std::vector<int> processes, size_t slot_bytes);
    ~Group();
    Group(const Group&) = delete;
    Group& operator=(const Group&) = delete;

    int rank() const { return rank_; }
    int size() const { return layout_.size; }
    Domain& domain() { return domain_; }
    const GroupLayout& layout() const { return layout_; }
    int process(int rank) const { return processes_[static_cast<size_t>(rank)]; }
    char* memory() { return memory_; }
    int fd() const { return fd_; }
    Lanes& lanes() { return *lanes_; }
    Publisher& publisher() { return publisher_; }  // of the driver
    void set_engine(Engine* engine) { engine_ = engine; }

    // ---- steps; called by the operation that is being driven ----
    uint64_t next_step() const { return next_step_; }
    void end_steps(uint64_t next) { next_step_ = next; }
    bool all_done_with(uint64_t step) { return all_beyond(&RankLine::done, done_seen_, step); }
    bool all_posted(uint64_t step) { return all_beyond(&RankLine::posted, posted_seen_, step); }
    bool all_reduced(uint64_t step) { return all_beyond(&RankLine::reduced, reduced_seen_, step); }
    bool posted(int rank, uint64_t step);
    uint64_t steps_done(int rank) const { return lines_[rank].done.load(std::memory_order_acquire); }
    void post(uint64_t step, uint64_t signature);
    void set_reduced(uint64_t step);
    void set_done(uint64_t step);
    char* slot(int rank, uint64_t step);
    char* result_slot(int rank, uint64_t step);
    CallNote& note(int rank, uint64_t step);
    uint64_t* counts(int rank, uint64_t step);
    // A digest of all calls so far, which goes into the signature of the next.
    uint64_t history() const { return history_; }
    void set_history(uint64_t history) { history_ = history; }
    uint64_t signature(int rank, uint64_t step) const {
        return lines_[rank].signature[step % kDepth].load(std::memory_order_relaxed);
    }

    // ---- the queue ----
    // Put an operation in. A brief one is begun at once, and given a moment to be completed.
    void submit(Operation* op);
    // Leave an operation to the engine.
    void leave(Operation& op);
    // Do what can be done. Returns whether anything moved; false also where another thread is at it.
    bool drive();
    // The same, but wait for the other thread first: a look that misses nothing, before a sleep.
    bool drive_waiting();
    // Whether something is under way that nobody waits for: the engine's work.
    bool left_alone() const { return num_left_.load(std::memory_order_acquire) > 0; }
    // Block until `op` is done or failed (true), or until `limit_ns` have passed (false).
    bool wait(Operation& op, int64_t limit_ns);
    // Forget an operation that is under way. Afterwards nobody touches its memory.
    void cancel(Operation& op);
    // Fail everything that is under way, and all that comes.
    void fail_all(int code, const std::string& text);
    // Look whether the job gave up or a rank has ended; then fail everything.
    void look_around();
    // The same, but at most once a millisecond: for whoever asks again and again.
    void look_around_sometimes(int64_t now_ns);

private:
    using Count = std::atomic<uint64_t> RankLine::*;
    bool all_beyond(Count count, uint64_t& seen, uint64_t step);
    void ring_others();
    bool drive_locked();
    void take_inbox();
    void settle(Operation& op);
    void take_off(Operation& op);
    void fail_locked(int code, const std::string& text);
    bool spin(Operation& op, int64_t until_ns);

    Domain& domain_;
    GroupLayout layout_;
    char* memory_;
    int fd_;
    RankLine* lines_;
    int rank_;
    std::vector<int> processes_;
    std::unique_ptr<Lanes> lanes_;
    Publisher publisher_;
    Engine* engine_ = nullptr;

    // Of the driver.
    std::mutex driving_;
    uint64_t next_step_ = 0;
    uint64_t history_ = 0;
    uint64_t posted_seen_ = 0;  // what all others are known to have reached: saves looking again
    uint64_t reduced_seen_ = 0;
    uint64_t done_seen_ = 0;
    std::deque<Operation*> queue_;
    std::vector<Operation*> batches_;

    std::mutex inbox_lock_;
    std::vector<Operation*> inbox_;
    std::atomic<int> num_left_{0};
    std::atomic<int64_t> looked_ns_{0};
    std::atomic<int> broken_{0};
    std::string why_broken_;  // written once, before `broken_`
};

}  // namespace hpn
