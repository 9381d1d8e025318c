// SPDX-License-Identifier: Apache-2.0
#include "symmetric.h"

#include <sched.h>

#include <algorithm>
#include <string>

#include "error.h"
#include "reduce.h"

namespace hpn {

Symmetric::Symmetric(Group& group, uint64_t id, void* memory, uint64_t bytes)
    : group_(group), id_(id), memory_(static_cast<char*>(memory)), bytes_(bytes) {
    for (int rank = 0; rank < group.size(); ++rank) {
        bases_.push_back(memory_ + part_offset(group.size(), rank, bytes));
    }
    own_ = bases_[static_cast<size_t>(group.rank())];
}

Place Symmetric::place(const void* pointer) const {
    return {id_, static_cast<uint64_t>(static_cast<const char*>(pointer) - own_), bases_.data()};
}

void Symmetric::check(int rank, uint64_t offset, uint64_t bytes) const {
    if (rank < 0 || rank >= group_.size()) {
        throw Error(Code::invalid, "rank " + std::to_string(rank) + " is not in the group of " +
                                       std::to_string(group_.size()));
    }
    if (offset > bytes_ || bytes > bytes_ - offset) {
        throw Error(Code::invalid, std::to_string(bytes) + " bytes at " + std::to_string(offset) +
                                       " do not lie within the allocation of " + std::to_string(bytes_) + " bytes");
    }
}

std::atomic<uint64_t>& Symmetric::word(int rank, int index) {
    check(rank, 0, 0);
    if (index < 0 || index >= kSignals) {
        throw Error(Code::invalid, "signal " + std::to_string(index) + " is not one of the " +
                                       std::to_string(kSignals) + " of an allocation");
    }
    char* page = memory_ + kPage * static_cast<size_t>(rank);
    return *reinterpret_cast<std::atomic<uint64_t>*>(page + kLine * static_cast<size_t>(index));
}

std::atomic<uint32_t>& Symmetric::sent(int sender, int rank, int index) {
    char* table = memory_ + kPage * static_cast<size_t>(group_.size()) +
                  sent_bytes(group_.size()) * static_cast<size_t>(sender);
    return reinterpret_cast<std::atomic<uint32_t>*>(table)[rank * kSignals + index];
}

uint32_t Symmetric::sent_by(int sender, int index) {
    check(sender, 0, 0);
    word(group_.rank(), index);  // whether there is such a signal
    return sent(sender, group_.rank(), index).load(std::memory_order_relaxed);
}

void Symmetric::put(int rank, uint64_t offset, const void* from, uint64_t bytes) {
    check(rank, offset, bytes);
    copy(base(rank) + offset, from, bytes, false);
}

void Symmetric::get(int rank, uint64_t offset, void* into, uint64_t bytes) {
    check(rank, offset, bytes);
    copy(into, base(rank) + offset, bytes, false);
}

void Symmetric::signal(int rank, int index, uint64_t value, bool add) {
    std::atomic<uint64_t>& word = this->word(rank, index);
    sent(group_.rank(), rank, index).fetch_add(1, std::memory_order_relaxed);
    if (add) {
        word.fetch_add(value, std::memory_order_acq_rel);
    } else {
        word.store(value, std::memory_order_release);
    }
    group_.domain().ring(group_.process(rank));
}

uint64_t Symmetric::read_signal(int index) { return word(group_.rank(), index).load(std::memory_order_acquire); }

bool Symmetric::wait_signal(int index, uint64_t value, int64_t limit_ns) {
    std::atomic<uint64_t>& word = this->word(group_.rank(), index);
    int64_t until = now_ns() + limit_ns;
    Domain& domain = group_.domain();
    for (int look = 0;; ++look) {
        if (word.load(std::memory_order_acquire) >= value) return true;
        if (domain.aborted()) {
            throw Error(Code::aborted, "process " + std::to_string(domain.pid(domain.aborter())) + " gave up");
        }
        if (look < 64) {
            if (domain.oversubscribed() || look >= 32) sched_yield();
            continue;
        }
        for (int rank = 0; rank < group_.size(); ++rank) {
            if (rank == group_.rank() || !domain.gone(group_.process(rank))) continue;
            if (word.load(std::memory_order_acquire) >= value) return true;
            throw Error(Code::peer_gone, "rank " + std::to_string(rank) + " of the group (process " +
                                             std::to_string(domain.pid(group_.process(rank))) + ") has ended");
        }
        int64_t left = until - now_ns();
        if (left <= 0) return false;
        Domain::Sleep sleep(domain);
        if (word.load(std::memory_order_acquire) >= value) return true;
        sleep.sleep(std::min<int64_t>(left, 50'000'000));
    }
}

void Registry::add(Symmetric& allocation) {
    std::lock_guard lock(lock_);
    by_start_[reinterpret_cast<uintptr_t>(allocation.own())] = &allocation;
    count_.store(by_start_.size(), std::memory_order_release);
}

void Registry::remove(Symmetric& allocation) {
    std::lock_guard lock(lock_);
    by_start_.erase(reinterpret_cast<uintptr_t>(allocation.own()));
    count_.store(by_start_.size(), std::memory_order_release);
}

Place Registry::find(Group& group, const void* pointer, uint64_t bytes) const {
    if (count_.load(std::memory_order_acquire) == 0) return {};
    std::lock_guard lock(lock_);
    uintptr_t address = reinterpret_cast<uintptr_t>(pointer);
    auto after = by_start_.upper_bound(address);
    if (after == by_start_.begin()) return {};
    const auto& [start, allocation] = *std::prev(after);
    if (&allocation->group() != &group || address - start + bytes > allocation->bytes()) return {};
    return allocation->place(pointer);
}

}  // namespace hpn
