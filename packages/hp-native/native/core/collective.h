// SPDX-License-Identifier: Apache-2.0
// What all collectives share: the pipeline of steps, the check that all ranks make the same call, symmetric operands.
#pragma once

#include <cstddef>
#include <cstdint>

#include "group.h"
#include "reduce.h"

namespace hpn {

enum class Kind : uint64_t { all_reduce = 1, all_gather, reduce_scatter, all_to_all, broadcast, barrier };
const char* kind_name(uint64_t kind);

// A place in symmetric memory: the same on all ranks where `id` and `offset` are.
struct Place {
    uint64_t id = 0;  // 0: ordinary memory
    uint64_t offset = 0;
    char* const* bases = nullptr;  // where each rank's part of the allocation is mapped here

    char* at(int rank) const { return bases[rank] + offset; }
};

// [Note: Pipeline]
// The oldest step that can go on does, so that results leave while their memory is in the cache and other ranks are
// kept waiting the least. A rank fills at most kDepth slots ahead.
class Collective : public Operation {
public:
    Progress step() final;
    bool needs(int rank) final;
    bool brief() const final { return agreed_bytes_ <= kBriefBytes; }

protected:
    struct Description {
        Kind kind;
        uint64_t bytes;
        Dtype dtype = Dtype::u8;
        Op op = Op::sum;
        uint64_t rest = 0;  // whatever else must agree: the sizes, the source
    };
    // `reduces`: whether there are result slots between the slots and what is collected.
    Collective(Group& group, const Description& description, bool reduces);

    // The three parts of a step; `index` counts from 0 within this call.
    virtual void fill(uint64_t index) = 0;
    virtual void reduce(uint64_t /*index*/) {}
    virtual void collect(uint64_t /*index*/) {}
    // Whether what `collect` reads has been posted.
    virtual bool arrived(uint64_t step) { return group().all_posted(step); }
    // Whether `rank` has posted when the first step has arrived, so that its call can be compared with ours.
    virtual bool compares(int /*rank*/) { return true; }
    // Called once all ranks have posted the first step: the number of steps may be known only now.
    virtual void met() {}
    // A part of the work done directly in symmetric memory; true when all of it is.
    virtual bool direct() { return true; }

    // How much it is about, where the description does not say it.
    void set_agreed_bytes(uint64_t bytes) { agreed_bytes_ = bytes; }
    void set_num_steps(uint64_t num_steps) { num_steps_ = num_steps == 0 ? 1 : num_steps; }
    uint64_t num_steps() const { return num_steps_; }
    uint64_t first_step() const { return first_; }
    // Name the operands that lie in symmetric memory. Where all ranks do, `direct` runs instead of the steps.
    void set_places(const Place& source, const Place& target) {
        source_ = source;
        target_ = target;
    }
    const Place& source() const { return source_; }
    const Place& target() const { return target_; }
    // Copy into a slot.
    void publish(void* to, const void* from, uint64_t bytes) { group().publisher().copy(to, from, bytes); }
    bool streams(uint64_t bytes) const { return bytes >= kStreamBytes; }

private:
    static constexpr uint64_t kBriefBytes = 64u << 10;
    static constexpr uint64_t kStreamBytes = 8u << 20;
    // Below this a second look at all ranks costs more than the copy that it saves.
    static constexpr uint64_t kDirectBytes = 64u << 10;

    void start();
    void meet();
    bool all_symmetric();
    Progress step_direct();
    [[noreturn]] void refuse(int rank);

    const Description description_;
    uint64_t signature_;
    const bool reduces_;
    Place source_;
    Place target_;
    uint64_t agreed_bytes_;
    uint64_t num_steps_ = 1;
    uint64_t first_ = 0;
    uint64_t posted_ = 0;
    uint64_t reduced_ = 0;
    uint64_t done_ = 0;
    bool started_ = false;
    bool met_ = false;
    bool direct_ = false;
    bool direct_done_ = false;
};

}  // namespace hpn
