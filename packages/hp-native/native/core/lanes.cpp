// SPDX-License-Identifier: Apache-2.0
#include "lanes.h"

#include <algorithm>
#include <string>
#include <utility>

#include "error.h"
#include "reduce.h"
#include "segment.h"

namespace hpn {

struct Lanes::Part {
    Message message;
    uint64_t moved;
    Batch* batch;
};

// A message that came before it was asked for.
struct Lanes::Kept {
    uint64_t tag;
    uint64_t bytes;
    uint64_t moved;
    std::unique_ptr<char[]> data;
};

struct Lanes::Fragment {
    FragmentNote& note;
    char* data;
};

struct Lanes::Peer {
    bool sends_allocated = false;     // the lane to it
    bool receives_allocated = false;  // and from it
    std::deque<Part*> sends;      // in order
    std::deque<Part*> receives;   // in order, those that have begun too
    std::deque<Kept> kept;        // in order of arrival
    // What the message under way in the ring goes into: one of the two.
    Part* into = nullptr;
    bool keeping = false;
    uint64_t sent = 0;
    uint64_t received = 0;
};

class Lanes::Batch final : public Operation {
public:
    Batch(Group& group, Lanes& lanes, std::vector<Message> messages) : Operation(group), lanes_(lanes) {
        parts.reserve(messages.size());
        for (Message& message : messages) parts.push_back({message, 0, this});
        left = parts.size();
        for (const Part& part : parts) bytes_ += part.message.bytes;
    }

    bool ordered() const override { return false; }
    bool brief() const override { return bytes_ <= kFragmentBytes / 2; }

    Progress step() override {
        bool moved = false;
        if (!started_) {
            started_ = true;
            for (Part& part : parts) lanes_.start(part);
            moved = true;
        }
        for (const Part& part : parts) {
            if (left == 0) break;
            moved |= part.message.send ? lanes_.move_sends(part.message.peer)
                                       : lanes_.move_receives(part.message.peer);
        }
        if (left == 0) return Progress::finished;
        return moved ? Progress::moved : Progress::blocked;
    }

    bool needs(int rank) override {
        return std::any_of(parts.begin(), parts.end(), [rank](const Part& part) {
            return part.message.peer == rank && part.moved < part.message.bytes;
        });
    }

    void withdraw() override { lanes_.withdraw(*this); }

