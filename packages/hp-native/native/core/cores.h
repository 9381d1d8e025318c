// SPDX-License-Identifier: Apache-2.0
// Which core a thread runs on, and how to get away from one.
#pragma once

#include <vector>

namespace hpn {

// The core that the calling thread runs on, -1 where that cannot be told.
int current_core();

// Move the calling thread to a core that it may use and that is none of `taken`. It stays as free as it was: only the
// core it runs on now is another. Returns that core, or -1 where there is none, and then nothing has changed.
int move_off(const std::vector<int>& taken);

}  // namespace hpn
