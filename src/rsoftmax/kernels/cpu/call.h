// What a call is about: which rows, and where everything lies.  Row reads the scores of one of them.
#pragma once

#include "formats.h"

namespace {

// Filled field by field from Python, by name (rows.cpp): every field takes eight bytes.  An address is that of a first
// row, and null where there is nothing; strides and steps count elements.
struct Call {
    int64_t op, dtype;                         // places in the tables OPERATIONS and DTYPES
    int64_t rows, n;                           // n: entries in a row
    const char* x;                             // the scores
    int64_t x_stride;                          // from one row to the next
    const uint8_t* mask;                       // 0 = removed
    int64_t mask_step;                         // from one entry to the next; 0 where one serves the row
    int64_t mask_stride;                       // from one row to the next ...
    const int64_t* mask_rows;                  // ... or where the mask of each row begins
    double number;                             // the parameter, if it is one number ...
    const double* values;                      // ... or one for each row
    char* p;                                   // the probabilities: output of forward, input of backward
    struct State* states;                      // one for each row, from forward to backward
    const char* g;                             // backward: the incoming gradient
    char* dx;                                  // backward: the gradient in the scores
    double* dvalues;                           // backward: the gradient in the parameter, for each row
    int64_t detach;                            // backward: the threshold counts as a constant
    int64_t threads;                           // the largest number to use

    double value(long row) const { return values ? values[row] : number; }
};

// What backward needs to know of a row.
struct State {
    double m;                                  // the maximum
    double lo, hi, f;                          // the quantile: the entries around it, and how far it is between them
    double sum;                                // of the unnormalised probabilities
    double kept;                               // entries; 0: the whole row has one value, and no gradient
};

// The scores of a row: vector i of it, removed entries and the padding behind the last one as -inf.
template <class S, class T = Compute<S>> struct Row {
    const S* x;
    const uint8_t* mask = nullptr;
    long n, step;
    Row(const Call& call, long row)
        : x((const S*)call.x + row * call.x_stride), n(call.n), step(call.mask_step) {
        if (call.mask) mask = call.mask + (call.mask_rows ? call.mask_rows[row] : row * call.mask_stride);
    }
    INLINE V<T> operator()(long i) const { return (*this)(i, n - i); }
    INLINE V<T> operator()(long i, long left) const {
        V<T> v = load(x + i, left);
        if (mask) v = masked(v, i);
        if (left < lanes<T>) v = iota<T>() < Int<T>(left) ? v : splat(-inf<T>);
        return v;
    }
    using Bytes = typename vec<uint8_t, lanes<T>>::type;
    INLINE V<T> masked(V<T> v, long i) const {
        bool whole = step == 1 && n - i >= lanes<T>;
        using Loose = typename vec<uint8_t, lanes<T>>::loose;
        Bytes b = __builtin_expect(whole, 1) ? *(const Loose*)(mask + i) : scattered(i);
        return widen<uint8_t, T>(b) != 0 ? v : splat(-inf<T>);
    }
    __attribute__((noinline)) Bytes scattered(long i) const {
        Bytes b{};
        for (long k = 0; k < std::min(n - i, lanes<T>); k++) b[k] = mask[(i + k) * step];
        return b;
    }
};

}  // namespace
