// Rows of one dtype, as a job for threads; compiled apart for each dtype.
#pragma once

#include "../python/threads.h"
#include "call.h"

namespace rsoftmax {

using RowWork = void (*)(Job<RowsCall>&);

// How one operation maps rows [from, to) of a call, or computes their gradient, and the memory that takes.
template <class T> struct RowFunctions {
    void (*map)(const RowsCall&, long from, long to, T* memory);
    long (*memory_entries)(long n);
};

// One entry for each operation, in the order of operation_names.
extern const RowFunctions<float>* const float32_functions;
extern const RowFunctions<double>* const float64_functions;

// The least and the greatest of `count` numbers of float32 or float64; both NaN if one is.
struct Extremes { double low, high; };
Extremes extremes_of(const void* values, long dtype, long count);

// The work of a thread for a call that has passed `problem`.
RowWork row_work(const RowsCall& call);

}  // namespace rsoftmax
