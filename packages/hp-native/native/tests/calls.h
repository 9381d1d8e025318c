// SPDX-License-Identifier: Apache-2.0
// A collective described once for all ranks, one rank's operands of it, and what must come out: by plain loops.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "ranks.h"

namespace hpn::ranks {

enum Kind { all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, barrier };
inline constexpr int num_kinds = 6;
enum { u8, i8, i16, i32, i64, f16, bf16, f32, f64, boolean };
enum { sum, avg, min, max, product, band, bor, bxor };

inline uint64_t item_bytes(int dtype) {
    constexpr uint64_t bytes[] = {1, 1, 2, 4, 8, 2, 2, 4, 8, 1};
    return bytes[dtype];
}
inline bool is_float(int dtype) { return dtype >= f16 && dtype <= f64; }
inline bool is_defined(int dtype, int op) { return is_float(dtype) ? op <= product : op != avg; }

struct Spec {
    int kind = barrier;
    int dtype = u8;  // of what reduces; the others move bytes
    int op = sum;
    uint64_t count = 0;             // of all_reduce and broadcast, or of each piece where `pieces` is empty
    std::vector<uint64_t> pieces{};  // of each rank; of all_to_all: [from * size + to]
    int root = 0;
    bool in_place = false;  // all_gather and reduce_scatter: one operand is a part of the other
    uint64_t seed = 0;

    uint64_t piece(int rank) const { return pieces.empty() ? count : pieces[static_cast<size_t>(rank)]; }
    uint64_t piece(int from, int to, int size) const {
        return pieces.empty() ? count : pieces[static_cast<size_t>(from * size + to)];
    }
    std::string text() const {
        const char* const kinds[] = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "barrier"};
        std::string all = kinds[kind] + (" dtype " + std::to_string(dtype)) + " op " + std::to_string(op) + " count " +
                          std::to_string(count) + " root " + std::to_string(root) + (in_place ? " in place" : "");
        for (uint64_t piece : pieces) all += " " + std::to_string(piece);
        return all + " seed " + std::to_string(seed);
    }
};

// ---- values ----

inline uint64_t hash(uint64_t seed, uint64_t stream, uint64_t index) {
    uint64_t x = (seed * 0x9e3779b97f4a7c15u) ^ (stream * 0xd1342543de82ef95u) ^ (index * 0x94d049bb133111ebu);
    x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9u;
    return x ^ (x >> 32);
}

inline void fill_bytes(char* into, uint64_t bytes, uint64_t seed, uint64_t stream) {
    for (uint64_t at = 0; at < bytes; at += 8) {
        uint64_t word = hash(seed, stream, at);
        std::memcpy(into + at, &word, std::min<uint64_t>(8, bytes - at));
    }
}

// Small whole numbers, such that every dtype holds every result exactly.
inline int64_t operand(const Spec& spec, int rank, int size, uint64_t index) {
    uint64_t bits = hash(spec.seed, static_cast<uint64_t>(rank), index) >> 8;
    if (spec.dtype == boolean) return static_cast<int64_t>(bits % 2);
    switch (spec.op) {
        case avg: return static_cast<int64_t>(bits % 4) * size;
        case product: return static_cast<int64_t>(1 + bits % 2);
        case band:
        case bor:
        case bxor: return static_cast<int64_t>(bits % 128);
        default: return static_cast<int64_t>(bits % 16);
    }
}

inline int64_t result(const Spec& spec, int size, uint64_t index) {
    int64_t total = operand(spec, 0, size, index);
    for (int rank = 1; rank < size; ++rank) {
        int64_t next = operand(spec, rank, size, index);
        switch (spec.op) {
            case sum:
            case avg: total += next; break;
            case min: total = std::min(total, next); break;
            case max: total = std::max(total, next); break;
            case product: total *= next; break;
            case band: total &= next; break;
            case bor: total |= next; break;
            case bxor: total ^= next; break;
        }
    }
    if (spec.dtype == boolean) return total != 0 ? 1 : 0;
    return spec.op == avg ? total / size : total;
}

