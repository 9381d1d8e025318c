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

// What the cgroup of `path` and those above it leave, where they have a limit.
uint64_t cgroup_room(const std::string& root, std::string path, const char* limit_file, const char* used_file,
                     const char* reclaimable) {
    uint64_t room = UINT64_MAX;
    for (;;) {
        std::string folder = root + path;
        uint64_t limit = 0;
        uint64_t used = 0;
        if (read_number(folder + "/" + limit_file, limit) && read_number(folder + "/" + used_file, used)) {
            room = std::min(room, free_below(limit, used, read_field(folder + "/memory.stat", reclaimable)));
        }
        if (path.empty()) return room;
        path.resize(path.find_last_of('/') == std::string::npos ? 0 : path.find_last_of('/'));
    }
}

}  // namespace

uint64_t available_memory() {
    uint64_t room = read_field("/proc/meminfo", "MemAvailable:") * 1024;
    if (room == 0) room = UINT64_MAX;
    std::ifstream groups("/proc/self/cgroup");
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
            room = std::min(room,
                            cgroup_room("/sys/fs/cgroup", path, "memory.max", "memory.current", "inactive_file"));
        } else if (("," + controllers + ",").find(",memory,") != std::string::npos) {
            room = std::min(room, cgroup_room("/sys/fs/cgroup/memory", path, "memory.limit_in_bytes",
                                              "memory.usage_in_bytes", "total_inactive_file"));
        }
    }
    return room;
}

void allocate(int fd, uint64_t offset, uint64_t bytes) {
    if (bytes == 0) return;
    // In a full cgroup the kernel does not refuse: it ends a process. So look first.
    uint64_t room = available_memory();
    if (room < bytes) {
        throw Error(Code::no_memory, std::to_string(bytes) + " bytes of shared memory are needed, and " +
                                         std::to_string(room) + " bytes are left (memory cgroup or machine)");
    }
    int result = 0;
    do {
        result = ::fallocate(fd, 0, static_cast<off_t>(offset), static_cast<off_t>(bytes)) == 0 ? 0 : errno;
    } while (result == EINTR);
    if (result != 0) {
        throw Error(Code::no_memory, "could not allocate " + std::to_string(bytes) +
                                         " bytes of shared memory: " + std::strerror(result));
    }
}

}  // namespace hpn
