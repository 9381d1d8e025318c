// SPDX-License-Identifier: Apache-2.0
// Allocation of shared memory: pages that are there, or an error that can be told.
#include <fcntl.h>
#include <sys/stat.h>

#include "ranks.h"

namespace {

using namespace hpn::ranks;

constexpr uint64_t page = 4096;

uint64_t allocated(int fd) {
    struct stat told;
    CHECK_EQ(fstat(fd, &told), 0);
    return static_cast<uint64_t>(told.st_blocks) * 512;
}

int memory_file(uint64_t bytes) {
    int fd = memfd_create("hp-native-test", MFD_CLOEXEC);
    CHECK(fd >= 0);
    CHECK_EQ(ftruncate(fd, static_cast<off_t>(bytes)), 0);
    return fd;
}

void test_allocates_a_hole() {
    int fd = memory_file(100 * page);
    CHECK_EQ(allocated(fd), uint64_t{0});
    CHECK_EQ(hpn_allocate(fd, 10 * page, 5 * page), 0);
    CHECK_EQ(allocated(fd), 5 * page);
    CHECK_EQ(pwrite(fd, "kept", 4, 12 * page), 4);
    // Across what is there already, whose contents stay; and nothing.
    CHECK_EQ(hpn_allocate(fd, 8 * page, 20 * page), 0);
    CHECK_EQ(hpn_allocate(fd, 0, 0), 0);
    CHECK_EQ(allocated(fd), 20 * page);
    char text[4] = {};
    CHECK_EQ(pread(fd, text, 4, 12 * page), 4);
    CHECK_EQ(std::string(text, 4), std::string("kept"));
    close(fd);
}

// More than the machine has: refused before a page is taken.
void test_refuses_more_than_there_is() {
    uint64_t there = hpn_available_memory();
    CHECK(there > 0);
    CHECK(there < UINT64_MAX);
    uint64_t wanted = there + (uint64_t{1} << 40);
    int fd = memory_file(wanted);
    CHECK_EQ(hpn_allocate(fd, 0, wanted), no_memory);
    CHECK_EQ(hpn_error_code(), no_memory);
    CHECK(std::string(hpn_error()).find(std::to_string(wanted)) != std::string::npos);
    CHECK_EQ(allocated(fd), uint64_t{0});
    close(fd);
}

void test_refused_by_the_system() {
    CHECK(hpn_allocate(-1, 0, page) < 0);
    CHECK(std::string(hpn_error()).find("Bad file descriptor") != std::string::npos);
    int ends[2];
    CHECK_EQ(pipe(ends), 0);
    CHECK(hpn_allocate(ends[1], 0, page) < 0);
    close(ends[0]);
    close(ends[1]);
}

// A sealed file cannot grow: an error, not SIGBUS later.
void test_sealed() {
    int fd = memfd_create("hp-native-test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CHECK_EQ(ftruncate(fd, page), 0);
    CHECK_EQ(fcntl(fd, F_ADD_SEALS, F_SEAL_GROW), 0);
    CHECK_EQ(hpn_allocate(fd, 0, page), 0);
    CHECK(hpn_allocate(fd, page, page) < 0);
    close(fd);
}

// The parts of a group's segment follow one another and do not overlap.
void test_plans() {
    for (int size : {1, 2, 3, 8, 64}) {
        for (uint64_t slot_bytes : {1, 4096, 1 << 20}) {
            uint64_t end = hpn_group_plan(size, 0, slot_bytes).control_bytes;
            for (int rank = 0; rank < size; ++rank) {
                hpn_group_layout plan = hpn_group_plan(size, rank, slot_bytes);
                CHECK_EQ(plan.staging_offset, end);
                CHECK_EQ(plan.staging_offset % page, uint64_t{0});
                end += plan.staging_bytes;
                CHECK(end <= plan.total_bytes);
            }
            end = hpn_symmetric_plan(size, 0, slot_bytes).signal_bytes;
            for (int rank = 0; rank < size; ++rank) {
                hpn_symmetric_layout plan = hpn_symmetric_plan(size, rank, slot_bytes);
                CHECK_EQ(plan.part_offset, end);
                CHECK(plan.part_bytes >= slot_bytes);
                end += plan.part_bytes;
            }
            CHECK_EQ(end, hpn_symmetric_plan(size, 0, slot_bytes).total_bytes);
        }
    }
}

}  // namespace

int main() {
    limit_time(400);
    test_allocates_a_hole();
    test_refuses_more_than_there_is();
    test_refused_by_the_system();
    test_sealed();
    test_plans();
    return hpn::check::report();
}
