// SPDX-License-Identifier: Apache-2.0
// The C ABI: pointers and numbers in, exceptions turned into results.
#include <pthread.h>

#include <algorithm>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "../include/hp_native.h"
#include "collectives.h"
#include "domain.h"
#include "engine.h"
#include "error.h"
#include "lanes.h"
#include "segment.h"
#include "symmetric.h"

using hpn::Code;
using hpn::Error;
using hpn::Operation;

namespace {

// How often this process's line of ancestors was forked since the library was loaded: getpid() is a system call.
std::atomic<uint64_t> num_forks{0};
[[maybe_unused]] const int watching_forks = pthread_atfork(nullptr, nullptr, [] { num_forks.fetch_add(1); });

}  // namespace

struct hpn_domain {
    hpn::Domain domain;
    hpn::Engine engine;
    hpn::Registry registry;
    const uint64_t made_after_forks = num_forks.load();

    hpn_domain(void* memory, int num_processes, int me, std::vector<int> pidfds, bool oversubscribed,
               const std::vector<int>& pids)
        : domain(memory, num_processes, me, std::move(pidfds), oversubscribed, pids), engine(domain) {}
};

struct hpn_group {
    hpn_domain& owner;
    hpn::Group group;
};

struct hpn_symmetric {
    hpn_domain& owner;
    hpn::Symmetric memory;
};

namespace {

thread_local std::string last_error;
thread_local int last_code = 0;


int failed(int code, const std::string& text) {
    last_error = text;
    last_code = code;
    return code;
}

// Run `body`; its result, or the failure's number.
template <typename Body>
int guarded(Body body) {
    try {
        return body();
    } catch (const Error& error) {
        return failed(static_cast<int>(error.code()), error.what());
    } catch (const std::bad_alloc&) {
        return failed(static_cast<int>(Code::no_memory), "out of memory");
    } catch (const std::exception& error) {
        return failed(static_cast<int>(Code::system), error.what());
    }
}

// Make an operation and put it into the queue.
template <typename Make>
intptr_t start(hpn_group* group, Make make) {
    intptr_t result = 0;
    guarded([&] {
        if (num_forks.load(std::memory_order_relaxed) != group->owner.made_after_forks) {
            throw Error(Code::invalid, "this process was forked from the one that communicates");
        }
        std::unique_ptr<Operation> operation = make();
        group->group.submit(operation.get());
        int state = operation->state();
        if (state == 1) {
            result = 1;
        } else if (state != 0) {
            throw Error(Code{state}, operation->error());
        } else {
            result = reinterpret_cast<intptr_t>(operation.release());
        }
        return 1;
    });
    return result;
}

std::vector<uint64_t> listed(const uint64_t* values, uint64_t each, int size) {
    if (values == nullptr) return std::vector<uint64_t>(static_cast<size_t>(size), each);
    return {values, values + size};
}

Operation& operation_at(intptr_t operation) { return *reinterpret_cast<Operation*>(operation); }

hpn::Place place(hpn_group* group, const void* pointer, uint64_t bytes) {
    return group->owner.registry.find(group->group, pointer, bytes);
}

}  // namespace

const char* hpn_error(void) { return last_error.c_str(); }
int hpn_error_code(void) { return last_code; }

int hpn_allocate(int fd, uint64_t offset, uint64_t bytes) {
    return guarded([&] {
        hpn::allocate(fd, offset, bytes);
        return 0;
    });
}
uint64_t hpn_available_memory(void) {
    uint64_t bytes = 0;
    guarded([&] {
        bytes = hpn::available_memory().bytes;
        return 0;
    });
    return bytes;
}

uint64_t hpn_domain_bytes(int num_processes) { return hpn::domain_bytes(num_processes); }

int hpn_has_ended(int pid, int pidfd) { return hpn::has_ended(pid, pidfd) ? 1 : 0; }

hpn_domain* hpn_domain_open(void* memory, int num_processes, int me, const int* pids, const int* pidfds,
                            int oversubscribed) {
    hpn_domain* domain = nullptr;
    guarded([&] {
        std::vector<int> known(static_cast<size_t>(num_processes), 0);
        if (pids != nullptr) known.assign(pids, pids + num_processes);
        domain = new hpn_domain(memory, num_processes, me, {pidfds, pidfds + num_processes}, oversubscribed != 0,
                                known);
        return 0;
    });
    return domain;
}

