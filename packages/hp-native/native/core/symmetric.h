// SPDX-License-Identifier: Apache-2.0
// Symmetric memory: an allocation of the same size on every rank of a group, which every rank can reach.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "collective.h"
#include "group.h"

namespace hpn {

inline constexpr int kSignals = 64;  // of each rank and allocation

// One rank's end. The segment holds one page of signals for each rank; then, of each rank, how often it has sent which
// signal to whom, so that one that waits in vain can be told who is missing; then one part for each rank.
class Symmetric {
public:
    // `memory` is the mapped segment of segment_bytes(size of the group, bytes); it outlives this.
    Symmetric(Group& group, uint64_t id, void* memory, uint64_t bytes);
    Symmetric(const Symmetric&) = delete;
    Symmetric& operator=(const Symmetric&) = delete;

    static uint64_t sent_bytes(int size) {
        return round_up(sizeof(std::atomic<uint32_t>) * kSignals * static_cast<size_t>(size), kPage);
    }
    static uint64_t signal_bytes(int size) { return (kPage + sent_bytes(size)) * static_cast<uint64_t>(size); }
    static uint64_t part_bytes(uint64_t bytes) { return round_up(bytes == 0 ? 1 : bytes, kPage); }
    static uint64_t part_offset(int size, int rank, uint64_t bytes) {
        return signal_bytes(size) + part_bytes(bytes) * static_cast<uint64_t>(rank);
    }
    static uint64_t segment_bytes(int size, uint64_t bytes) { return part_offset(size, size, bytes); }

    Group& group() { return group_; }
    uint64_t id() const { return id_; }
    uint64_t bytes() const { return bytes_; }
    char* base(int rank) { return bases_[static_cast<size_t>(rank)]; }
    char* own() { return own_; }
    Place place(const void* pointer) const;

    // One-sided: the other rank does nothing. A put is seen by whoever sees a signal that was sent after it.
    void put(int rank, uint64_t offset, const void* from, uint64_t bytes);
    void get(int rank, uint64_t offset, void* into, uint64_t bytes);
    // Add to (or set) a signal of a rank, and wake it.
    void signal(int rank, int index, uint64_t value, bool add);
    uint64_t read_signal(int index);
    // How often `sender` has sent this rank's signal.
    uint32_t sent_by(int sender, int index);
    // Block until this rank's signal is at least `value`; false after the time. Throws where the job gave up.
    bool wait_signal(int index, uint64_t value, int64_t limit_ns);

private:
    void check(int rank, uint64_t offset, uint64_t bytes) const;
    std::atomic<uint64_t>& word(int rank, int index);
    std::atomic<uint32_t>& sent(int sender, int rank, int index);

    Group& group_;
    uint64_t id_;
    char* memory_;
    uint64_t bytes_;
    std::vector<char*> bases_;
    char* own_;
};

// Which allocation a pointer lies in. One a process. (It does not look into the groups: they may be closed before.)
class Registry {
public:
    void add(Symmetric& allocation);
    void remove(Symmetric& allocation);
    // The place of a range that lies in this rank's part of an allocation of `group`; id 0 where there is none.
    Place find(Group& group, const void* pointer, uint64_t bytes) const;

private:
    mutable std::mutex lock_;
    std::map<uintptr_t, Symmetric*> by_start_;
    std::atomic<size_t> count_{0};
};

}  // namespace hpn
