// SPDX-License-Identifier: Apache-2.0
// Long random programmes of collectives and messages: kinds, groups, sizes, where operands lie, who waits when.
//
//   fuzz [seed [calls [ranks [largest_bytes]]]]      without arguments: short runs on 1 to 8 ranks
//
// All ranks run the same programme, as the ranks of a training job do; each at its own pace. What comes out is checked
// byte by byte. On failure it says how to run the same programme again.
#include <atomic>
#include <map>
#include <random>

#include "calls.h"

namespace {

using namespace hpn::ranks;

constexpr uint64_t arena_bytes = 1 << 20;  // of symmetric memory for each call that uses it: half input, half output
constexpr int num_arenas = 4;

struct Message {
    int from;
    int to;
    uint64_t tag;
    uint64_t bytes;
    size_t send_at;  // steps of the programme
    size_t receive_at;
};

struct Step {
    size_t team;
    bool leave;  // to the library's thread, and wait later
    Spec spec{};
    int arena = -1;
    std::vector<int> places{};  // of each rank: -1 for ordinary memory, or an offset in lines
    std::vector<Message> messages{};
};

struct Options {
    uint64_t seed;
    size_t num_calls;
    int num_ranks;
    uint64_t largest;
};

class Programme {
public:
    Programme(const Options& options, const std::vector<std::vector<int>>& teams)
        : options_(options), random_(options.seed) {
        for (size_t index = 0; index < options.num_calls; ++index) {
            Step step{below(teams.size()), below(3) == 0};
            int size = static_cast<int>(teams[step.team].size());
            if (size > 1 && below(5) == 0) {
                add_messages(step, index, size);
            } else {
                add_collective(step, index, size);
            }
            steps.push_back(std::move(step));
        }
    }

    std::vector<Step> steps;

private:
    size_t below(size_t end) { return std::uniform_int_distribution<size_t>(0, end - 1)(random_); }

    uint64_t any_size() {
        uint64_t limits[] = {1, 2, 20, 300, 5000, 5000, 40000, 200000};
        uint64_t limit = limits[below(8)];
        if (below(40) == 0) limit = options_.largest;
        return below(std::min(limit, options_.largest) + 1);
    }

    void add_collective(Step& step, size_t index, int size) {
        Spec& spec = step.spec;
        spec.seed = options_.seed * 1000003 + index;
        spec.kind = static_cast<int>(below(num_kinds));
        do {
            spec.dtype = static_cast<int>(below(10));
            spec.op = static_cast<int>(below(8));
        } while (!is_defined(spec.dtype, spec.op));
        spec.root = static_cast<int>(below(static_cast<size_t>(size)));
        bool reduces = spec.kind == all_reduce || spec.kind == reduce_scatter;
        uint64_t item = reduces ? item_bytes(spec.dtype) : 1;
        bool whole = spec.kind == all_reduce || spec.kind == broadcast;
        bool symmetric = spec.kind != barrier && below(6) == 0;
        uint64_t bytes = symmetric ? 60000 + below(arena_bytes / 2 - 4096 - 60000) : any_size();
        uint64_t ranks = static_cast<uint64_t>(size);
        spec.count = bytes / item / (whole ? 1 : ranks);
        if (!whole && spec.kind != barrier && below(2) == 0) {
            size_t num = spec.kind == all_to_all ? ranks * ranks : ranks;
            for (size_t i = 0; i < num; ++i) spec.pieces.push_back(below(4) == 0 ? 0 : below(spec.count + 1));
        }
        spec.in_place = (spec.kind == all_gather || spec.kind == reduce_scatter) && below(3) == 0;
        if (!symmetric) return;
        step.arena = static_cast<int>(below(num_arenas));
        size_t mode = below(4);  // 0, 1: all alike; 2: some ranks not; 3: somewhere else on each
        for (int rank = 0; rank < size; ++rank) {
            step.places.push_back(mode == 3 ? rank : mode == 2 && below(2) == 0 ? -1 : 1);
        }
    }

