// Work shared out over threads: torch's own where they can be had.
#pragma once

#include <dlfcn.h>
#include <atomic>
#include <cstdlib>
#include <thread>
#include <vector>

namespace {

// Memory for one thread, on the boundaries of cache lines.
struct Memory {
    void* at;
    explicit Memory(size_t size) : at(aligned_alloc(64, (size + 63) / 64 * 64)) {}
    Memory(const Memory&) = delete;
    ~Memory() { free(at); }
};

// Calls worker(job) on so many threads at once: on torch's own pool if this process has one that speaks GNU OpenMP, else
// on threads of our own.
inline void on_threads(long threads, void (*worker)(void*), void* job) {
    static auto pool = (void (*)(void (*)(void*), void*, unsigned, unsigned))dlsym(RTLD_DEFAULT, "GOMP_parallel");
    if (threads <= 1) worker(job);
    else if (pool) pool(worker, job, threads, 0);
    else {
        std::vector<std::thread> others;
        try {
            for (long i = 1; i < threads; i++) others.emplace_back(worker, job);
        } catch (...) {}                                              // fewer then: work goes to whoever asks for it
        worker(job);
        for (auto& t : others) t.join();
    }
}

}  // namespace
