// SPDX-License-Identifier: Apache-2.0
// all_reduce and reduce_scatter.
#include <algorithm>
#include <utility>
#include <vector>

#include "collectives.h"
#include "error.h"

namespace hpn {
namespace {

ReduceFn checked_reduce_fn(Dtype dtype, Op op) {
    ReduceFn fn = reduce_fn(dtype, op);
    if (fn == nullptr) throw Error(Code::invalid, "the reduce operation is not defined for the dtype");
    return fn;
}

// Small: everybody posts all of it and reduces all of it. One wait instead of two.
class SmallAllReduce final : public Collective {
public:
    SmallAllReduce(Group& group, void* data, uint64_t count, Dtype dtype, Op op)
        : Collective(group, {Kind::all_reduce, count * size_of(dtype), dtype, op}, false),
          data_(static_cast<char*>(data)),
          count_(count),
          bytes_(count * size_of(dtype)),
          fn_(checked_reduce_fn(dtype, op)),
          sources_(static_cast<size_t>(group.size())) {}

protected:
    void fill(uint64_t) override { publish(group().slot(group().rank(), first_step()), data_, bytes_); }

    void collect(uint64_t) override {
        if (count_ == 0) return;
        for (int rank = 0; rank < group().size(); ++rank) {
            sources_[static_cast<size_t>(rank)] = rank == group().rank() ? data_ : group().slot(rank, first_step());
        }
        fn_(data_, nullptr, sources_.data(), group().size(), count_, Stream::none);
    }

private:
    char* data_;
    uint64_t count_;
    uint64_t bytes_;
    ReduceFn fn_;
    std::vector<const void*> sources_;
};

// Each step covers one piece for each rank, which that rank reduces; the pieces of a step are neighbours.
class AllReduce final : public Collective {
public:
    AllReduce(Group& group, void* data, uint64_t count, Dtype dtype, Op op, const Place& place)
        : Collective(group, {Kind::all_reduce, count * size_of(dtype), dtype, op}, true),
          data_(static_cast<char*>(data)),
          count_(count),
          item_(size_of(dtype)),
          fn_(checked_reduce_fn(dtype, op)),
          sources_(static_cast<size_t>(group.size())) {
        uint64_t ranks = static_cast<uint64_t>(group.size());
        uint64_t unit = kLine / item_;
        uint64_t steps = ceil_div(count, group.layout().piece_bytes / item_ * ranks);
        piece_ = round_up(ceil_div(count, steps * ranks), unit);
        set_num_steps(ceil_div(count, piece_ * ranks));
        direct_piece_ = round_up(ceil_div(count, ranks), unit);
        set_places(place, {});
    }

protected:
    void fill(uint64_t index) override {
        char* slot = group().slot(group().rank(), first_step() + index);
        for (int rank = 0; rank < group().size(); ++rank) {
            if (rank == group().rank()) continue;
            Slice part = piece(index, rank);
            publish(slot + group().layout().piece_bytes * static_cast<size_t>(rank), data_ + part.begin * item_,
                    part.length * item_);
        }
    }

    void reduce(uint64_t index) override {
        int me = group().rank();
        Slice part = piece(index, me);
        if (part.length == 0) return;
        char* own = data_ + part.begin * item_;
        size_t offset = group().layout().piece_bytes * static_cast<size_t>(me);
        for (int rank = 0; rank < group().size(); ++rank) {
            sources_[static_cast<size_t>(rank)] =
                rank == me ? own : group().slot(rank, first_step() + index) + offset;
        }
        fn_(own, group().result_slot(me, first_step() + index), sources_.data(), group().size(), part.length,
            group().publisher().of_second(part.length * item_));
    }

    void collect(uint64_t index) override {
        for (int rank = 0; rank < group().size(); ++rank) {
            if (rank == group().rank()) continue;
            Slice part = piece(index, rank);
            copy(data_ + part.begin * item_, group().result_slot(rank, first_step() + index), part.length * item_,
                 false);
        }
    }

    // Nobody but this rank touches its piece of any rank's memory: read all, write all.
    bool direct() override {
        int me = group().rank();
        Slice own = slice(static_cast<uint64_t>(me), direct_piece_, count_);
        Slice now = slice(direct_index_++, kDirectStepBytes / item_, own.length);
        if (now.length == 0) return true;
        uint64_t offset = (own.begin + now.begin) * item_;
        for (int rank = 0; rank < group().size(); ++rank) {
            sources_[static_cast<size_t>(rank)] = source().at(rank) + offset;
        }
        char* first = source().at(me) + offset;
        int next = (me + 1) % group().size();
        fn_(first, group().size() > 1 ? source().at(next) + offset : nullptr, sources_.data(), group().size(),
            now.length, Stream::none);
        for (int rank = 0; rank < group().size(); ++rank) {
            if (rank != me && rank != next) copy(source().at(rank) + offset, first, now.length * item_, false);
        }
        return false;
    }

private:
    Slice piece(uint64_t index, int rank) const {
        return slice(index * static_cast<uint64_t>(sources_.size()) + static_cast<uint64_t>(rank), piece_, count_);
    }

