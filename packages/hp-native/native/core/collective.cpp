// SPDX-License-Identifier: Apache-2.0
#include "collective.h"

#include <string>

#include "error.h"

namespace hpn {
namespace {

uint64_t mix(uint64_t state, uint64_t value) {  // splitmix64's finaliser
    uint64_t x = state + 0x9e3779b97f4a7c15u + value;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

const char* dtype_name(uint64_t dtype) {
    static const char* const names[] = {"uint8",   "int8",     "int16",   "int32",   "int64",
                                        "float16", "bfloat16", "float32", "float64", "bool"};
    return dtype < 10 ? names[dtype] : "?";
}

const char* op_name(uint64_t op) {
    static const char* const names[] = {"sum", "avg", "min", "max", "product", "band", "bor", "bxor"};
    return op < 8 ? names[op] : "?";
}

std::string describe(const CallNote& note) {
    std::string text = kind_name(note.kind);
    bool reduces = note.kind == static_cast<uint64_t>(Kind::all_reduce) ||
                   note.kind == static_cast<uint64_t>(Kind::reduce_scatter);
    if (note.kind == static_cast<uint64_t>(Kind::barrier)) return text;
    text += " of " + std::to_string(note.bytes) + " bytes";
    if (reduces) text += std::string(" (") + dtype_name(note.dtype) + ", " + op_name(note.op) + ")";
    return text;
}

}  // namespace

const char* kind_name(uint64_t kind) {
    static const char* const names[] = {"nothing",    "all_reduce", "all_gather", "reduce_scatter",
                                        "all_to_all", "broadcast",  "barrier"};
    return kind < 7 ? names[kind] : "?";
}

Collective::Collective(Group& group, const Description& description, bool reduces)
    : Operation(group),
      description_(description),
      signature_(mix(mix(mix(static_cast<uint64_t>(description.kind), description.bytes), description.rest),
                     static_cast<uint64_t>(description.dtype) * 256 + static_cast<uint64_t>(description.op))),
      reduces_(reduces),
      agreed_bytes_(description.bytes) {}

void Collective::start() {
    started_ = true;
    first_ = group().next_step();
    // A broadcast is compared with its source's only. What it may miss, the next call that compares all does not.
    signature_ = mix(signature_, group().history());
    group().set_history(signature_);
}

bool Collective::needs(int rank) {
    return !started_ || group().steps_done(rank) < first_ + num_steps_;
}

void Collective::refuse(int rank) {
    const CallNote& theirs = group().note(rank, first_);
    const CallNote& ours = group().note(group().rank(), first_);
    std::string same = describe(theirs) == describe(ours) ? ", with other sizes or another source, or after other calls" : "";
    throw Error(Code::mismatch, "rank " + std::to_string(rank) + " of the group called " + describe(theirs) +
                                    " where this rank called " + describe(ours) + same);
}

// All ranks have posted the first step: check that it is the same call, and learn how to go on.
void Collective::meet() {
    met_ = true;
    for (int rank = 0; rank < group().size(); ++rank) {
        if (compares(rank) && group().signature(rank, first_) != signature_) refuse(rank);
    }
    met();
    direct_ = all_symmetric();
}

bool Collective::all_symmetric() {
    if (agreed_bytes_ < kDirectBytes || (source_.id == 0 && target_.id == 0)) return false;
    for (int rank = 0; rank < group().size(); ++rank) {
        const CallNote& note = group().note(rank, first_);
        if (note.source_id != source_.id || note.target_id != target_.id) return false;
        if (note.source_offset != source_.offset || note.target_offset != target_.offset) return false;
    }
    return true;
}

Progress Collective::step_direct() {
    if (!direct_done_) {
        direct_done_ = direct();
        if (direct_done_) group().set_reduced(first_);
        return Progress::moved;
    }
    // Until all are through, others still read our memory, or write it.
    if (!group().all_reduced(first_)) return Progress::blocked;
    group().set_done(first_);
    group().end_steps(first_ + 1);
    return Progress::finished;
}

Progress Collective::step() {
    Group& g = group();
    if (!started_) start();
    if (posted_ > 0 && !met_ && arrived(first_)) meet();
    if (direct_) return step_direct();
    bool more = posted_ < num_steps_;
    if (met_) {
        if (reduces_) {
            if (done_ < reduced_ && g.all_reduced(first_ + done_)) {
                collect(done_);
                g.set_done(first_ + done_);
                ++done_;
                if (done_ < num_steps_) return Progress::moved;
                g.end_steps(first_ + num_steps_);
                return Progress::finished;
            }
            if (reduced_ < posted_ && g.all_posted(first_ + reduced_)) {
                reduce(reduced_);
                g.set_reduced(first_ + reduced_);
                ++reduced_;
                return Progress::moved;
            }
        } else if (done_ < posted_ && arrived(first_ + done_)) {
            collect(done_);
            g.set_done(first_ + done_);
            ++done_;
            if (done_ < num_steps_) return Progress::moved;
            g.end_steps(first_ + num_steps_);
            return Progress::finished;
        }
    } else if (posted_ > 0 && (source_.id != 0 || target_.id != 0)) {
        more = false;  // whether more than the first step is needed is known only when all are there
    }
    uint64_t next = first_ + posted_;
    if (!more || (next >= kDepth && !g.all_done_with(next - kDepth))) return Progress::blocked;
    if (posted_ == 0) {
        CallNote& note = g.note(g.rank(), first_);
        note = {static_cast<uint64_t>(description_.kind),
                description_.bytes,
                static_cast<uint64_t>(description_.dtype),
                static_cast<uint64_t>(description_.op),
                source_.id,
                source_.offset,
                target_.id,
                target_.offset};
    }
    fill(posted_);
    g.post(next, signature_);
    ++posted_;
    return Progress::moved;
}

}  // namespace hpn
