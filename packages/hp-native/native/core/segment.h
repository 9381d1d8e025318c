// SPDX-License-Identifier: Apache-2.0
// Memory that several processes map. Every page is allocated before it is touched: a page fault that finds no memory
// ends the process with SIGBUS, an allocation that finds none is an error that can be told.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace hpn {

// Allocate the pages of a range of the file behind `fd`, which may be there already.
// Throws Error(no_memory) where the memory, or what the memory cgroup leaves, is too small; part may be allocated then.
void allocate(int fd, uint64_t offset, uint64_t bytes);

struct Room {
    uint64_t bytes;
    std::string limit;  // whose room it is, as in "of what … has"
};
// What this process may still use before its memory cgroup (or one above it) or the machine is full, page cache that
// can be given up included. Throws Error(system) where no descriptor is left to look with.
Room available_memory();

}  // namespace hpn