void hpn_domain_abort(hpn_domain* domain) { domain->domain.abort(); }
void hpn_domain_close(hpn_domain* domain) { delete domain; }

hpn_group_layout hpn_group_plan(int size, int rank, uint64_t slot_bytes) {
    hpn::GroupLayout layout(size, slot_bytes);
    return {layout.total_bytes, layout.control_bytes,
            layout.staging + layout.staging_bytes * static_cast<uint64_t>(rank), layout.staging_bytes};
}

hpn_group* hpn_group_open(hpn_domain* domain, void* memory, int fd, int rank, int size, const int* processes,
                          uint64_t slot_bytes) {
    hpn_group* group = nullptr;
    guarded([&] {
        // Before the layout divides by them.
        if (size < 1 || slot_bytes < 1) throw Error(Code::invalid, "a group needs a rank, and slots of a byte at least");
        for (int index = 0; index < size; ++index) {
            if (processes[index] >= 0 && processes[index] < domain->domain.num_processes()) continue;
            throw Error(Code::invalid, "there is no process " + std::to_string(processes[index]));
        }
        group = new hpn_group{*domain, {domain->domain, memory, fd, rank, {processes, processes + size}, slot_bytes}};
        domain->engine.add(group->group);
        return 0;
    });
    return group;
}

void hpn_group_close(hpn_group* group) {
    group->owner.engine.remove(group->group);
    delete group;
}

void hpn_group_fail(hpn_group* group, const char* why) {
    group->group.fail_all(static_cast<int>(Code::aborted), why);
}

intptr_t hpn_all_reduce(hpn_group* group, void* data, uint64_t count, int dtype, int op) {
    return start(group, [&] {
        hpn::Dtype type{static_cast<uint8_t>(dtype)};
        return hpn::make_all_reduce(group->group, data, count, type, hpn::Op{static_cast<uint8_t>(op)},
                                    place(group, data, count * hpn::size_of(type)));
    });
}

intptr_t hpn_all_gather(hpn_group* group, const void* input, void* output, uint64_t size, const uint64_t* sizes) {
    return start(group, [&] {
        std::vector<uint64_t> all = listed(sizes, size, group->group.size());
        uint64_t total = hpn::total_of(all);
        uint64_t own = all[static_cast<size_t>(group->group.rank())];
        return hpn::make_all_gather(group->group, input, output, std::move(all), place(group, input, own),
                                    place(group, output, total));
    });
}

intptr_t hpn_reduce_scatter(hpn_group* group, const void* input, void* output, uint64_t count, const uint64_t* counts,
                            int dtype, int op) {
    return start(group, [&] {
        hpn::Dtype type{static_cast<uint8_t>(dtype)};
        std::vector<uint64_t> all = listed(counts, count, group->group.size());
        uint64_t total = hpn::total_of(all);
        return hpn::make_reduce_scatter(group->group, input, output, std::move(all), type,
                                        hpn::Op{static_cast<uint8_t>(op)},
                                        place(group, input, total * hpn::size_of(type)));
    });
}

intptr_t hpn_wire_all_reduce(hpn_group* group, float* data, uint64_t count, int op, int wire) {
    return start(group, [&] {
        return hpn::make_wire_all_reduce(group->group, data, count, hpn::Op{static_cast<uint8_t>(op)},
                                         hpn::Wire{static_cast<uint64_t>(wire)});
    });
}

intptr_t hpn_wire_reduce_scatter(hpn_group* group, const float* input, float* output, uint64_t count,
                                 const uint64_t* counts, int op, int wire) {
    return start(group, [&] {
        return hpn::make_wire_reduce_scatter(group->group, input, output, listed(counts, count, group->group.size()),
                                             hpn::Op{static_cast<uint8_t>(op)},
                                             hpn::Wire{static_cast<uint64_t>(wire)});
    });
}

intptr_t hpn_wire_all_gather(hpn_group* group, const float* input, float* output, uint64_t count,
                             const uint64_t* counts, int wire) {
    return start(group, [&] {
        return hpn::make_wire_all_gather(group->group, input, output, listed(counts, count, group->group.size()),
                                         hpn::Wire{static_cast<uint64_t>(wire)});
    });
}

intptr_t hpn_all_to_all(hpn_group* group, const void* input, void* output, uint64_t size, const uint64_t* send_sizes,
                        const uint64_t* receive_sizes) {
    return start(group, [&] {
        int ranks = group->group.size();
        std::vector<uint64_t> sends = listed(send_sizes, size, ranks);
        uint64_t total = hpn::total_of(sends);
        return hpn::make_all_to_all(group->group, input, output, std::move(sends), listed(receive_sizes, size, ranks),
                                    place(group, input, total));
    });
}

