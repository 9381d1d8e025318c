// SPDX-License-Identifier: Apache-2.0
// What the processes of a job have in common: the words and lines of the shared segments, and where they lie.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace hpn {

// Slots of a rank's ring. A rank may be this many steps ahead of the slowest before it has to wait.
inline constexpr int kDepth = 4;
inline constexpr size_t kLine = 64;
inline constexpr size_t kPage = 4096;
// Two lines: neighbours are fetched in pairs on many CPUs, and writers of different ranks must not share one.
inline constexpr size_t kOwnerAlign = 128;

constexpr size_t round_up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

// One process in the segment that all processes of the job on this host share.
struct alignas(kOwnerAlign) ProcessLine {
    std::atomic<uint32_t> bell;      // a futex: rung (counted up) when something that this process may wait for is there
    std::atomic<uint32_t> sleepers;  // its threads that sleep on the bell, or are about to
    std::atomic<int32_t> pid;
    std::atomic<int32_t> core;  // 1 + where it was when it last did something, 0: not known
};

struct alignas(kOwnerAlign) DomainHeader {
    std::atomic<uint32_t> aborted;  // 0, or 1 + the process that gave up
};

// One rank of a group: how far it is. Counts of steps, which go on through all calls and are never reset, so that no
// call can take a slot for free that an earlier one still reads. Written by its owner only.
struct alignas(kOwnerAlign) RankLine {
    std::atomic<uint64_t> posted;   // steps whose slot is filled
    std::atomic<uint64_t> reduced;  // steps whose result slot is filled
    std::atomic<uint64_t> done;     // steps of which nothing more is read
    std::atomic<uint64_t> signature[kDepth];  // of the call that a step belongs to
};

// What a rank called, for the message when calls differ, and where its operands lie if that is symmetric memory.
struct alignas(kLine) CallNote {
    uint64_t kind;
    uint64_t bytes;
    uint64_t dtype;
    uint64_t op;
    uint64_t source_id;  // the allocation of symmetric memory, 0 when it is none
    uint64_t source_offset;
    uint64_t target_id;
    uint64_t target_offset;
};

// One direction between two ranks of a group.
struct alignas(kOwnerAlign) LaneLine {
    std::atomic<uint64_t> sent;                           // fragments; written by the sender
    alignas(kOwnerAlign) std::atomic<uint64_t> received;  // fragments; written by the receiver
};

struct alignas(kLine) FragmentNote {
    uint64_t tag;
    uint64_t message_bytes;
    uint64_t bytes;
    uint64_t first;  // 1 where a message begins
};

inline constexpr size_t kFragmentBytes = 128 * 1024;
inline constexpr int kFragments = 8;
inline constexpr size_t kLaneBytes =
    round_up(sizeof(LaneLine) + kFragments * (sizeof(FragmentNote) + kFragmentBytes), kPage);

// Where everything lies in the segment of a group of `size` ranks, in bytes from its start.
struct GroupLayout {
    int size;
    size_t piece_bytes;  // the part of a slot that is meant for one rank
    size_t slot_bytes;   // size * piece_bytes
    size_t notes;
    size_t counts;
    size_t control_bytes;  // lines, notes and counts: allocated by whoever makes the segment
    size_t staging;
    size_t staging_bytes;  // of one rank: allocated, and first touched, by that rank
    size_t lanes;
    size_t total_bytes;

    GroupLayout(int num_ranks, size_t wanted_slot_bytes) : size(num_ranks) {
        size_t ranks = static_cast<size_t>(num_ranks);
        piece_bytes = round_up((wanted_slot_bytes + ranks - 1) / ranks, kLine);
        slot_bytes = ranks * piece_bytes;
        notes = sizeof(RankLine) * ranks;
        counts = notes + sizeof(CallNote) * ranks * kDepth;
        control_bytes = round_up(counts + counts_bytes() * ranks * kDepth, kPage);
        staging = control_bytes;
        staging_bytes = round_up(kDepth * (slot_bytes + piece_bytes), kPage);
        lanes = staging + staging_bytes * ranks;
        total_bytes = lanes + kLaneBytes * ranks * ranks;
    }

    // Of one rank's slot: how many bytes go to each rank, and the largest of them (all-to-all only).
    size_t counts_bytes() const { return round_up(sizeof(uint64_t) * (static_cast<size_t>(size) + 1), kLine); }
    size_t lane(int from, int to) const {
        return lanes + kLaneBytes * (static_cast<size_t>(from) * static_cast<size_t>(size) + static_cast<size_t>(to));
    }
};

constexpr size_t domain_bytes(int num_processes) {
    return round_up(sizeof(DomainHeader) + sizeof(ProcessLine) * static_cast<size_t>(num_processes), kPage);
}

static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);
static_assert(sizeof(RankLine) == kOwnerAlign && sizeof(CallNote) == kLine);

}  // namespace hpn
