// The rows of a call, spread over threads.
#pragma once

#include "pool.h"
#include "short_rows.h"

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

// Rows [from, to) of a call.
template <class Op, class S, class T = Compute<S>> void some_rows(const Call& call, long from, long to, T* memory) {
    if (call.g) {
        for (; from < to; from++) backward<Op, S>(call, from);
        return;
    }
    if constexpr (longest<Op> > 0)
        if (call.n <= longest<Op>) {
            for (; from < to; from += lanes<T>) ShortRows<Op, S>(call, from, memory).forward();
            return;
        }
    for (; from < to; from++) forward<Op, S>(call, from, memory);
}

// Takes rows, some at a time, until none are left.
template <class Op, class S, class T = Compute<S>> void work(Job& job) {
    const Call& call = job.call;
    if constexpr (std::is_same_v<Op, Entmax>)
        if (!call.g && !call.values) {                                // short rows of these two have a faster way
            if (call.number == 1.5) return work<Entmax15, S>(job);
            if (call.number == 2) return work<Sparsemax, S>(job);
        }
    size_t need = call.n <= longest<Op> ? ShortRows<Op, S>::memory_size(call.n) : scratch_size<T>(call.n);
    auto memory = (T*)scratch.get(need);
    if (!memory) { job.failed = 1; return; }
    long chunk = (16384 / (call.n + 1) / lanes<T> + 1) * lanes<T>;
    for (long from; (from = job.next.fetch_add(chunk)) < call.rows;)
        some_rows<Op, S>(call, from, std::min<long>(from + chunk, call.rows), memory);
}

void worker(void* job) { ((Job*)job)->work(*(Job*)job); }

// Says whether there was memory.
bool run(const Call& call, void (*work)(Job&)) {
    Job job{call, work};
    on_threads(std::min<long>({call.threads, call.rows, 1 + call.rows * call.n / 16384}), worker, &job);
    return !job.failed;
}

}  // namespace
