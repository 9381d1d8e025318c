// SPDX-License-Identifier: Apache-2.0
// all_reduce, reduce_scatter and all_gather of float32 that travel in bf16 or e4m3 and accumulate in float32.
//
// [Note: Equal on all ranks] A result is encoded once, by whoever owns it, and every rank, the owner too, decodes that:
// so all ranks have the same bits. A reduced piece that only its owner keeps is not encoded again.
#include <algorithm>
#include <utility>
#include <vector>

#include "collectives.h"
#include "error.h"
#include "wire.h"

namespace hpn {
namespace {

// What encodes: pieces begin at multiples of a block.
class Codec {
public:
    explicit Codec(Wire wire) : wire_(wire) {
        if (wire != Wire::bf16 && wire != Wire::e4m3) throw Error(Code::invalid, "the wire is bf16 or e4m3");
    }
    // Values that fit into `bytes`, a multiple of the block.
    uint64_t fit(uint64_t bytes) const {
        uint64_t block_bytes = wire_ == Wire::bf16 ? e4m3_block_values * sizeof(uint16_t) : e4m3_block_bytes;
        if (bytes < block_bytes) throw Error(Code::invalid, "the group's slots are too small for low precision");
        return bytes / block_bytes * e4m3_block_values;
    }
    void encode(char* to, const float* from, uint64_t count) const {
        if (wire_ == Wire::bf16) {
            bf16_encode(reinterpret_cast<uint16_t*>(to), from, count);
        } else {
            e4m3_encode(reinterpret_cast<uint8_t*>(to), from, count);
        }
    }
    void decode(float* to, const char* from, uint64_t count) const {
        if (wire_ == Wire::bf16) {
            bf16_decode(to, reinterpret_cast<const uint16_t*>(from), count);
        } else {
            e4m3_decode(to, reinterpret_cast<const uint8_t*>(from), count);
        }
    }
    void accumulate(float* to, const char* from, uint64_t count) const {
        if (wire_ == Wire::bf16) {
            bf16_accumulate(to, reinterpret_cast<const uint16_t*>(from), count);
        } else {
            e4m3_accumulate(to, reinterpret_cast<const uint8_t*>(from), count);
        }
    }

private:
    Wire wire_;
};

void check_op(Op op) {
    if (op != Op::sum && op != Op::avg) throw Error(Code::invalid, "in low precision there are sum and avg");
}

class WireReduction : public Collective {
protected:
    WireReduction(Group& group, const Description& description, bool reduces, Wire wire)
        : Collective(group, description, reduces), codec_(wire), op_(description.op) {
        check_op(op_);
    }

    // The sum (or average) of this rank's piece into `sum`, in the order of ranks.
    void add_up(float* sum, const float* own, uint64_t index, uint64_t count) {
        int me = group().rank();
        size_t offset = group().layout().piece_bytes * static_cast<size_t>(me);
        for (int rank = 0; rank < group().size(); ++rank) {
            const char* theirs = group().slot(rank, first_step() + index) + offset;
            if (rank == me && rank == 0) {
                std::copy(own, own + count, sum);
            } else if (rank == me) {
                for (uint64_t i = 0; i < count; ++i) sum[i] += own[i];
            } else if (rank == 0) {
                codec_.decode(sum, theirs, count);
            } else {
                codec_.accumulate(sum, theirs, count);
            }
        }
        if (op_ == Op::avg) {
            float ranks = static_cast<float>(group().size());
            for (uint64_t i = 0; i < count; ++i) sum[i] /= ranks;
        }
    }

    Codec codec_;

private:
    Op op_;
};

class WireAllReduce final : public WireReduction {
public:
    WireAllReduce(Group& group, float* data, uint64_t count, Op op, Wire wire)
        : WireReduction(group, {Kind::all_reduce, count * sizeof(float), Dtype::f32, op, static_cast<uint64_t>(wire)},
                        true, wire),
          data_(data),
          count_(count),
          ranks_(group.size()) {
        uint64_t ranks = static_cast<uint64_t>(group.size());
        uint64_t steps = ceil_div(count, codec_.fit(group.layout().piece_bytes) * ranks);
        piece_ = steps == 0 ? e4m3_block_values : round_up(ceil_div(count, steps * ranks), e4m3_block_values);
        set_num_steps(ceil_div(count, piece_ * ranks));
        sum_.resize(piece_);
    }

protected:
    void fill(uint64_t index) override {
        char* slot = group().slot(group().rank(), first_step() + index);
        for (int rank = 0; rank < group().size(); ++rank) {
            if (rank == group().rank()) continue;
            Slice part = piece(index, rank);
            codec_.encode(slot + group().layout().piece_bytes * static_cast<size_t>(rank), data_ + part.begin,
                          part.length);
        }
    }

