// SPDX-License-Identifier: Apache-2.0
// Messages between two ranks of a group.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "group.h"

namespace hpn {

// One message of a batch.
struct Message {
    bool send;
    int peer;
    uint64_t tag;
    char* data;
    uint64_t bytes;
};

// [Note: Lanes]
// Each direction between two ranks is a ring of fragments that the sender fills and the receiver empties; messages
// follow one another in it. A receiver takes what comes for its oldest receive of that tag; a message that nobody asked
// for yet is kept aside, so that it holds up none behind it. It is taken from the ring only while this rank
// receives something from that peer: a sender that is far ahead waits.
class Lanes {
public:
    class Batch;

    explicit Lanes(Group& group);
    ~Lanes();

    // A batch completes when all of its messages have.
    std::unique_ptr<Operation> make_batch(std::vector<Message> messages);

private:
    struct Part;
    struct Kept;
    struct Fragment;

    void start(Part& part);
    void allocate_lane(bool& allocated, int from, int to);
    bool move_sends(int peer);
    bool move_receives(int peer);
    bool take_fragment(int peer);
    Part* match(int peer, uint64_t tag, uint64_t bytes);
    void complete(Part& part);
    void withdraw(Batch& batch);
    LaneLine& line(int from, int to);
    Fragment fragment(int from, int to, uint64_t number);

    Group& group_;
    struct Peer;
    std::vector<Peer> peers_;
};

}  // namespace hpn
