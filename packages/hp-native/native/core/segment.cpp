// SPDX-License-Identifier: Apache-2.0
#include "segment.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>

#include "error.h"
#include "layout.h"

namespace hpn {
namespace {

bool read_number(const std::string& path, uint64_t& value) {
    std::ifstream file(path);
    std::string word;
    if (!(file >> word) || word == "max") return false;
    value = std::strtoull(word.c_str(), nullptr, 10);
    return true;
}

// The number behind `key` in a file of "key number" lines.
uint64_t read_field(const std::string& path, const std::string& key) {
    std::ifstream file(path);
    std::string line;
    while (std::getline(file, line)) {
        std::istringstream words(line);
        std::string name;
        uint64_t value = 0;
        if (words >> name >> value && name == key) return value;
    }
    return 0;
}

uint64_t free_below(uint64_t limit, uint64_t used, uint64_t reclaimable) {
    used -= std::min(used, reclaimable);
    return limit > used ? limit - used : 0;
}

// The smallest room of the cgroup of `path` and those above it, where they have a limit.
void look_at_cgroup(Room& room, const std::string& root, std::string path, const char* limit_file,
                    const char* used_file, const char* reclaimable) {
    for (;;) {
        std::string folder = root + path;
        uint64_t limit = 0;
        uint64_t used = 0;
        if (read_number(folder + "/" + limit_file, limit) && read_number(folder + "/" + used_file, used)) {
            uint64_t bytes = free_below(limit, used, read_field(folder + "/memory.stat", reclaimable));
            if (bytes < room.bytes) {
                room = {bytes, "the memory cgroup " + (path.empty() ? "/" : path) + " has (" + limit_file + " " +
                                   std::to_string(limit) + ")"};
            }
        }
        if (path.empty()) return;
        path.resize(path.find_last_of('/') == std::string::npos ? 0 : path.find_last_of('/'));
    }
}

// Kept for the program: its stacks and heap grow by page faults, which nobody can refuse.
constexpr uint64_t kReserveBytes = 16u << 20;
constexpr uint64_t kMostAtOnce = 4u << 20;
constexpr uint64_t kLeastAtOnce = 64u << 10;
// As many ranks may look at the same moment and then allocate, and still there is room for all.
constexpr uint64_t kRanksAtOnce = 32;

}  // namespace

Room available_memory() {
    Room room{read_field("/proc/meminfo", "MemAvailable:") * 1024, "the machine has (MemAvailable)"};
    if (room.bytes == 0) room.bytes = UINT64_MAX;
    errno = 0;
    std::ifstream groups("/proc/self/cgroup");
    if (!groups && (errno == EMFILE || errno == ENFILE)) {
        throw Error(Code::system, std::string("how much memory is left cannot be read: ") + std::strerror(errno));
    }
    std::string line;
    while (std::getline(groups, line)) {
        // "hierarchy:controllers:path"
        size_t first = line.find(':');
        size_t second = line.find(':', first + 1);
        if (first == std::string::npos || second == std::string::npos) continue;
        std::string controllers = line.substr(first + 1, second - first - 1);
        std::string path = line.substr(second + 1);
        if (path == "/") path.clear();
        if (controllers.empty()) {
            look_at_cgroup(room, "/sys/fs/cgroup", path, "memory.max", "memory.current", "inactive_file");
        } else if (("," + controllers + ",").find(",memory,") != std::string::npos) {
            look_at_cgroup(room, "/sys/fs/cgroup/memory", path, "memory.limit_in_bytes", "memory.usage_in_bytes",
                           "total_inactive_file");
        }
    }
    return room;
}

// [Note: Room before memory] In a full cgroup the kernel refuses nothing: it kills a process. So look before, and again
// before each piece, since others allocate at the same time and may all have found the same room.
void allocate(int fd, uint64_t offset, uint64_t bytes) {
    for (uint64_t done = 0; done < bytes;) {
        Room room = available_memory();
        uint64_t left = room.bytes > kReserveBytes ? room.bytes - kReserveBytes : 0;
        if (left < bytes - done) {
            std::string text = std::to_string(bytes) + " bytes of shared memory are wanted";
            if (done > 0) text += ", of which " + std::to_string(done) + " are allocated";
            throw Error(Code::no_memory, text + ", and " + std::to_string(left) + " bytes are left of what " +
                                             room.limit + ", " + std::to_string(kReserveBytes) +
                                             " more being kept for the program");
        }
        uint64_t piece = std::min({bytes - done, kMostAtOnce, std::max(kLeastAtOnce, left / kRanksAtOnce / kPage * kPage)});
        int result = 0;
        do {
            result = ::fallocate(fd, 0, static_cast<off_t>(offset + done), static_cast<off_t>(piece)) == 0 ? 0 : errno;
        } while (result == EINTR);
        if (result != 0) {
            throw Error(Code::no_memory, "could not allocate " + std::to_string(bytes) +
                                             " bytes of shared memory: " + std::strerror(result));
        }
        done += piece;
    }
}

}  // namespace hpn
