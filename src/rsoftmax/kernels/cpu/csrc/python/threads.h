// A call shared among threads: torch's own where they are available.
#pragma once

#include <dlfcn.h>
#include <atomic>
#include <thread>
#include <vector>

namespace rsoftmax {

// Each thread takes the next piece of the call until none is left.
template <class Call> struct Job {
    const Call& call;
    void (*work)(Job&);
    std::atomic<long> next{0};
    std::atomic<bool> out_of_memory{false};
};

namespace {

// Calls worker(job) on several threads at once: on torch's pool if this process has one with GNU OpenMP's entry point,
// else on new threads.
inline void on_threads(long threads, void (*worker)(void*), void* job) {
    static auto pool = (void (*)(void (*)(void*), void*, unsigned, unsigned))dlsym(RTLD_DEFAULT, "GOMP_parallel");
    if (threads <= 1) worker(job);
    else if (pool) pool(worker, job, threads, 0);
    else {
        std::vector<std::thread> others;
        try {
            for (long i = 1; i < threads; i++) others.emplace_back(worker, job);
        } catch (...) {
            // With fewer threads each one takes more pieces.
        }
        worker(job);
        for (auto& t : others) t.join();
    }
}

// Says whether there was enough memory.
template <class Call> bool run(const Call& call, void (*work)(Job<Call>&), long threads) {
    Job<Call> job{call, work};
    on_threads(threads, [](void* p) { ((Job<Call>*)p)->work(*(Job<Call>*)p); }, &job);
    return !job.out_of_memory;
}

}  // namespace
}  // namespace rsoftmax