template <class T>
void put_as(char* to, int64_t value) {
    T converted = static_cast<T>(value);  // wraps, as reductions of whole numbers do
    std::memcpy(to, &converted, sizeof(T));
}

inline void encode(int dtype, int64_t value, char* to) {
    switch (dtype) {
        case u8:
        case i8:
        case boolean: return put_as<uint8_t>(to, value);
        case i16: return put_as<uint16_t>(to, value);
        case i32: return put_as<uint32_t>(to, value);
        case i64: return put_as<uint64_t>(to, value);
        case f32: return put_as<float>(to, value);
        case f64: return put_as<double>(to, value);
    }
    // Exact: a whole number of few bits.
    float number = static_cast<float>(value);
    uint32_t bits = 0;
    std::memcpy(&bits, &number, 4);
    uint16_t half = static_cast<uint16_t>(bits >> 16);
    if (dtype == f16) half = number == 0 ? 0 : static_cast<uint16_t>(((bits >> 13) & 0x3ff) | (((bits >> 23) - 112) << 10));
    std::memcpy(to, &half, 2);
}

// ---- operands ----

// Memory at any address that suits the elements, as tensors have it.
class Operand {
public:
    Operand() = default;
    Operand(uint64_t bytes, uint64_t item, uint64_t shift, char* symmetric) : bytes_(bytes), at_(symmetric) {
        if (symmetric != nullptr) return;
        own_.resize(bytes + 16 * item);
        at_ = own_.data() + shift % 16 * item;  // a vector is aligned to 16 at least
    }
    Operand(Operand&&) = default;
    Operand& operator=(Operand&&) = default;
    char* at() const { return at_; }
    uint64_t bytes() const { return bytes_; }

private:
    std::vector<char> own_;
    uint64_t bytes_ = 0;
    char* at_ = nullptr;
};

// One rank's part of a collective.
class Call {
public:
    // Where the operands lie: null for ordinary memory. In-place calls have only one, the larger.
    Call(Spec spec, int size, int rank, char* symmetric_input = nullptr, char* symmetric_output = nullptr)
        : spec_(std::move(spec)), size_(size), rank_(rank) {
        uint64_t shift = hash(spec_.seed, 1000 + static_cast<uint64_t>(rank), 0) >> 20;
        uint64_t item = spec_.kind == all_reduce || spec_.kind == reduce_scatter ? item_bytes(spec_.dtype) : 1;
        uint64_t total = 0;
        uint64_t before = 0;
        for (int other = 0; other < size; ++other) {
            if (other == rank) before = total;
            if (spec_.kind == all_gather || spec_.kind == reduce_scatter) total += spec_.piece(other) * item;
        }
        switch (spec_.kind) {
            case all_reduce:
            case broadcast:
                output_ = Operand(spec_.count * item, item, shift, symmetric_output);
                break;
            case all_gather:
                output_ = Operand(total, 1, shift, symmetric_output);
                if (!spec_.in_place) input_ = Operand(spec_.piece(rank), 1, shift / 16, symmetric_input);
                in_ = spec_.in_place ? output_.at() + before : input_.at();
                break;
            case reduce_scatter:
                input_ = Operand(total, item, shift, symmetric_input);
                if (!spec_.in_place) output_ = Operand(spec_.piece(rank) * item, item, shift / 16, symmetric_output);
                in_ = input_.at();
                break;
            case all_to_all:
                for (int other = 0; other < size; ++other) {
                    sends_.push_back(spec_.piece(rank, other, size));
                    receives_.push_back(spec_.piece(other, rank, size));
                }
                input_ = Operand(std::accumulate(sends_.begin(), sends_.end(), uint64_t{0}), 1, shift, symmetric_input);
                output_ = Operand(std::accumulate(receives_.begin(), receives_.end(), uint64_t{0}), 1, shift / 16,
                                  symmetric_output);
                in_ = input_.at();
                break;
        }
        out_ = output_.at();
        if (spec_.kind == reduce_scatter && spec_.in_place) out_ = input_.at() + before;
        write(before / item, total / item);
        if (!spec_.in_place && in_ != nullptr) kept_.assign(in_, in_ + input_.bytes());
    }

