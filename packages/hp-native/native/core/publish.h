// SPDX-License-Identifier: Apache-2.0
// Copies into memory that another rank reads next.
#pragma once

#include <cstdint>

#include "clock.h"
#include "reduce.h"

namespace hpn {

// [Note: Stores that other cores still cache]
// A slot that is filled again still lies in the cache of the core that read it. Where both cores have a cache in
// common, storing into it is as fast as any copy. Where they have not (two sockets, two core complexes, two cores that
// a hypervisor gave us from anywhere), each line is first taken away from the other core: 2 GB/s were measured, where
// stores past the caches, which need no line, reached 28. Which of the two it is may change while we run, as threads and
// virtual machines are moved. So it is measured: after some slow copies in a row many go past the caches, then one
// shows whether it is still so.
class StorePace {
public:
    static constexpr uint64_t kMeasuredBytes = 32u << 10;  // shorter copies are always through the caches

    bool past_caches() const { return past_left_ > 0; }
    // A copy past the caches was made.
    void went_past() { --past_left_; }
    // A copy through the caches was made.
    void went_through(uint64_t bytes, int64_t took_ns) {
        if (to_skip_ > 0) {
            --to_skip_;
            return;
        }
        bool slow = static_cast<int64_t>(bytes) < took_ns * kSlowGBs;
        num_slow_ = slow ? num_slow_ + 1 : 0;
        if (num_slow_ < kSlowCopies) return;
        past_left_ = kPastCopies;
        num_slow_ = kSlowCopies - 1;  // one more slow copy after those is enough
    }

private:
    static constexpr int64_t kSlowGBs = 4;
    static constexpr int kSlowCopies = 3;
    static constexpr int kPastCopies = 1000;

    int to_skip_ = 16;  // the first copies into a slot wait for its pages
    int num_slow_ = 0;
    int past_left_ = 0;
};

class Publisher {
public:
    void copy(void* to, const void* from, uint64_t bytes) {
        if (bytes < StorePace::kMeasuredBytes) {
            hpn::copy(to, from, bytes, false);
        } else if (pace_.past_caches()) {
            hpn::copy(to, from, bytes, true);
            pace_.went_past();
        } else {
            int64_t start = now_ns();
            hpn::copy(to, from, bytes, false);
            pace_.went_through(bytes, now_ns() - start);
        }
    }

    // How the result of a reduction is to be stored whose second destination others read.
    Stream of_second(uint64_t bytes) const {
        return bytes >= StorePace::kMeasuredBytes && pace_.past_caches() ? Stream::second : Stream::none;
    }

private:
    StorePace pace_;
};

}  // namespace hpn
