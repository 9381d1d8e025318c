// SPDX-License-Identifier: Apache-2.0
// An operation under way: a state machine that never blocks.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

namespace hpn {

class Group;

enum class Progress { blocked, moved, finished };

class Operation {
public:
    explicit Operation(Group& group) : group_(group) {}
    virtual ~Operation() = default;
    Operation(const Operation&) = delete;
    Operation& operator=(const Operation&) = delete;

    // Do a little: at most about one slot of copying, and only what needs no wait. Called by whoever drives the group,
    // by one thread at a time. Throws Error when it can never complete.
    virtual Progress step() = 0;
    // Whether it belongs to the group's queue of collectives; the others (batches of messages) have no order.
    virtual bool ordered() const { return true; }
    // Whether it can only be completed with something that `rank` has yet to do.
    virtual bool needs(int rank) = 0;
    // Take it out of whatever refers to it; the group is not driven meanwhile.
    virtual void withdraw() {}

    // Whether it is so short that whoever starts it may as well see it through.
    virtual bool brief() const { return false; }

    Group& group() { return group_; }
    // 0 under way, 1 done, below 0 an error's code. Once it is not 0, nothing touches the operation's memory any more.
    int state() const { return state_.load(std::memory_order_acquire); }
    const std::string& error() const { return error_; }

private:
    friend class Group;
    enum Left : uint8_t { waited_for, left, settled };
    void finish() { state_.store(1, std::memory_order_release); }
    void fail(int code, const std::string& text) {
        error_ = text;
        state_.store(code, std::memory_order_release);
    }

    Group& group_;
    std::atomic<int> state_{0};
    std::atomic<uint8_t> left_{waited_for};
    std::string error_;
};

}  // namespace hpn
