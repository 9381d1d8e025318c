// SPDX-License-Identifier: Apache-2.0
// Every collective, dtype and op, around the sizes where something changes, on 1 to 8 ranks, element by element.
#include "calls.h"

namespace {

using namespace hpn::ranks;

// All ranks make these calls: one after the other, or up to four under way.
void check_calls(const Job& job, const Team& team, const std::vector<Spec>& specs, bool leave_them,
                 const Allocation* symmetric = nullptr) {
    job.run([&](int process) {
        int rank = team.rank_of(process);
        if (rank < 0) return;
        std::deque<std::pair<Call, intptr_t>> under_way;
        auto settle = [&] {
            CHECK_EQ(finish(under_way.front().second), 1);
            CHECK_EQ(under_way.front().first.complaint(), std::string());
            under_way.pop_front();
        };
        for (const Spec& spec : specs) {
            char* place = symmetric == nullptr ? nullptr : symmetric->part(rank);
            // Input and output in one allocation, as tensors may be.
            under_way.emplace_back(Call(spec, team.size(), rank, place, place == nullptr ? nullptr : place + (12 << 20)),
                                   0);
            under_way.back().second = under_way.back().first.start(team[rank]);
            if (leave_them) leave(under_way.back().second);
            if (!leave_them || symmetric != nullptr || under_way.size() == 4) settle();
        }
        while (!under_way.empty()) settle();
    });
}

void test_every_dtype_and_op() {
    for (int size : {1, 2, 3, 5, 8}) {
        Job job(size);
        Team& team = job.everybody();
        std::vector<Spec> specs;
        uint64_t seed = 0;
        for (int dtype = u8; dtype <= boolean; ++dtype) {
            for (int op = sum; op <= bxor; ++op) {
                if (!is_defined(dtype, op)) continue;
                for (int kind : {all_reduce, reduce_scatter}) {
                    for (uint64_t count : {13, 3001}) specs.push_back({kind, dtype, op, count, {}, 0, false, ++seed});
                }
            }
        }
        check_calls(job, team, specs, size % 2 == 0);
    }
}

// 0, 1, odd, one slot, several, more than the ring holds.
void test_sizes() {
    for (int size = 1; size <= 8; ++size) {
        for (uint64_t slot_bytes : {1, 1000, 4096}) {
            Job job(size, size % 2 == 0);
            Team& team = job.everybody(slot_bytes);
            std::vector<Spec> specs;
            uint64_t seed = 100;
            uint64_t slot = slot_bytes < 64 ? 64 : slot_bytes;
            for (uint64_t bytes : {uint64_t{0}, uint64_t{1}, uint64_t{63}, slot - 1, slot, slot + 1, 3 * slot, 9 * slot + 5}) {
                for (int kind = all_reduce; kind <= barrier; ++kind) {
                    specs.push_back({kind, u8, sum, bytes, {}, static_cast<int>(seed % static_cast<uint64_t>(size)),
                                     seed % 3 == 0, ++seed});
                }
            }
            check_calls(job, team, specs, size % 3 == 0);
        }
    }
}

void test_uneven() {
    for (int size : {2, 3, 4, 7}) {
        Job job(size);
        Team& team = job.everybody(2000);
        std::vector<Spec> specs;
        for (uint64_t seed = 0; seed < 24; ++seed) {
            int kind = seed % 3 == 0 ? all_gather : seed % 3 == 1 ? reduce_scatter : all_to_all;
            Spec spec{kind, f32, sum, 0, {}, 0, seed % 2 == 0, seed};
            size_t num = static_cast<size_t>(kind == all_to_all ? size * size : size);
            for (size_t i = 0; i < num; ++i) {
                uint64_t piece = hash(seed, i, 3) >> 7;
                spec.pieces.push_back(piece % 3 == 0 ? 0 : piece % 4000);
            }
            if (kind == all_to_all) spec.in_place = false;
            specs.push_back(spec);
        }
        check_calls(job, team, specs, size % 2 == 0);
    }
}

// Of symmetric operands, big enough to be used where they lie; and sizes from which stores go past the caches.
void test_big() {
    for (int size : {1, 2, 3}) {
        Job job(size);
        Team& team = job.everybody(1 << 20);
        Allocation& symmetric = job.allocate(team, 32 << 20);
        std::vector<Spec> specs;
        uint64_t ranks = static_cast<uint64_t>(size);
        for (uint64_t bytes : {uint64_t{65'536}, uint64_t{1'000'004}, uint64_t{9 << 20}}) {
            if (bytes > 8 << 20 && size != 2) continue;
            specs.push_back({all_reduce, f32, sum, bytes / 4, {}, 0, false, bytes});
            specs.push_back({reduce_scatter, f32, sum, bytes / 4 / ranks, {}, 0, false, bytes});
            specs.push_back({all_gather, u8, sum, bytes / ranks, {}, 0, false, bytes});
            specs.push_back({all_gather, u8, sum, bytes / ranks, {}, 0, true, bytes});
            specs.push_back({all_to_all, u8, sum, bytes / ranks, {}, 0, false, bytes});
            specs.push_back({broadcast, u8, sum, bytes, {}, size - 1, false, bytes});
        }
        check_calls(job, team, specs, true);
        check_calls(job, team, specs, false, &symmetric);
    }
}

}  // namespace

int main() {
    limit_time(400);
    test_every_dtype_and_op();
    test_sizes();
    test_uneven();
    test_big();
    return hpn::check::report();
}