    void add_messages(Step& step, size_t index, int size) {
        std::map<std::pair<int, int>, int> lanes;
        for (size_t num = 1 + below(6); num > 0; --num) {
            Message message{static_cast<int>(below(static_cast<size_t>(size))), 0, 0, any_size() + 1, index, index};
            message.to = (message.from + 1 + static_cast<int>(below(static_cast<size_t>(size) - 1))) % size;
            message.tag = below(3);
            if (below(3) == 0) {
                // Early at one end: what nobody asked for yet. Tags of their own, as the order is not that of the steps.
                message.tag = 100 + index * 10 + num;
                (below(2) == 0 ? message.send_at : message.receive_at) += 1 + below(10);
                size_t last = options_.num_calls - 1;
                message.send_at = std::min(message.send_at, last);
                message.receive_at = std::min(message.receive_at, last);
            }
            step.messages.push_back(message);
        }
    }

    Options options_;
    std::mt19937_64 random_;
};

class Fuzz {
public:
    explicit Fuzz(const Options& options)
        : options_(options),
          job_(options.num_ranks, options.seed % 2 == 0),
          reached_(static_cast<size_t>(options.num_ranks)) {
        int n = options.num_ranks;
        std::vector<std::vector<int>> members(7);
        for (int process = 0; process < n; ++process) {
            for (size_t all : {0, 1}) members[all].push_back(process);
            members[2].insert(members[2].begin(), process);
            members[3 + static_cast<size_t>(process % 2)].push_back(process);
            if (process <= n / 2) members[5].push_back(process);
            if (process == 0 || process == n - 1) members[6].push_back(process);
        }
        uint64_t slots[] = {4096, 1 << 20, 1000, 4096, 60000, 64, 200000};
        for (size_t i = 0; i < members.size(); ++i) {
            if (members[i].empty()) continue;
            teams_.push_back(&job_.team(members[i], slots[i]));
            arenas_.push_back(&job_.allocate(*teams_.back(), arena_bytes * num_arenas));
        }
        std::erase_if(members, [](const std::vector<int>& team) { return team.empty(); });
        programme_ = std::make_unique<Programme>(options, members);
        for (size_t index = 0; index < programme_->steps.size(); ++index) {
            const Step& step = programme_->steps[index];
            for (size_t i = 0; i < step.messages.size(); ++i) {
                const Message& message = step.messages[i];
                if (message.send_at > index) late_[message.send_at].push_back({index, i});
                if (message.receive_at > index) late_[message.receive_at].push_back({index, i});
            }
        }
    }

    void run() {
        std::atomic<bool> over{false};
        std::thread watch([&] { watch_progress(over); });
        job_.run([this](int process) { Rank(*this, process).run(); });
        over = true;
        watch.join();
    }

private:
    struct Pending {
        intptr_t operation;
        size_t ready;  // when waiting for it holds up nobody that it needs: after this step
        std::unique_ptr<Call> call;
        size_t team;
        int arena;
        struct Buffer {
            std::vector<char> data;
            std::vector<char> expected;
        };
        std::vector<Buffer> buffers;
        size_t step;
    };

    [[noreturn]] void fail(const std::string& what) {
        static std::mutex one;
        std::lock_guard lock(one);  // never released: the first failure is the one to read
        std::fprintf(stderr, "%s\nfuzz %lu %zu %d %lu fails\n", what.c_str(), options_.seed, options_.num_calls,
                     options_.num_ranks, options_.largest);
        _exit(1);
    }

    void watch_progress(const std::atomic<bool>& over) {
        std::vector<size_t> before;
        double since = seconds_now();
        while (!over) {
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
            std::vector<size_t> now(reached_.begin(), reached_.end());
            if (now != before) since = seconds_now();
            before = now;
            if (seconds_now() - since < 60) continue;
            std::string text = "nothing moves; the ranks are at steps";
            for (size_t step : now) text += " " + std::to_string(step);
            std::fprintf(stderr, "%s, seed %lu\n", text.c_str(), options_.seed);
            abort();
        }
    }

