// SPDX-License-Identifier: Apache-2.0
#include "domain.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>
#include <utility>

#include "cores.h"
#include "error.h"

namespace hpn {
namespace {

// Not FUTEX_PRIVATE: the word is shared between processes.
long futex(std::atomic<uint32_t>* word, int what, uint32_t value, const timespec* limit) {
    return syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), what, value, limit, nullptr, 0);
}

// Whether `pid` is there and no zombie, for systems without pidfds. kill(pid, 0) alone answers for a zombie too.
bool alive_by_proc(int pid) {
    char path[64];
    std::snprintf(path, sizeof(path), "/proc/%d/stat", pid);
    int fd = ::open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return ::kill(pid, 0) == 0 || errno == EPERM;
    char text[512];
    ssize_t length = ::read(fd, text, sizeof(text) - 1);
    ::close(fd);
    if (length <= 0) return false;
    text[length] = 0;
    const char* name_end = std::strrchr(text, ')');  // the name may hold anything, parentheses too
    return name_end == nullptr || (name_end[2] != 'Z' && name_end[2] != 'X');
}

}  // namespace

bool has_ended(int pid, int pidfd) {
    if (pidfd < 0) return !alive_by_proc(pid);
    pollfd ask{pidfd, POLLIN, 0};
    return ::poll(&ask, 1, 0) == 1;
}

Domain::Domain(void* memory, int num_processes, int me, std::vector<int> pidfds, bool oversubscribed,
               const std::vector<int>& pids)
    : header_(static_cast<DomainHeader*>(memory)),
      lines_(reinterpret_cast<ProcessLine*>(static_cast<char*>(memory) + sizeof(DomainHeader))),
      num_processes_(num_processes),
      me_(me),
      pidfds_(std::move(pidfds)),
      oversubscribed_(oversubscribed) {
    if (num_processes < 1 || me < 0 || me >= num_processes || pidfds_.size() != static_cast<size_t>(num_processes)) {
        throw Error(Code::invalid, "a domain needs its index, and one descriptor for each process");
    }
    for (size_t index = 0; index < pids.size(); ++index) {
        if (pids[index] > 0) lines_[index].pid.store(pids[index], std::memory_order_relaxed);
    }
    lines_[me].pid.store(::getpid(), std::memory_order_relaxed);
}

Domain::~Domain() {
    for (int fd : pidfds_) {
        if (fd >= 0) ::close(fd);
    }
}

void Domain::here() { lines_[me_].core.store(current_core() + 1, std::memory_order_relaxed); }

void Domain::keep_apart(int64_t now_ns) {
    constexpr int64_t interval_ns = 1'000'000;
    int64_t last = apart_ns_.load(std::memory_order_relaxed);
    if (oversubscribed_ || now_ns - last < interval_ns) return;
    if (!apart_ns_.compare_exchange_strong(last, now_ns, std::memory_order_relaxed)) return;
    int own = current_core();
    bool shared = false;
    std::vector<int> taken;
    for (int index = 0; index < num_processes_; ++index) {
        if (index == me_) continue;
        int core = lines_[index].core.load(std::memory_order_relaxed) - 1;
        if (core >= 0) taken.push_back(core);
        shared |= core >= 0 && core == own;
    }
    if (shared && move_off(taken) >= 0) here();
}

void Domain::ring(int index) {
    // Orders what was published before this against the look at `sleepers`: together with the fence in Sleep, either we
    // see the sleeper or it sees what we published.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    ProcessLine& line = lines_[index];
    if (line.sleepers.load(std::memory_order_relaxed) == 0) return;
    line.bell.fetch_add(1, std::memory_order_release);
    futex(&line.bell, FUTEX_WAKE, INT_MAX, nullptr);
}

void Domain::ring_all() {
    for (int index = 0; index < num_processes_; ++index) ring(index);
}

Domain::Sleep::Sleep(Domain& domain) : line_(domain.lines_[domain.me_]) {
    ticket_ = line_.bell.load(std::memory_order_acquire);
    line_.sleepers.fetch_add(1, std::memory_order_seq_cst);
    std::atomic_thread_fence(std::memory_order_seq_cst);
}

Domain::Sleep::~Sleep() { line_.sleepers.fetch_sub(1, std::memory_order_relaxed); }

void Domain::Sleep::sleep(int64_t nanoseconds) {
    timespec limit{nanoseconds / 1'000'000'000, nanoseconds % 1'000'000'000};
    futex(&line_.bell, FUTEX_WAIT, ticket_, &limit);
}

void Domain::abort() {
    uint32_t none = 0;
    header_->aborted.compare_exchange_strong(none, static_cast<uint32_t>(me_) + 1, std::memory_order_acq_rel);
    ring_all();
}

bool Domain::gone(int index) const {
    if (index == me_) return false;
    int fd = pidfds_[static_cast<size_t>(index)];
    int pid = this->pid(index);
    // Not known yet; or the same as ours: ranks that are threads of one process.
    if (fd < 0 && (pid <= 0 || pid == ::getpid())) return false;
    return has_ended(pid, fd);
}

}  // namespace hpn