    intptr_t start(hpn_group* group) {
        const uint64_t* pieces = spec_.pieces.empty() ? nullptr : spec_.pieces.data();
        switch (spec_.kind) {
            case all_reduce: return hpn_all_reduce(group, out_, spec_.count, spec_.dtype, spec_.op);
            case all_gather: return hpn_all_gather(group, in_, out_, spec_.count, pieces);
            case reduce_scatter:
                return hpn_reduce_scatter(group, in_, out_, spec_.count, pieces, spec_.dtype, spec_.op);
            case all_to_all:
                return hpn_all_to_all(group, in_, out_, spec_.count, pieces == nullptr ? nullptr : sends_.data(),
                                      pieces == nullptr ? nullptr : receives_.data());
            case broadcast: return hpn_broadcast(group, out_, spec_.count, spec_.root);
            default: return hpn_barrier(group);
        }
    }

    // "" where all is as it must be, or else what is not.
    std::string complaint() const {
        if (!expected_.empty() && std::memcmp(out_, expected_.data(), expected_.size()) != 0) {
            auto at = std::mismatch(expected_.begin(), expected_.end(), out_).first - expected_.begin();
            return "rank " + std::to_string(rank_) + " of " + std::to_string(size_) + ": byte " + std::to_string(at) +
                   " of " + std::to_string(expected_.size()) + " is wrong after " + spec_.text();
        }
        if (!kept_.empty() && std::memcmp(in_, kept_.data(), kept_.size()) != 0) {
            return "rank " + std::to_string(rank_) + ": the input was changed by " + spec_.text();
        }
        return "";
    }

private:
    void write(uint64_t first, uint64_t total) {
        uint64_t item = item_bytes(spec_.dtype);
        uint64_t rank = static_cast<uint64_t>(rank_);
        auto reduced = [&](uint64_t begin, uint64_t count) {
            expected_.resize(count * item);
            for (uint64_t i = 0; i < count; ++i) {
                encode(spec_.dtype, result(spec_, size_, begin + i), expected_.data() + i * item);
            }
        };
        auto operands = [&](char* into, uint64_t count) {
            for (uint64_t i = 0; i < count; ++i) encode(spec_.dtype, operand(spec_, rank_, size_, i), into + i * item);
        };
        switch (spec_.kind) {
            case all_reduce:
                operands(out_, spec_.count);
                reduced(0, spec_.count);
                break;
            case reduce_scatter:
                operands(in_, total);
                reduced(first, spec_.piece(rank_));
                break;
            case all_gather:
                if (spec_.in_place) std::fill(out_, out_ + output_.bytes(), 0);
                fill_bytes(in_, spec_.piece(rank_), spec_.seed, rank);
                expected_.resize(output_.bytes());
                for (uint64_t other = 0, at = 0; other < static_cast<uint64_t>(size_); ++other) {
                    uint64_t piece = spec_.piece(static_cast<int>(other));
                    fill_bytes(expected_.data() + at, piece, spec_.seed, other);
                    at += piece;
                }
                break;
            case all_to_all:
                expected_.resize(output_.bytes());
                for (size_t other = 0, in = 0, out = 0; other < sends_.size(); ++other) {
                    fill_bytes(in_ + in, sends_[other], spec_.seed, rank * 64 + other);
                    fill_bytes(expected_.data() + out, receives_[other], spec_.seed, other * 64 + rank);
                    in += sends_[other];
                    out += receives_[other];
                }
                break;
            case broadcast:
                fill_bytes(out_, spec_.count, spec_.seed, rank);
                expected_.resize(spec_.count);
                fill_bytes(expected_.data(), spec_.count, spec_.seed, static_cast<uint64_t>(spec_.root));
                break;
        }
    }

    Spec spec_;
    int size_;
    int rank_;
    Operand input_;
    Operand output_;
    char* in_ = nullptr;
    char* out_ = nullptr;
    std::vector<uint64_t> sends_;
    std::vector<uint64_t> receives_;
    std::vector<char> kept_;
    std::vector<char> expected_;
};

}  // namespace hpn::ranks
