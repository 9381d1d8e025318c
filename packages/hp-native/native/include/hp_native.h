// SPDX-License-Identifier: Apache-2.0
// The C ABI of libhp_native.so: all that it exports. hp_native/library.py loads it through ctypes.
#ifndef HP_NATIVE_H
#define HP_NATIVE_H

#include <stddef.h>
#include <stdint.h>

#if defined(__cplusplus)
#define HPN_API extern "C" __attribute__((visibility("default")))
#else
#define HPN_API __attribute__((visibility("default")))
#endif

// Raised by one whenever a function below changes its arguments, its result or its meaning.
// hp_native.library.ABI_VERSION is the number that the Python files expect.
#define HPN_ABI_VERSION 2

HPN_API uint32_t hpn_abi_version(void);

// Version, compiler, flags and instruction sets, as one line; it lives as long as the library.
HPN_API const char* hpn_build_info(void);

// ---- errors ----
// Functions that can fail say so in their result; this is why, for the calling thread, until its next failure.
HPN_API const char* hpn_error(void);
// The number of that failure: -1 invalid argument, -2 ranks made different calls, -3 a rank has ended, -4 given up,
// -5 no memory, -6 the system refused.
HPN_API int hpn_error_code(void);

// ---- memory ----
// Allocate the pages of a range of a file; 0, or a negative number.
HPN_API int hpn_allocate(int fd, uint64_t offset, uint64_t bytes);
// 0 on failure, too.
HPN_API uint64_t hpn_available_memory(void);

// ---- the processes of a job on this host ----
typedef struct hpn_domain hpn_domain;
HPN_API uint64_t hpn_domain_bytes(int num_processes);
// Whether a process has ended (a zombie has): by its pidfd, or by /proc where that is -1.
HPN_API int hpn_has_ended(int pid, int pidfd);
// `memory`: hpn_domain_bytes, zero at first, mapped by all. `pids`: one for each process, 0 (or NULL for all) where it is
// not known before that process opens its end. `pidfds`: one for each, -1 where there is none; they are taken over.
// `oversubscribed`: there are more processes than cores. NULL on failure: then the descriptors stay the caller's.
HPN_API hpn_domain* hpn_domain_open(void* memory, int num_processes, int me, const int* pids, const int* pidfds,
                                    int oversubscribed);
// Give up: everything that any process of the domain waits for fails within a moment.
HPN_API void hpn_domain_abort(hpn_domain* domain);
// After all its groups were closed.
HPN_API void hpn_domain_close(hpn_domain* domain);

// ---- groups ----
typedef struct hpn_group hpn_group;
typedef struct hpn_group_layout {
    uint64_t total_bytes;    // the length of the segment
    uint64_t control_bytes;  // from its start: to be allocated by whoever makes it, and zero
    uint64_t staging_offset; // of `rank`: to be allocated by that rank
    uint64_t staging_bytes;
} hpn_group_layout;
HPN_API hpn_group_layout hpn_group_plan(int size, int rank, uint64_t slot_bytes);
// `memory`: the segment, mapped. `fd`: its descriptor, taken over. `processes[i]`: rank i's index in the domain.
HPN_API hpn_group* hpn_group_open(hpn_domain* domain, void* memory, int fd, int rank, int size, const int* processes,
                                  uint64_t slot_bytes);
// What is under way fails.
HPN_API void hpn_group_close(hpn_group* group);
// Fail what is under way here, and all that comes; the other ranks are not told.
HPN_API void hpn_group_fail(hpn_group* group, const char* why);

// ---- collectives ----
// Each puts an operation into the group's queue, does what can be done of it at once, and returns 1 when that was all
// of it, 0 on failure, or else the operation. Memory stays valid, and inputs unchanged, until it is done. Sizes are in
// bytes, counts in elements; NULL for a list of sizes or counts means that each is the number given beside it.
// dtype: 0 uint8, int8, int16, int32, int64, float16, bfloat16, float32, float64, 9 bool.
// op: 0 sum, avg, min, max, product, band, bor, 7 bxor.
typedef struct hpn_operation hpn_operation;
HPN_API intptr_t hpn_all_reduce(hpn_group* group, void* data, uint64_t count, int dtype, int op);
HPN_API intptr_t hpn_all_gather(hpn_group* group, const void* input, void* output, uint64_t size,
                                const uint64_t* sizes);
