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

// Takes rows, some at a time, until none are left.
template <class Op, class S, class T = Compute<S>> void work(Job& job) {
    const Call& call = job.call;
    if constexpr (std::is_same_v<Op, Entmax>)
        if (!call.g && !call.values) {                                // short rows of these two have a faster way
            if (call.number == 1.5) return work<Entmax15, S>(job);
            if (call.number == 2) return work<Sparsemax, S>(job);
        }
    using Short = ShortRows<Op, S>;
    bool is_short = !call.g && call.n <= longest<Op>;
    auto memory = (T*)scratch.get(is_short ? Short::memory_size(call.n) : scratch_size<T>(call.n));
    if (!memory) { job.failed = 1; return; }
    long chunk = (16384 / (call.n + 1) / lanes<T> + 1) * lanes<T>;
    for (long from; (from = job.next.fetch_add(chunk)) < call.rows;) {
        long to = std::min<long>(from + chunk, call.rows);
        if constexpr (longest<Op> > 0)
            if (is_short) { for (long row = from; row < to; row += lanes<T>) Short(call, row, memory).forward(); continue; }
        for (long row = from; row < to; row++) call.g ? backward<Op, S>(call, row) : forward<Op, S>(call, row, memory);
    }
}

void worker(void* job) { ((Job*)job)->work(*(Job*)job); }

// Says whether there was memory.
bool run(const Call& call, void (*work)(Job&)) {
    Job job{call, work};
    on_threads(std::min<long>({call.threads, call.rows, 1 + call.rows * call.n / 16384}), worker, &job);
    return !job.failed;
}

}  // namespace