    void reduce(uint64_t index) override {
        int me = group().rank();
        Slice part = piece(index, me);
        add_up(sum_.data(), data_ + part.begin, index, part.length);
        char* result = group().result_slot(me, first_step() + index);
        codec_.encode(result, sum_.data(), part.length);
        codec_.decode(data_ + part.begin, result, part.length);
    }

    void collect(uint64_t index) override {
        for (int rank = 0; rank < group().size(); ++rank) {
            if (rank == group().rank()) continue;
            Slice part = piece(index, rank);
            codec_.decode(data_ + part.begin, group().result_slot(rank, first_step() + index), part.length);
        }
    }

private:
    Slice piece(uint64_t index, int rank) const {
        return slice(index * static_cast<uint64_t>(ranks_) + static_cast<uint64_t>(rank), piece_, count_);
    }

    float* data_;
    uint64_t count_;
    int ranks_;
    uint64_t piece_;
    std::vector<float> sum_;
};

class WireReduceScatter final : public WireReduction {
public:
    WireReduceScatter(Group& group, const float* input, float* output, std::vector<uint64_t> counts, Op op, Wire wire)
        : WireReduction(group, describe(counts, op, wire), false, wire),
          input_(input),
          output_(output),
          counts_(std::move(counts)),
          offsets_(offsets_of(counts_)),
          piece_(codec_.fit(group.layout().piece_bytes)) {
        set_num_steps(ceil_div(*std::max_element(counts_.begin(), counts_.end()), piece_));
    }

protected:
    void fill(uint64_t index) override {
        char* slot = group().slot(group().rank(), first_step() + index);
        for (int rank = 0; rank < group().size(); ++rank) {
            if (rank == group().rank()) continue;
            size_t other = static_cast<size_t>(rank);
            Slice part = slice(index, piece_, counts_[other]);
            codec_.encode(slot + group().layout().piece_bytes * other, input_ + offsets_[other] + part.begin,
                          part.length);
        }
    }

    void collect(uint64_t index) override {
        size_t me = static_cast<size_t>(group().rank());
        Slice part = slice(index, piece_, counts_[me]);
        add_up(output_ + part.begin, input_ + offsets_[me] + part.begin, index, part.length);
    }

private:
    static Description describe(const std::vector<uint64_t>& counts, Op op, Wire wire) {
        return {Kind::reduce_scatter, total_of(counts) * sizeof(float), Dtype::f32, op, digest(counts, static_cast<uint64_t>(wire))};
    }

    const float* input_;
    float* output_;
    std::vector<uint64_t> counts_;
    std::vector<uint64_t> offsets_;
    uint64_t piece_;
};

class WireAllGather final : public Collective {
public:
    WireAllGather(Group& group, const float* input, float* output, std::vector<uint64_t> counts, Wire wire)
        : Collective(group, describe(counts, wire), false),
          codec_(wire),
          input_(input),
          output_(output),
          counts_(std::move(counts)),
          offsets_(offsets_of(counts_)),
          piece_(codec_.fit(group.layout().slot_bytes)) {
        set_num_steps(ceil_div(*std::max_element(counts_.begin(), counts_.end()), piece_));
    }

protected:
    void fill(uint64_t index) override {
        Slice part = slice(index, piece_, counts_[static_cast<size_t>(group().rank())]);
        codec_.encode(group().slot(group().rank(), first_step() + index), input_ + part.begin, part.length);
    }

    void collect(uint64_t index) override {
        for (int rank = 0; rank < group().size(); ++rank) {
            size_t other = static_cast<size_t>(rank);
            Slice part = slice(index, piece_, counts_[other]);
            codec_.decode(output_ + offsets_[other] + part.begin, group().slot(rank, first_step() + index),
                          part.length);
        }
    }

private:
    static Description describe(const std::vector<uint64_t>& counts, Wire wire) {
        return {Kind::all_gather, total_of(counts) * sizeof(float), Dtype::f32, Op::sum, digest(counts, static_cast<uint64_t>(wire))};
    }

    Codec codec_;
    const float* input_;
    float* output_;
    std::vector<uint64_t> counts_;
    std::vector<uint64_t> offsets_;
    uint64_t piece_;
};

}  // namespace

std::unique_ptr<Operation> make_wire_all_reduce(Group& group, float* data, uint64_t count, Op op, Wire wire) {
    return std::make_unique<WireAllReduce>(group, data, count, op, wire);
}

std::unique_ptr<Operation> make_wire_reduce_scatter(Group& group, const float* input, float* output,
                                                    std::vector<uint64_t> counts, Op op, Wire wire) {
    return std::make_unique<WireReduceScatter>(group, input, output, std::move(counts), op, wire);
}

std::unique_ptr<Operation> make_wire_all_gather(Group& group, const float* input, float* output,
                                                std::vector<uint64_t> counts, Wire wire) {
    return std::make_unique<WireAllGather>(group, input, output, std::move(counts), wire);
}

}  // namespace hpn
