// SPDX-License-Identifier: Apache-2.0
// The collectives that only move: all_gather, all_to_all, broadcast, and the barrier, which moves nothing.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "collectives.h"
#include "error.h"

namespace hpn {
namespace {

class AllGather final : public Collective {
public:
    AllGather(Group& group, const void* input, void* output, std::vector<uint64_t> sizes, const Place& source,
              const Place& target)
        : Collective(group, describe(sizes), false),
          input_(static_cast<const char*>(input)),
          output_(static_cast<char*>(output)),
          sizes_(std::move(sizes)),
          offsets_(offsets_of(sizes_)),
          width_(group.layout().slot_bytes) {
        set_num_steps(ceil_div(*std::max_element(sizes_.begin(), sizes_.end()), width_));
        stream_ = streams(offsets_.back() + sizes_.back());
        // One is enough. An input that is its own part of the output lies elsewhere on each rank.
        set_places(target.id != 0 ? Place{} : source, target);
    }

protected:
    void fill(uint64_t index) override {
        size_t me = static_cast<size_t>(group().rank());
        Slice part = slice(index, width_, sizes_[me]);
        publish(group().slot(group().rank(), first_step() + index), input_ + part.begin, part.length);
        char* own = output_ + offsets_[me];
        if (own != input_) copy(own + part.begin, input_ + part.begin, part.length, stream_);
    }

    void collect(uint64_t index) override {
        for (int rank = 0; rank < group().size(); ++rank) {
            if (rank == group().rank()) continue;
            Slice part = slice(index, width_, sizes_[static_cast<size_t>(rank)]);
            copy(output_ + offsets_[static_cast<size_t>(rank)] + part.begin,
                 group().slot(rank, first_step() + index), part.length, stream_);
        }
    }

    bool direct() override { return target().id != 0 ? push() : pull(); }

private:
    bool push() {
        size_t me = static_cast<size_t>(group().rank());
        Slice now = slice(direct_index_++, kDirectStepBytes, sizes_[me]);
        if (now.length == 0) return true;
        for (int rank = 0; rank < group().size(); ++rank) {
            char* to = target().at(rank) + offsets_[me] + now.begin;
            if (to != input_ + now.begin) copy(to, input_ + now.begin, now.length, stream_);
        }
        return false;
    }

    bool pull() {
        while (direct_rank_ < group().size()) {
            size_t rank = static_cast<size_t>(direct_rank_);
            Slice now = slice(direct_index_++, kDirectStepBytes, sizes_[rank]);
            if (now.length == 0) {
                ++direct_rank_;
                direct_index_ = 0;
                continue;
            }
            char* to = output_ + offsets_[rank] + now.begin;
            const char* from = source().at(direct_rank_) + now.begin;
            if (to != from) copy(to, from, now.length, stream_);
            return false;
        }
        return true;
    }

    static Description describe(const std::vector<uint64_t>& sizes) {
        return {Kind::all_gather, total_of(sizes), Dtype::u8, Op::sum, digest(sizes)};
    }

    const char* input_;
    char* output_;
    std::vector<uint64_t> sizes_;
    std::vector<uint64_t> offsets_;
    uint64_t width_;
    bool stream_ = false;
    int direct_rank_ = 0;
    uint64_t direct_index_ = 0;
};

// Nobody knows the sizes of pieces between two others, so each rank posts its own with the first step.
class AllToAll final : public Collective {
public:
    AllToAll(Group& group, const void* input, void* output, std::vector<uint64_t> sends,
             std::vector<uint64_t> receives, const Place& source)
        : Collective(group, {Kind::all_to_all, 0}, false),
          input_(static_cast<const char*>(input)),
          output_(static_cast<char*>(output)),
          sends_(std::move(sends)),
          receives_(std::move(receives)),
          send_offsets_(offsets_of(sends_)),
          receive_offsets_(offsets_of(receives_)),
          width_(group.layout().piece_bytes) {
        size_t me = static_cast<size_t>(group.rank());
        if (sends_[me] != receives_[me]) {  // the own piece is copied before the sizes of others are compared
            throw Error(Code::invalid, "all_to_all: this rank sends itself " + std::to_string(sends_[me]) +
                                           " bytes where it expects " + std::to_string(receives_[me]));
        }
        stream_ = streams(receive_offsets_.back() + receives_.back());
        set_agreed_bytes(total_of(sends_) + total_of(receives_));
        set_places(source, {});
    }

protected:
    void fill(uint64_t index) override {
        if (index == 0) {
            uint64_t* counts = group().counts(group().rank(), first_step());
            std::copy(sends_.begin(), sends_.end(), counts);
            counts[sends_.size()] = *std::max_element(sends_.begin(), sends_.end());
        }
        char* slot = group().slot(group().rank(), first_step() + index);
        for (int rank = 0; rank < group().size(); ++rank) {
            size_t other = static_cast<size_t>(rank);
            Slice part = slice(index, width_, sends_[other]);
            const char* from = input_ + send_offsets_[other] + part.begin;
            if (rank == group().rank()) {
                copy(output_ + receive_offsets_[other] + part.begin, from, part.length, stream_);
            } else {
                publish(slot + width_ * other, from, part.length);
            }
        }
    }