    std::vector<Part> parts;
    size_t left;

private:
    Lanes& lanes_;
    uint64_t bytes_ = 0;
    bool started_ = false;
};

Lanes::Lanes(Group& group) : group_(group), peers_(static_cast<size_t>(group.size())) {}
Lanes::~Lanes() = default;

std::unique_ptr<Operation> Lanes::make_batch(std::vector<Message> messages) {
    for (const Message& message : messages) {
        if (message.peer < 0 || message.peer >= group_.size() || message.peer == group_.rank() || message.bytes == 0) {
            throw Error(Code::invalid, "a message needs another rank of the group, and at least one byte");
        }
    }
    return std::make_unique<Batch>(group_, *this, std::move(messages));
}

LaneLine& Lanes::line(int from, int to) {
    return *reinterpret_cast<LaneLine*>(group_.memory() + group_.layout().lane(from, to));
}

Lanes::Fragment Lanes::fragment(int from, int to, uint64_t number) {
    char* lane = group_.memory() + group_.layout().lane(from, to) + sizeof(LaneLine);
    size_t index = number % kFragments;
    FragmentNote& note = reinterpret_cast<FragmentNote*>(lane)[index];
    return {note, lane + sizeof(FragmentNote) * kFragments + kFragmentBytes * index};
}

void Lanes::complete(Part& part) { --part.batch->left; }

// Both ends do it, and whoever comes second finds it done: even a look at a page that is not there would allocate it.
void Lanes::allocate_lane(bool& allocated, int from, int to) {
    if (!allocated && group_.fd() >= 0) allocate(group_.fd(), group_.layout().lane(from, to), kLaneBytes);
    allocated = true;
}

void Lanes::start(Part& part) {
    Peer& peer = peers_[static_cast<size_t>(part.message.peer)];
    if (part.message.send) {
        allocate_lane(peer.sends_allocated, group_.rank(), part.message.peer);
        peer.sends.push_back(&part);
        return;
    }
    allocate_lane(peer.receives_allocated, part.message.peer, group_.rank());
    for (auto kept = peer.kept.begin(); kept != peer.kept.end(); ++kept) {
        if (kept->tag != part.message.tag) continue;
        bool whole = kept->moved == kept->bytes;
        if (kept->bytes != part.message.bytes) {
            throw Error(Code::mismatch, "rank " + std::to_string(part.message.peer) + " of the group sent " +
                                            std::to_string(kept->bytes) + " bytes with tag " +
                                            std::to_string(kept->tag) + " where " +
                                            std::to_string(part.message.bytes) + " are expected");
        }
        copy(part.message.data, kept->data.get(), kept->moved, false);
        part.moved = kept->moved;
        if (whole) {
            complete(part);
        } else {  // only the last can be under way
            peer.keeping = false;
            peer.into = &part;
            peer.receives.push_front(&part);
        }
        peer.kept.erase(kept);
        return;
    }
    peer.receives.push_back(&part);
}

bool Lanes::move_sends(int to) {
    Peer& peer = peers_[static_cast<size_t>(to)];
    LaneLine& lane = line(group_.rank(), to);
    bool moved = false;
    while (!peer.sends.empty() && peer.sent - lane.received.load(std::memory_order_acquire) < kFragments) {
        Part& part = *peer.sends.front();
        Fragment next = fragment(group_.rank(), to, peer.sent);
        uint64_t bytes = std::min<uint64_t>(part.message.bytes - part.moved, kFragmentBytes);
        next.note = {part.message.tag, part.message.bytes, bytes, part.moved == 0 ? 1u : 0u};
        group_.publisher().copy(next.data, part.message.data + part.moved, bytes);
        part.moved += bytes;
        lane.sent.store(++peer.sent, std::memory_order_release);
        group_.domain().ring(group_.process(to));
        if (part.moved == part.message.bytes) {
            peer.sends.pop_front();
            complete(part);
        }
        moved = true;
    }
    return moved;
}

Lanes::Part* Lanes::match(int from, uint64_t tag, uint64_t bytes) {
    for (Part* part : peers_[static_cast<size_t>(from)].receives) {
        if (part->message.tag != tag || part->moved != 0) continue;
        if (part->message.bytes != bytes) {
            throw Error(Code::mismatch, "rank " + std::to_string(from) + " of the group sent " +
                                            std::to_string(bytes) + " bytes with tag " + std::to_string(tag) +
                                            " where " + std::to_string(part->message.bytes) + " are expected");
        }
        return part;
    }
    return nullptr;
}

bool Lanes::take_fragment(int from) {
    Peer& peer = peers_[static_cast<size_t>(from)];
    LaneLine& lane = line(from, group_.rank());
    if (peer.received == lane.sent.load(std::memory_order_acquire)) return false;
    Fragment next = fragment(from, group_.rank(), peer.received);
    if (next.note.first != 0) {
        peer.into = match(from, next.note.tag, next.note.message_bytes);
        peer.keeping = peer.into == nullptr;
        if (peer.keeping) {
            uint64_t bytes = next.note.message_bytes;
            peer.kept.push_back({next.note.tag, bytes, 0, std::make_unique<char[]>(bytes)});
        }
    }
    if (peer.keeping) {
        Kept& kept = peer.kept.back();
        copy(kept.data.get() + kept.moved, next.data, next.note.bytes, false);
        kept.moved += next.note.bytes;
    } else {
        Part& part = *peer.into;
        copy(part.message.data + part.moved, next.data, next.note.bytes, false);
        part.moved += next.note.bytes;
        if (part.moved == part.message.bytes) {
            peer.receives.erase(std::find(peer.receives.begin(), peer.receives.end(), &part));
            peer.into = nullptr;
            complete(part);
        }
    }
    lane.received.store(++peer.received, std::memory_order_release);
    group_.domain().ring(group_.process(from));
    return true;
}

bool Lanes::move_receives(int from) {
    Peer& peer = peers_[static_cast<size_t>(from)];
    bool moved = false;
    while (!peer.receives.empty() && take_fragment(from)) moved = true;
    return moved;
}

void Lanes::withdraw(Batch& batch) {
    auto ours = [&batch](const Part* part) { return part->batch == &batch; };
    for (Peer& peer : peers_) {
        std::erase_if(peer.sends, ours);
        std::erase_if(peer.receives, ours);
        if (peer.into != nullptr && peer.into->batch == &batch) peer.into = nullptr;
    }
}

}  // namespace hpn
