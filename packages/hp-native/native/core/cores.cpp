// SPDX-License-Identifier: Apache-2.0
#include "cores.h"

#include <sched.h>

namespace hpn {

int current_core() { return ::sched_getcpu(); }

int move_off(const std::vector<int>& taken) {
    cpu_set_t allowed;
    // Fails where the machine has more cores than the set has room for: then ranks are not moved.
    if (::sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return -1;
    cpu_set_t free = allowed;
    for (int core : taken) {
        if (core >= 0 && core < CPU_SETSIZE) CPU_CLR(static_cast<size_t>(core), &free);
    }
    if (CPU_COUNT(&free) == 0 || ::sched_setaffinity(0, sizeof(free), &free) != 0) return -1;
    int core = current_core();
    ::sched_setaffinity(0, sizeof(allowed), &allowed);
    return core;
}

}  // namespace hpn
