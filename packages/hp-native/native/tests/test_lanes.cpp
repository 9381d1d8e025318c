// SPDX-License-Identifier: Apache-2.0
// Messages between two ranks: order, tags, early ones, half received ones, sizes that differ.
#include "calls.h"

namespace {

using namespace hpn::ranks;

constexpr uint64_t many = 3'000'000;  // more than a lane holds

hpn_message sending(std::vector<char>& data, int peer, uint64_t tag) { return {1, peer, tag, data.data(), data.size()}; }
hpn_message receiving(std::vector<char>& data, int peer, uint64_t tag) { return {0, peer, tag, data.data(), data.size()}; }

std::vector<char> filled(uint64_t bytes, uint64_t stream) {
    std::vector<char> data(bytes);
    fill_bytes(data.data(), bytes, 11, stream);
    return data;
}

int exchange(hpn_group* group, std::vector<hpn_message> messages) {
    return finish(hpn_batch(group, messages.data(), static_cast<int>(messages.size())), 30);
}

void test_tags_in_any_order() {
    for (uint64_t bytes : {uint64_t{1}, uint64_t{131'072}, uint64_t{131'073}, many}) {
        Job job(2);
        Team& team = job.everybody();
        job.run([&](int rank) {
            std::vector<std::vector<char>> data;
            for (uint64_t tag = 0; tag < 4; ++tag) data.push_back(rank == 0 ? filled(bytes + tag, tag) : std::vector<char>(bytes + tag));
            if (rank == 0) {
                CHECK_EQ(exchange(team[0], {sending(data[0], 1, 0), sending(data[1], 1, 1), sending(data[2], 1, 2), sending(data[3], 1, 3)}), 1);
            } else {
                CHECK_EQ(exchange(team[1], {receiving(data[3], 0, 3), receiving(data[1], 0, 1), receiving(data[0], 0, 0), receiving(data[2], 0, 2)}), 1);
            }
            for (uint64_t tag = 0; tag < 4; ++tag) CHECK(data[tag] == filled(bytes + tag, tag));
        });
    }
}

// Both ways at once, between all; equal tags arrive in the order in which they were sent.
void test_everybody_to_everybody() {
    Job job(4);
    Team& team = job.everybody();
    job.run([&](int rank) {
        for (uint64_t round = 0; round < 20; ++round) {
            std::deque<std::vector<char>> out, in;
            std::vector<hpn_message> messages;
            for (int peer = 0; peer < 4; ++peer) {
                for (uint64_t turn = 0; turn < 2 && peer != rank; ++turn) {
                    uint64_t bytes = 1 + hash(round, turn, 0) % 200'000;
                    out.push_back(filled(bytes, static_cast<uint64_t>(rank * 4 + peer) * 2 + turn));
                    messages.push_back(sending(out.back(), peer, 5));
                    in.emplace_back(bytes);
                    messages.push_back(receiving(in.back(), peer, 5));
                }
            }
            CHECK_EQ(exchange(team[rank], messages), 1);
            size_t which = 0;
            for (int peer = 0; peer < 4; ++peer) {
                for (uint64_t turn = 0; turn < 2 && peer != rank; ++turn, ++which) {
                    CHECK(in[which] == filled(in[which].size(), static_cast<uint64_t>(peer * 4 + rank) * 2 + turn));
                }
            }
        }
    });
}

// Something that nobody asked for yet lies before what is waited for: it is kept, whole or in part.
void test_kept_messages() {
    for (uint64_t bytes : {uint64_t{10}, many}) {
        Job job(2);
        Team& team = job.everybody();
        job.run([&](int rank) {
            std::vector<char> early = filled(bytes, 1), small = filled(20, 2);
            if (rank == 0) {
                hpn_message message = sending(early, 1, 1);
                intptr_t operation = leave(hpn_batch(team[0], &message, 1));
                CHECK_EQ(exchange(team[0], {sending(small, 1, 2)}), 1);
                CHECK_EQ(finish(operation), 1);
                // The next begins, and is asked for while it is half received: it waits behind a receive of another tag.
                operation = leave(hpn_batch(team[0], &message, 1));
                std::this_thread::sleep_for(std::chrono::milliseconds(30));
                CHECK_EQ(exchange(team[0], {sending(small, 1, 4)}), 1);
                CHECK_EQ(finish(operation), 1);
                return;
            }
            std::vector<char> got(20), late(bytes), other(20);
            CHECK_EQ(exchange(team[1], {receiving(got, 0, 2)}), 1);
            CHECK(got == small);
            CHECK_EQ(exchange(team[1], {receiving(late, 0, 1)}), 1);
            CHECK(late == early);
            hpn_message wanted = receiving(other, 0, 4);
            intptr_t operation = hpn_batch(team[1], &wanted, 1);
            for (int look = 0; look < 20 && operation != 1; ++look) hpn_test(operation);
            late.assign(bytes, 0);
            CHECK_EQ(exchange(team[1], {receiving(late, 0, 1)}), 1);
            CHECK(late == early);
            CHECK_EQ(finish(operation), 1);
            CHECK(other == small);
        });
    }
}

void test_sizes_that_differ() {
    for (bool early : {false, true}) {
        Job job(2);
        Team& team = job.everybody();
        job.run([&](int rank) {
            std::vector<char> data(100), longer(101);
            if (rank == 0) {
                CHECK_EQ(exchange(team[0], {sending(data, 1, 1), sending(data, 1, 2)}), 1);
                return;
            }
            if (early) CHECK_EQ(exchange(team[1], {receiving(data, 0, 2)}), 1);
            CHECK_EQ(exchange(team[1], {receiving(longer, 0, 1)}), mismatch);
            CHECK(std::string(hpn_error()).find("100 bytes") != std::string::npos);
        });
    }
}

void test_refused() {
    Job job(2);
    Team& team = job.everybody();
    std::vector<char> data(10), none;
    CHECK_EQ(exchange(team[0], {sending(data, 0, 1)}), invalid);
    CHECK_EQ(exchange(team[0], {sending(data, 2, 1)}), invalid);
    CHECK_EQ(exchange(team[0], {receiving(data, -1, 1)}), invalid);
    CHECK_EQ(exchange(team[0], {sending(none, 1, 1)}), invalid);
    CHECK_EQ(exchange(team[0], {}), 1);
}

// A batch that is given up half received: its memory is not touched afterwards.
void test_dropped_half_way() {
    Job job(2);
    Team& team = job.everybody();
    auto out = std::make_unique<std::vector<char>>(many), in = std::make_unique<std::vector<char>>(2 * many);
    hpn_message send = sending(*out, 1, 1);
    intptr_t sent = leave(hpn_batch(team[0], &send, 1));
    hpn_message receive = receiving(*in, 0, 2);
    intptr_t received = leave(hpn_batch(team[1], &receive, 1));
    CHECK_EQ(wait_for(received, 0.05), 0);
    hpn_drop(received);
    in.reset();
    CHECK(wait_for(sent, 0.05) >= 0);
}

}  // namespace

int main() {
    limit_time(400);
    test_tags_in_any_order();
    test_everybody_to_everybody();
    test_kept_messages();
    test_sizes_that_differ();
    test_refused();
    test_dropped_half_way();
    return hpn::check::report();
}