HPN_API intptr_t hpn_reduce_scatter(hpn_group* group, const void* input, void* output, uint64_t count,
                                    const uint64_t* counts, int dtype, int op);
// float32 that travels in low precision: wire 1 is bf16, 2 is e4m3 with a scale for each 128 values; op 0 or 1.
HPN_API intptr_t hpn_wire_all_reduce(hpn_group* group, float* data, uint64_t count, int op, int wire);
HPN_API intptr_t hpn_wire_reduce_scatter(hpn_group* group, const float* input, float* output, uint64_t count,
                                         const uint64_t* counts, int op, int wire);
HPN_API intptr_t hpn_wire_all_gather(hpn_group* group, const float* input, float* output, uint64_t count,
                                     const uint64_t* counts, int wire);
HPN_API intptr_t hpn_all_to_all(hpn_group* group, const void* input, void* output, uint64_t size,
                                const uint64_t* send_sizes, const uint64_t* receive_sizes);
HPN_API intptr_t hpn_broadcast(hpn_group* group, void* data, uint64_t size, int root);
HPN_API intptr_t hpn_barrier(hpn_group* group);

typedef struct hpn_message {
    int32_t send;  // 1 to send, 0 to receive
    int32_t peer;  // another rank of the group
    uint64_t tag;
    void* data;
    uint64_t size;  // at least 1
} hpn_message;
HPN_API intptr_t hpn_batch(hpn_group* group, const hpn_message* messages, int num_messages);

// ---- operations ----
// An operation stays until it is dropped.
// 1 when it is done, 0 when it is not after that time, negative when it failed.
HPN_API int hpn_wait(intptr_t operation, double seconds);
// The same at once. Now and then it looks whether a rank has ended.
HPN_API int hpn_test(intptr_t operation);
// The caller goes on with something else: let the library's thread see to it.
HPN_API void hpn_leave(intptr_t operation);
// Let it go, after which it is gone. Where it was not complete it is given up, and the group fails with it.
HPN_API void hpn_drop(intptr_t operation);

// ---- symmetric memory ----
typedef struct hpn_symmetric hpn_symmetric;
typedef struct hpn_symmetric_layout {
    uint64_t total_bytes;
    uint64_t signal_bytes;  // of signals, from the start: to be allocated by whoever makes the segment, and zero
    uint64_t part_offset;   // of `rank`: to be allocated by that rank
    uint64_t part_bytes;
} hpn_symmetric_layout;
HPN_API hpn_symmetric_layout hpn_symmetric_plan(int size, int rank, uint64_t bytes);
// `id` is the same on all ranks, and no other allocation's of the group. Collectives of the group recognise the memory.
HPN_API hpn_symmetric* hpn_symmetric_open(hpn_group* group, uint64_t id, void* memory, uint64_t bytes);
HPN_API void hpn_symmetric_close(hpn_symmetric* allocation);
// 0, or negative on failure. Offsets are in bytes from the start of the rank's part.
HPN_API int hpn_put(hpn_symmetric* allocation, int rank, uint64_t offset, const void* from, uint64_t bytes);
HPN_API int hpn_get(hpn_symmetric* allocation, int rank, uint64_t offset, void* into, uint64_t bytes);
// Add to a signal of that rank, or set it, after all that was put before.
HPN_API int hpn_signal(hpn_symmetric* allocation, int rank, int index, uint64_t value, int add);
HPN_API int hpn_read_signal(hpn_symmetric* allocation, int index, uint64_t* value);
// How often each rank of the group has sent this rank's signal, for the message when one does not come.
HPN_API int hpn_signal_senders(hpn_symmetric* allocation, int index, uint32_t* counts);
// Wait until this rank's signal is at least `value`: 1, 0 after that time, negative on failure.
HPN_API int hpn_wait_signal(hpn_symmetric* allocation, int index, uint64_t value, double seconds);

#endif
