// SPDX-License-Identifier: Apache-2.0
#include "group.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <new>
#include <utility>

#include "engine.h"
#include "error.h"
#include "lanes.h"

namespace hpn {

Group::Group(Domain& domain, void* memory, int fd, int rank, std::vector<int> processes, size_t slot_bytes)
    : domain_(domain),
      layout_(static_cast<int>(processes.size()), slot_bytes),
      memory_(static_cast<char*>(memory)),
      fd_(fd),
      lines_(static_cast<RankLine*>(memory)),
      rank_(rank),
      processes_(std::move(processes)) {
    if (layout_.size < 1 || rank < 0 || rank >= layout_.size) throw Error(Code::invalid, "a group needs its rank");
    lanes_ = std::make_unique<Lanes>(*this);
}

Group::~Group() {
    fail_all(static_cast<int>(Code::aborted), "the group was closed");
    if (fd_ >= 0) ::close(fd_);
}

// ---- steps ----

bool Group::all_beyond(Count count, uint64_t& seen, uint64_t step) {
    if (seen > step) return true;
    uint64_t least = UINT64_MAX;
    for (int other = 0; other < layout_.size; ++other) {
        if (other == rank_) continue;
        uint64_t reached = (lines_[other].*count).load(std::memory_order_acquire);
        if (reached <= step) return false;
        least = std::min(least, reached);
    }
    seen = least;
    return true;
}

bool Group::posted(int rank, uint64_t step) { return lines_[rank].posted.load(std::memory_order_acquire) > step; }

void Group::ring_others() {
    for (int other = 0; other < layout_.size; ++other) {
        if (other != rank_) domain_.ring(processes_[static_cast<size_t>(other)]);
    }
}

void Group::post(uint64_t step, uint64_t signature) {
    RankLine& line = lines_[rank_];
    line.signature[step % kDepth].store(signature, std::memory_order_relaxed);
    line.posted.store(step + 1, std::memory_order_release);
    domain_.here();
    ring_others();
}

void Group::set_reduced(uint64_t step) {
    lines_[rank_].reduced.store(step + 1, std::memory_order_release);
    ring_others();
}

void Group::set_done(uint64_t step) {
    RankLine& line = lines_[rank_];
    if (line.reduced.load(std::memory_order_relaxed) <= step) line.reduced.store(step + 1, std::memory_order_release);
    line.done.store(step + 1, std::memory_order_release);
    ring_others();
}

char* Group::slot(int rank, uint64_t step) {
    return memory_ + layout_.staging + layout_.staging_bytes * static_cast<size_t>(rank) +
           layout_.slot_bytes * (step % kDepth);
}

char* Group::result_slot(int rank, uint64_t step) {
    return memory_ + layout_.staging + layout_.staging_bytes * static_cast<size_t>(rank) +
           layout_.slot_bytes * kDepth + layout_.piece_bytes * (step % kDepth);
}

CallNote& Group::note(int rank, uint64_t step) {
    CallNote* notes = reinterpret_cast<CallNote*>(memory_ + layout_.notes);
    return notes[static_cast<size_t>(rank) * kDepth + step % kDepth];
}

uint64_t* Group::counts(int rank, uint64_t step) {
    return reinterpret_cast<uint64_t*>(memory_ + layout_.counts +
                                       layout_.counts_bytes() * (static_cast<size_t>(rank) * kDepth + step % kDepth));
}

namespace {

void pause() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

}  // namespace

// About three microseconds: what a short collective takes when all ranks come at once.
constexpr int kBriefLooks = 100;

// ---- the queue ----

void Group::submit(Operation* op) {
    {
        std::lock_guard lock(inbox_lock_);
        inbox_.push_back(op);
    }
    if (!op->brief()) return;
    drive();
    if (domain_.oversubscribed()) return;
    for (int look = 0; look < kBriefLooks && op->state() == 0; ++look) {
        pause();
        drive();
    }
}

void Group::leave(Operation& op) {
    uint8_t none = Operation::waited_for;
    if (!op.left_.compare_exchange_strong(none, Operation::left, std::memory_order_acq_rel)) return;
    num_left_.fetch_add(1, std::memory_order_seq_cst);
    engine_->wake();
}

bool Group::drive() {
    std::unique_lock lock(driving_, std::try_to_lock);
    return lock.owns_lock() && drive_locked();
}

bool Group::drive_waiting() {
    std::lock_guard lock(driving_);
    return drive_locked();
}

void Group::take_inbox() {
    std::lock_guard lock(inbox_lock_);
    for (Operation* op : inbox_) {
        if (op->ordered()) {
            queue_.push_back(op);
        } else {
            batches_.push_back(op);
        }
    }
    inbox_.clear();
}

// Take `op` off the engine's account. Afterwards its owner may destroy it as soon as its state says so.
void Group::take_off(Operation& op) {
    if (op.left_.exchange(Operation::settled, std::memory_order_acq_rel) == Operation::left) {
        num_left_.fetch_sub(1, std::memory_order_acq_rel);
    }
}

void Group::settle(Operation& op) {
    take_off(op);
    op.finish();
    domain_.ring(domain_.me());  // another thread of this process may wait for it
}

bool Group::drive_locked() {
    bool moved = false;
    take_inbox();
    if (int code = broken_.load(std::memory_order_acquire); code != 0) {
        if (queue_.empty() && batches_.empty()) return false;
        fail_locked(code, why_broken_);
        return true;
    }
    try {
        while (!queue_.empty()) {
            Progress progress = queue_.front()->step();
            if (progress == Progress::blocked) break;
            moved = true;
            if (progress == Progress::finished) {
                Operation* op = queue_.front();
                queue_.pop_front();
                settle(*op);
            }
        }
        for (size_t i = 0; i < batches_.size();) {
            Progress progress = batches_[i]->step();
            moved |= progress != Progress::blocked;
            if (progress == Progress::finished) {
                Operation* op = batches_[i];
                batches_.erase(batches_.begin() + static_cast<std::ptrdiff_t>(i));
                settle(*op);
            } else {
                ++i;
            }
        }
    } catch (const Error& error) {
        fail_locked(static_cast<int>(error.code()), error.what());
        return true;
    } catch (const std::bad_alloc&) {
        fail_locked(static_cast<int>(Code::no_memory), "out of memory");
        return true;
    }
    return moved;
}

void Group::fail_locked(int code, const std::string& text) {
    take_inbox();
    if (broken_.load(std::memory_order_relaxed) == 0) {
        why_broken_ = text;
        broken_.store(code, std::memory_order_release);
    }
    std::vector<Operation*> all(queue_.begin(), queue_.end());
    all.insert(all.end(), batches_.begin(), batches_.end());
    queue_.clear();
    batches_.clear();
    for (Operation* op : all) {
        op->withdraw();
        take_off(*op);
        op->fail(code, text);
    }
    domain_.ring(domain_.me());
}

void Group::fail_all(int code, const std::string& text) {
    std::lock_guard lock(driving_);
    fail_locked(code, text);
}

void Group::cancel(Operation& op) {
    std::lock_guard lock(driving_);
    take_inbox();
    if (op.state() != 0) return;
    // The other ranks go on waiting for this rank's part of it: there is no way back for the group.
    fail_locked(static_cast<int>(Code::aborted), "an operation was given up before it was complete");
}

void Group::look_around() {
    if (domain_.aborted()) {
        fail_all(static_cast<int>(Code::aborted),
                 "process " + std::to_string(domain_.pid(domain_.aborter())) + " gave up");
        return;
    }
    for (int other = 0; other < layout_.size; ++other) {
        if (other == rank_ || !domain_.gone(process(other))) continue;
        std::lock_guard lock(driving_);
        // It may have done its part before it ended; all that it ever published can be seen by now.
        while (drive_locked()) {
        }
        bool missed = !queue_.empty() && queue_.front()->needs(other);
        for (Operation* batch : batches_) missed |= batch->needs(other);
        if (!missed) continue;
        fail_locked(static_cast<int>(Code::peer_gone), "rank " + std::to_string(other) + " of the group (process " +
                                                           std::to_string(domain_.pid(process(other))) +
                                                           ") has ended");
        return;
    }
}

void Group::look_around_sometimes(int64_t now_ns) {
    constexpr int64_t interval_ns = 1'000'000;
    int64_t last = looked_ns_.load(std::memory_order_relaxed);
    if (now_ns - last < interval_ns) return;
    if (looked_ns_.compare_exchange_strong(last, now_ns, std::memory_order_relaxed)) look_around();
}

// Spinning is fastest where every rank has a core of its own; where they share, the one that is waited for needs ours.
constexpr int64_t kSpinNs = 30'000;
constexpr int64_t kYieldNs = 60'000;
constexpr int64_t kApartNs = 20'000;      // of waiting, after which it is asked whether ranks share a core
constexpr int64_t kSliceNs = 50'000'000;  // of a sleep: how soon a death is seen that nobody rings for

bool Group::spin(Operation& op, int64_t until_ns) {
    int64_t started = now_ns();
    int64_t spin_until = domain_.oversubscribed() ? started : started + kSpinNs;
    int64_t yield_until = std::min(started + kSpinNs + kYieldNs, until_ns);
    for (int turn = 0;; ++turn) {
        if (op.state() != 0) return true;
        if (drive()) {
            started = now_ns();  // it goes on: the next wait may be as short as this one was
            spin_until = domain_.oversubscribed() ? started : started + kSpinNs;
            yield_until = std::min(started + kSpinNs + kYieldNs, until_ns);
            continue;
        }
        if (op.state() != 0) return true;
        if (turn % 16 != 0) {
            pause();
            continue;
        }
        int64_t now = now_ns();
        if (now - started > kApartNs) domain_.keep_apart(now);
        if (now < spin_until) continue;
        if (now >= yield_until) return false;
        sched_yield();
    }
}

bool Group::wait(Operation& op, int64_t limit_ns) {
    if (op.state() != 0) return true;
    int64_t until = now_ns() + limit_ns;
    while (!spin(op, until)) {
        look_around();
        if (op.state() != 0) return true;
        int64_t left = until - now_ns();
        if (left <= 0) return false;
        Domain::Sleep sleep(domain_);
        // With the lock: whoever has it may have looked before the last thing was published that nobody rings for again.
        if (drive_waiting() || op.state() != 0) continue;
        sleep.sleep(std::min(left, kSliceNs));
    }
    return true;
}

}  // namespace hpn