    class Rank {
    public:
        Rank(Fuzz& fuzz, int process)
            : fuzz_(fuzz), process_(process), random_(fuzz.options_.seed * 64 + static_cast<uint64_t>(process)) {}

        void run() {
            for (at_ = 0; at_ < fuzz_.programme_->steps.size(); ++at_) {
                fuzz_.reached_[static_cast<size_t>(process_)] = at_;
                if (below(16) == 0) std::this_thread::yield();
                if (below(300) == 0) std::this_thread::sleep_for(std::chrono::microseconds(below(300)));
                const Step& step = fuzz_.programme_->steps[at_];
                if (auto late = fuzz_.late_.find(at_); late != fuzz_.late_.end()) {
                    for (auto [index, number] : late->second) start_late(index, number);
                }
                int rank = fuzz_.teams_[step.team]->rank_of(process_);
                if (rank >= 0 && step.messages.empty()) start_collective(step, rank);
                if (rank >= 0 && !step.messages.empty()) start_messages(step, rank);
                while (pending_.size() > 8 && settle_any()) {
                }
                if (below(6) == 0) settle_any();
            }
            while (settle_any()) {
            }
            if (!pending_.empty()) fuzz_.fail("operations are left over");
        }

    private:
        size_t below(size_t end) { return std::uniform_int_distribution<size_t>(0, end - 1)(random_); }

        void start_collective(const Step& step, int rank) {
            char* input = nullptr;
            char* output = nullptr;
            for (size_t i = 0; step.arena >= 0 && i < pending_.size(); ++i) {
                // What used that memory before is over before it is used again.
                if (pending_[i].arena == step.arena && pending_[i].team == step.team) {
                    settle(i);
                    break;
                }
            }
            if (step.arena >= 0 && step.places[static_cast<size_t>(rank)] >= 0) {
                input = fuzz_.arenas_[step.team]->part(rank) + arena_bytes * static_cast<uint64_t>(step.arena) +
                        64 * step.places[static_cast<size_t>(rank)];
                output = input + arena_bytes / 2;
                if (step.spec.seed % 3 == 0) (step.spec.seed % 2 == 0 ? input : output) = nullptr;
            }
            const Team& team = *fuzz_.teams_[step.team];
            Pending made{0, at_, std::make_unique<Call>(step.spec, team.size(), rank, input, output), step.team,
                         step.arena, {}, at_};
            made.operation = made.call->start(team[rank]);
            add(std::move(made), step.leave);
        }

        // All of a step's messages that this rank sends or receives at once, in any order but that of equal tags.
        void start_messages(const Step& step, int rank) {
            std::vector<size_t> early;
            std::vector<size_t> together;
            for (size_t i = 0; i < step.messages.size(); ++i) {
                const Message& message = step.messages[i];
                bool sends = message.from == rank && message.send_at == at_;
                bool receives = message.to == rank && message.receive_at == at_;
                if (!sends && !receives) continue;
                (message.send_at != message.receive_at ? early : together).push_back(i);
            }
            std::shuffle(together.begin(), together.end(), random_);
            for (size_t i = 0; i < together.size(); ++i) {
                for (size_t j = i + 1; j < together.size(); ++j) {
                    const Message& a = step.messages[together[i]];
                    const Message& b = step.messages[together[j]];
                    bool same_lane = a.from == b.from && a.to == b.to && a.tag == b.tag;
                    if (same_lane && together[j] < together[i]) std::swap(together[i], together[j]);
                }
            }
            start_batch(step, rank, at_, together, step.leave);
            for (size_t one : early) start_batch(step, rank, at_, {one}, true);
        }

        void start_late(size_t index, size_t number) {
            const Step& step = fuzz_.programme_->steps[index];
            const Message& message = step.messages[number];
            int rank = fuzz_.teams_[step.team]->rank_of(process_);
            if (rank < 0) return;
            if ((message.from == rank && message.send_at == at_) || (message.to == rank && message.receive_at == at_)) {
                start_batch(step, rank, index, {number}, true);
            }
        }

