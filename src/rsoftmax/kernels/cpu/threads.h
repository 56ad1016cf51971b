// The rows of a call, spread over threads.
#pragma once

#include "operations.h"
#include "pool.h"

namespace {

// Memory that stays with its thread from call to call.
struct Scratch {
    void* memory = nullptr;
    size_t size = 0;
    void* get(size_t need) {
        if (need > size) {
            free(memory);
            memory = aligned_alloc(64, size = (need + 63) / 64 * 64);
            if (!memory) size = 0;
        }
        return memory;
    }
    ~Scratch() { free(memory); }
};
thread_local Scratch scratch;

struct Job {
    const Call& call;
    void (*work)(Job&);
    std::atomic<long> next{0}, failed{0};
};

// Takes rows, some at a time, until none are left.
template <class Op, class S> void work(Job& job) {
    const Call& call = job.call;
    auto memory = (Compute<S>*)scratch.get(scratch_size<Compute<S>>(call.n));
    if (!memory) { job.failed = 1; return; }
    long chunk = 1 + 16384 / (call.n + 1);
    for (long from; (from = job.next.fetch_add(chunk)) < call.rows;)
        for (long row = from; row < std::min<long>(from + chunk, call.rows); row++)
            call.g ? backward<Op, S>(call, row) : forward<Op, S>(call, row, memory);
}

void worker(void* job) { ((Job*)job)->work(*(Job*)job); }

// Says whether there was memory.
bool run(const Call& call, void (*work)(Job&)) {
    Job job{call, work};
    on_threads(std::min<long>({call.threads, call.rows, 1 + call.rows * call.n / 16384}), worker, &job);
    return !job.failed;
}

}  // namespace
