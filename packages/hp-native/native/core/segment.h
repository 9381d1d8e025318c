// SPDX-License-Identifier: Apache-2.0
// Memory that several processes map. Every page is allocated before it is touched: a page fault that finds no memory
// ends the process with SIGBUS, an allocation that finds none is an error that can be told.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hpn {

// Allocate the pages of a range of the file behind `fd`, which may be there already.
// Throws Error(no_memory) where the memory, or what the memory cgroup leaves, is too small.
void allocate(int fd, uint64_t offset, uint64_t bytes);

// Bytes that this process may still use before its memory cgroup (or one above it) or the machine is full, page cache
// that can be given up included.
uint64_t available_memory();

}  // namespace hpn