    char* data_;
    uint64_t count_;
    uint64_t item_;
    ReduceFn fn_;
    std::vector<const void*> sources_;
    uint64_t piece_;
    uint64_t direct_piece_;
    uint64_t direct_index_ = 0;
};

class ReduceScatter final : public Collective {
public:
    ReduceScatter(Group& group, const void* input, void* output, std::vector<uint64_t> counts, Dtype dtype, Op op,
                  const Place& place)
        : Collective(group, describe(counts, dtype, op), false),
          input_(static_cast<const char*>(input)),
          output_(static_cast<char*>(output)),
          item_(size_of(dtype)),
          counts_(std::move(counts)),
          offsets_(offsets_of(counts_)),
          fn_(checked_reduce_fn(dtype, op)),
          sources_(counts_.size()),
          piece_(group.layout().piece_bytes / item_) {
        if (streams(counts_[static_cast<size_t>(group.rank())] * item_)) stream_ = Stream::both;
        set_num_steps(ceil_div(*std::max_element(counts_.begin(), counts_.end()), piece_));
        set_places(place, {});
    }

protected:
    void fill(uint64_t index) override {
        char* slot = group().slot(group().rank(), first_step() + index);
        for (int rank = 0; rank < group().size(); ++rank) {
            if (rank == group().rank()) continue;
            size_t other = static_cast<size_t>(rank);
            Slice part = slice(index, piece_, counts_[other]);
            publish(slot + group().layout().piece_bytes * other, input_ + (offsets_[other] + part.begin) * item_,
                    part.length * item_);
        }
    }

    void collect(uint64_t index) override {
        int me = group().rank();
        Slice part = slice(index, piece_, counts_[static_cast<size_t>(me)]);
        if (part.length == 0) return;
        size_t offset = group().layout().piece_bytes * static_cast<size_t>(me);
        for (int rank = 0; rank < group().size(); ++rank) {
            sources_[static_cast<size_t>(rank)] =
                rank == me ? static_cast<const void*>(input_ + (offsets_[static_cast<size_t>(me)] + part.begin) * item_)
                           : group().slot(rank, first_step() + index) + offset;
        }
        fn_(output_ + part.begin * item_, nullptr, sources_.data(), group().size(), part.length, stream_);
    }

    bool direct() override {
        size_t me = static_cast<size_t>(group().rank());
        Slice now = slice(direct_index_++, kDirectStepBytes / item_, counts_[me]);
        if (now.length == 0) return true;
        for (int rank = 0; rank < group().size(); ++rank) {
            sources_[static_cast<size_t>(rank)] = source().at(rank) + (offsets_[me] + now.begin) * item_;
        }
        fn_(output_ + now.begin * item_, nullptr, sources_.data(), group().size(), now.length, stream_);
        return false;
    }

private:
    static Description describe(const std::vector<uint64_t>& counts, Dtype dtype, Op op) {
        return {Kind::reduce_scatter, total_of(counts) * size_of(dtype), dtype, op, digest(counts)};
    }

    const char* input_;
    char* output_;
    uint64_t item_;
    std::vector<uint64_t> counts_;
    std::vector<uint64_t> offsets_;
    ReduceFn fn_;
    std::vector<const void*> sources_;
    uint64_t piece_;
    Stream stream_ = Stream::none;
    uint64_t direct_index_ = 0;
};

// Up to here the whole tensor of each rank is posted. With more ranks each reads more, so the bound is for all of them.
constexpr uint64_t kSmallBytes = 64u << 10;

}  // namespace

std::unique_ptr<Operation> make_all_reduce(Group& group, void* data, uint64_t count, Dtype dtype, Op op,
                                           const Place& place) {
    uint64_t bytes = count * size_of(dtype);
    if (bytes * static_cast<uint64_t>(group.size()) <= kSmallBytes && bytes <= group.layout().slot_bytes) {
        return std::make_unique<SmallAllReduce>(group, data, count, dtype, op);
    }
    return std::make_unique<AllReduce>(group, data, count, dtype, op, place);
}

std::unique_ptr<Operation> make_reduce_scatter(Group& group, const void* input, void* output,
                                               std::vector<uint64_t> counts, Dtype dtype, Op op, const Place& source) {
    return std::make_unique<ReduceScatter>(group, input, output, std::move(counts), dtype, op, source);
}

}  // namespace hpn