        void start_batch(const Step& step, int rank, size_t index, const std::vector<size_t>& numbers, bool leave) {
            if (numbers.empty()) return;
            Pending made{0, at_, nullptr, step.team, -1, {}, at_};
            std::vector<hpn_message> messages;
            made.buffers.reserve(numbers.size());
            for (size_t number : numbers) {
                const Message& message = step.messages[number];
                made.ready = std::max({made.ready, message.send_at, message.receive_at});
                std::vector<char> data(message.bytes);
                fill_bytes(data.data(), data.size(), fuzz_.options_.seed + index, number);
                bool sends = message.from == rank;
                made.buffers.push_back({sends ? data : std::vector<char>(message.bytes, 'x'), data});
                messages.push_back({sends, sends ? message.to : message.from, message.tag,
                                    made.buffers.back().data.data(), message.bytes});
            }
            made.operation = hpn_batch((*fuzz_.teams_[step.team])[rank], messages.data(),
                                       static_cast<int>(messages.size()));
            add(std::move(made), leave);
        }

        void add(Pending made, bool leave_it) {
            if (made.operation == 0) fuzz_.fail(std::string("refused: ") + hpn_error());
            if (leave_it) leave(made.operation);
            pending_.push_back(std::move(made));
            if (!leave_it) settle(pending_.size() - 1);
        }

        bool settle_any() {
            std::vector<size_t> ready;
            for (size_t i = 0; i < pending_.size(); ++i) {
                if (pending_[i].ready <= at_) ready.push_back(i);
            }
            if (ready.empty()) return false;
            settle(ready[below(ready.size())]);
            return true;
        }

        void settle(size_t which) {
            Pending& one = pending_[which];
            if (one.operation != 1) {
                size_t way = below(4);
                for (size_t look = below(4); look > 0 && way == 0; --look) hpn_test(one.operation);
                int result = 0;
                while (result == 0) result = wait_for(one.operation, way == 1 ? 0.0003 : 100.0);
                if (result != 1) fuzz_.fail("step " + std::to_string(one.step) + ": " + hpn_error());
            }
            std::string complaint = one.call ? one.call->complaint() : "";
            for (const Pending::Buffer& buffer : one.buffers) {
                if (buffer.data != buffer.expected) {
                    complaint = "a message of " + std::to_string(buffer.data.size()) + " bytes is wrong";
                }
            }
            if (!complaint.empty()) fuzz_.fail("step " + std::to_string(one.step) + ": " + complaint);
            CHECK(complaint.empty());
            pending_.erase(pending_.begin() + static_cast<std::ptrdiff_t>(which));
        }

        Fuzz& fuzz_;
        int process_;
        std::mt19937_64 random_;
        size_t at_ = 0;
        std::vector<Pending> pending_;
    };

    Options options_;
    Job job_;
    std::vector<std::atomic<size_t>> reached_;
    std::vector<Team*> teams_;
    std::vector<Allocation*> arenas_;
    std::unique_ptr<Programme> programme_;
    std::map<size_t, std::vector<std::pair<size_t, size_t>>> late_;  // messages whose one end comes later
};

}  // namespace

int main(int argc, char** argv) {
    auto number = [&](int index, uint64_t otherwise) {
        return argc > index ? std::strtoull(argv[index], nullptr, 10) : otherwise;
    };
    if (argc > 1) {
        Fuzz({number(1, 1), number(2, 1000), static_cast<int>(number(3, 4)), number(4, 8 << 20)}).run();
        return hpn::check::report();
    }
    limit_time(400);
    for (int num_ranks = 1; num_ranks <= 8; ++num_ranks) {
        Fuzz({static_cast<uint64_t>(num_ranks), 150, num_ranks, 200'000}).run();
    }
    return hpn::check::report();
}
