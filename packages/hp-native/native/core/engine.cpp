// SPDX-License-Identifier: Apache-2.0
#include "engine.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>

namespace hpn {
namespace {

// How often it looks again before it sleeps. The cores belong to the computation: so not long.
constexpr int kLooks = 32;
constexpr int64_t kSleepNs = 20'000'000;

}  // namespace

Engine::Engine(Domain& domain) : domain_(domain) {}

Engine::~Engine() {
    stopping_.store(true, std::memory_order_release);
    wake();
    if (thread_.joinable()) {
        domain_.ring(domain_.me());
        thread_.join();
    }
}

void Engine::add(Group& group) {
    std::lock_guard lock(groups_lock_);
    groups_.push_back(&group);
    group.set_engine(this);
}

void Engine::remove(Group& group) {
    std::lock_guard lock(groups_lock_);
    std::erase(groups_, &group);
}

void Engine::wake() {
    wakes_.fetch_add(1, std::memory_order_seq_cst);
    if (!started_.load(std::memory_order_acquire)) {
        std::lock_guard lock(thread_lock_);
        if (!thread_.joinable() && !stopping_.load(std::memory_order_acquire)) {
            // Signals are the program's: none may be delivered to this thread.
            sigset_t all, before;
            sigfillset(&all);
            pthread_sigmask(SIG_SETMASK, &all, &before);
            thread_ = std::thread([this] { run(); });
            pthread_sigmask(SIG_SETMASK, &before, nullptr);
            pthread_setname_np(thread_.native_handle(), "hp-native");
            started_.store(true, std::memory_order_release);
        }
        return;
    }
    if (parked_.load(std::memory_order_seq_cst)) {
        std::lock_guard lock(thread_lock_);
        something_.notify_one();
    } else {
        domain_.ring(domain_.me());  // it may sleep over what was left to it before
    }
}

bool Engine::drive_all() {
    std::lock_guard lock(groups_lock_);
    bool moved = false;
    for (Group* group : groups_) {
        if (group->left_alone()) moved |= group->drive();
    }
    return moved;
}

// Sleep until another process rings, or for a moment; without anything under way, until there is.
void Engine::idle() {
    bool busy = false;
    {
        std::lock_guard lock(groups_lock_);
        for (Group* group : groups_) {
            if (!group->left_alone()) continue;
            busy = true;
            group->look_around();
        }
    }
    if (busy) {
        Domain::Sleep sleep(domain_);
        bool moved = false;
        {
            std::lock_guard lock(groups_lock_);
            for (Group* group : groups_) moved |= group->left_alone() && group->drive_waiting();
        }
        if (!moved) sleep.sleep(kSleepNs);
        return;
    }
    std::unique_lock lock(thread_lock_);
    uint64_t seen = wakes_.load(std::memory_order_seq_cst);
    parked_.store(true, std::memory_order_seq_cst);
    bool none = true;
    {
        std::lock_guard groups(groups_lock_);
        for (Group* group : groups_) none = none && !group->left_alone();
    }
    if (none) {
        something_.wait(lock, [&] {
            return stopping_.load(std::memory_order_acquire) || wakes_.load(std::memory_order_seq_cst) != seen;
        });
    }
    parked_.store(false, std::memory_order_seq_cst);
}

void Engine::run() {
    while (!stopping_.load(std::memory_order_acquire)) {
        int looks = 0;
        while (looks < kLooks && !stopping_.load(std::memory_order_acquire)) {
            looks = drive_all() ? 0 : looks + 1;
            if (looks > 0) sched_yield();
        }
        if (!stopping_.load(std::memory_order_acquire)) idle();
    }
}

}  // namespace hpn