    void met() override {
        uint64_t most = 0;
        direct_offsets_.resize(sends_.size());
        for (int rank = 0; rank < group().size(); ++rank) {
            const uint64_t* counts = group().counts(rank, first_step());
            most = std::max(most, counts[sends_.size()]);
            uint64_t comes = counts[group().rank()];
            if (comes != receives_[static_cast<size_t>(rank)]) {
                throw Error(Code::mismatch, "all_to_all: rank " + std::to_string(rank) + " of the group sends this rank " +
                                                std::to_string(comes) + " bytes where it expects " +
                                                std::to_string(receives_[static_cast<size_t>(rank)]));
            }
            for (int before = 0; before < group().rank(); ++before) {
                direct_offsets_[static_cast<size_t>(rank)] += counts[before];
            }
        }
        set_num_steps(ceil_div(most, width_));
        set_agreed_bytes(most * sends_.size());
    }

    // Our own piece of the first step is there already; it is short, and is copied again.
    bool direct() override {
        while (direct_rank_ < group().size()) {
            size_t rank = static_cast<size_t>(direct_rank_);
            Slice now = slice(direct_index_++, kDirectStepBytes, receives_[rank]);
            if (now.length != 0) {
                copy(output_ + receive_offsets_[rank] + now.begin,
                     source().at(direct_rank_) + direct_offsets_[rank] + now.begin, now.length, stream_);
                return false;
            }
            ++direct_rank_;
            direct_index_ = 0;
        }
        return true;
    }

    void collect(uint64_t index) override {
        for (int rank = 0; rank < group().size(); ++rank) {
            if (rank == group().rank()) continue;
            size_t other = static_cast<size_t>(rank);
            Slice part = slice(index, width_, receives_[other]);
            copy(output_ + receive_offsets_[other] + part.begin,
                 group().slot(rank, first_step() + index) + width_ * static_cast<size_t>(group().rank()), part.length,
                 stream_);
        }
    }

private:
    const char* input_;
    char* output_;
    std::vector<uint64_t> sends_;
    std::vector<uint64_t> receives_;
    std::vector<uint64_t> send_offsets_;
    std::vector<uint64_t> receive_offsets_;
    std::vector<uint64_t> direct_offsets_;  // where our piece begins in each rank's memory
    uint64_t width_;
    bool stream_ = false;
    int direct_rank_ = 0;
    uint64_t direct_index_ = 0;
};

class Broadcast final : public Collective {
public:
    Broadcast(Group& group, void* data, uint64_t bytes, int root, const Place& place)
        : Collective(group, {Kind::broadcast, bytes, Dtype::u8, Op::sum, static_cast<uint64_t>(root)}, false),
          data_(static_cast<char*>(data)),
          bytes_(bytes),
          root_(root),
          width_(group.layout().slot_bytes) {
        set_num_steps(ceil_div(bytes, width_));
        set_places(place, {});
    }

protected:
    // Only the root is waited for, unless it may turn out that everything can be read where it lies.
    bool arrived(uint64_t step) override {
        return source().id != 0 ? group().all_posted(step) : group().posted(root_, step);
    }
    bool compares(int rank) override { return source().id != 0 || rank == root_; }

    void fill(uint64_t index) override {
        if (group().rank() != root_) return;
        Slice part = slice(index, width_, bytes_);
        publish(group().slot(root_, first_step() + index), data_ + part.begin, part.length);
    }

    void collect(uint64_t index) override {
        if (group().rank() == root_) return;
        Slice part = slice(index, width_, bytes_);
        copy(data_ + part.begin, group().slot(root_, first_step() + index), part.length, streams(bytes_));
    }

    bool direct() override {
        if (group().rank() == root_) return true;
        Slice now = slice(direct_index_++, kDirectStepBytes, bytes_);
        if (now.length == 0) return true;
        copy(data_ + now.begin, source().at(root_) + now.begin, now.length, streams(bytes_));
        return false;
    }

private:
    char* data_;
    uint64_t bytes_;
    int root_;
    uint64_t width_;
    uint64_t direct_index_ = 0;
};

class Barrier final : public Collective {
public:
    explicit Barrier(Group& group) : Collective(group, {Kind::barrier, 0}, false) {}

protected:
    void fill(uint64_t) override {}
};

}  // namespace

std::unique_ptr<Operation> make_all_gather(Group& group, const void* input, void* output, std::vector<uint64_t> sizes,
                                           const Place& source, const Place& target) {
    return std::make_unique<AllGather>(group, input, output, std::move(sizes), source, target);
}

std::unique_ptr<Operation> make_all_to_all(Group& group, const void* input, void* output, std::vector<uint64_t> sends,
                                           std::vector<uint64_t> receives, const Place& source) {
    return std::make_unique<AllToAll>(group, input, output, std::move(sends), std::move(receives), source);
}

std::unique_ptr<Operation> make_broadcast(Group& group, void* data, uint64_t bytes, int root, const Place& place) {
    if (root < 0 || root >= group.size()) {
        throw Error(Code::invalid, "broadcast: rank " + std::to_string(root) + " is not in the group of " +
                                       std::to_string(group.size()));
    }
    return std::make_unique<Broadcast>(group, data, bytes, root, place);
}

std::unique_ptr<Operation> make_barrier(Group& group) { return std::make_unique<Barrier>(group); }

}  // namespace hpn