intptr_t hpn_broadcast(hpn_group* group, void* data, uint64_t size, int root) {
    return start(group, [&] { return hpn::make_broadcast(group->group, data, size, root, place(group, data, size)); });
}

intptr_t hpn_barrier(hpn_group* group) {
    return start(group, [&] { return hpn::make_barrier(group->group); });
}

intptr_t hpn_batch(hpn_group* group, const hpn_message* messages, int num_messages) {
    return start(group, [&] {
        std::vector<hpn::Message> all;
        all.reserve(static_cast<size_t>(num_messages));
        for (const hpn_message* one = messages; one != messages + num_messages; ++one) {
            all.push_back({one->send != 0, one->peer, one->tag, static_cast<char*>(one->data), one->size});
        }
        return group->group.lanes().make_batch(std::move(all));
    });
}

int hpn_test(intptr_t operation) {
    Operation& op = operation_at(operation);
    if (op.state() == 0 && !op.group().drive()) op.group().look_around_sometimes(hpn::now_ns());
    int state = op.state();
    return state < 0 ? failed(state, op.error()) : state;
}

int hpn_wait(intptr_t operation, double seconds) {
    Operation& op = operation_at(operation);
    int64_t limit = seconds > 1e9 ? INT64_MAX / 4 : static_cast<int64_t>(seconds * 1e9);
    int result = guarded([&] { return op.state() != 0 || op.group().wait(op, limit) ? op.state() : 0; });
    return op.state() < 0 ? failed(op.state(), op.error()) : result;
}

void hpn_leave(intptr_t operation) { operation_at(operation).group().leave(operation_at(operation)); }

void hpn_drop(intptr_t operation) {
    std::unique_ptr<Operation> op(&operation_at(operation));
    if (op->state() == 0) op->group().cancel(*op);  // otherwise the group may be closed already
}

hpn_symmetric_layout hpn_symmetric_plan(int size, int rank, uint64_t bytes) {
    return {hpn::Symmetric::segment_bytes(size, bytes), hpn::Symmetric::signal_bytes(size),
            hpn::Symmetric::part_offset(size, rank, bytes), hpn::Symmetric::part_bytes(bytes)};
}

hpn_symmetric* hpn_symmetric_open(hpn_group* group, uint64_t id, void* memory, uint64_t bytes) {
    hpn_symmetric* allocation = nullptr;
    guarded([&] {
        allocation = new hpn_symmetric{group->owner, {group->group, id, memory, bytes}};
        group->owner.registry.add(allocation->memory);
        return 0;
    });
    return allocation;
}

void hpn_symmetric_close(hpn_symmetric* allocation) {
    allocation->owner.registry.remove(allocation->memory);
    delete allocation;
}

int hpn_put(hpn_symmetric* allocation, int rank, uint64_t offset, const void* from, uint64_t bytes) {
    return guarded([&] {
        allocation->memory.put(rank, offset, from, bytes);
        return 0;
    });
}

int hpn_get(hpn_symmetric* allocation, int rank, uint64_t offset, void* into, uint64_t bytes) {
    return guarded([&] {
        allocation->memory.get(rank, offset, into, bytes);
        return 0;
    });
}

int hpn_signal(hpn_symmetric* allocation, int rank, int index, uint64_t value, int add) {
    return guarded([&] {
        allocation->memory.signal(rank, index, value, add != 0);
        return 0;
    });
}

int hpn_read_signal(hpn_symmetric* allocation, int index, uint64_t* value) {
    return guarded([&] {
        *value = allocation->memory.read_signal(index);
        return 0;
    });
}

int hpn_signal_senders(hpn_symmetric* allocation, int index, uint32_t* counts) {
    return guarded([&] {
        hpn::Symmetric& memory = allocation->memory;
        for (int rank = 0; rank < memory.group().size(); ++rank) counts[rank] = memory.sent_by(rank, index);
        return 0;
    });
}

int hpn_wait_signal(hpn_symmetric* allocation, int index, uint64_t value, double seconds) {
    int64_t limit = seconds > 1e9 ? INT64_MAX / 4 : static_cast<int64_t>(seconds * 1e9);
    return guarded([&] { return allocation->memory.wait_signal(index, value, limit) ? 1 : 0; });
}
