// A call of the row kernels: the operation, the rows and where they lie in memory.
#pragma once

#include <algorithm>
#include <cstdint>

namespace rsoftmax {

// The operations by number; Python finds them by these names.
enum Operation : int64_t { softmax, t_softmax, r_softmax, k_softmax, sparsemax, entmax15, entmax };
constexpr const char* operation_names[] = {"softmax", "t_softmax", "r_softmax", "k_softmax", "sparsemax", "entmax15", "entmax"};
constexpr long operation_count = sizeof operation_names / sizeof *operation_names;

// The numbers that forward leaves for backward, for each row.
constexpr long state_size(long op) { return op <= k_softmax ? 6 : 0; }
constexpr bool reads_logits_again(long op) { return op == t_softmax || op == r_softmax || op == k_softmax; }   // in backward

enum Dtype : int64_t { dtype_float32, dtype_float64, dtype_float16, dtype_bfloat16 };
constexpr const char* dtype_names[] = {"float32", "float64", "float16", "bfloat16"};
constexpr bool is_full_precision(long dtype) { return dtype == dtype_float32 || dtype == dtype_float64; }
constexpr long dtype_count = sizeof dtype_names / sizeof *dtype_names;

// The parameter of a row's mapping.
struct Parameter {
    double value;                              // t, r, k or alpha
    double edge;                               // the distance above the threshold from which on weights are constant
    bool is_count;                             // value is k: the number of entries that stay
};

// The position of the threshold among the n kept entries in ascending order, from 0 on: r (n - 1), or n - 1 - k.
struct QuantilePosition {
    double position, slope;                    // slope: its derivative in the parameter
    bool is_dense;                             // no threshold: softmax, for r = 0 and k > n - 1
    QuantilePosition(const Parameter& by, double kept)
        : position(by.is_count ? std::max(kept - 1 - by.value, 0.) : by.value * (kept - 1)), slope(by.is_count ? -1 : kept - 1),
          is_dense(by.is_count ? by.value > kept - 1 : by.value == 0) {}
};

// What backward needs to know about a row.
struct RowState {
    double m;                                  // the maximum
    double lo, hi, f;                          // the quantile: the entries around it, and the fraction of the way between
    double sum;                                // of the unnormalised probabilities
    double kept;                               // number of entries; 0: the whole row has one value, and no gradient
};
static_assert(sizeof(RowState) == state_size(softmax) * sizeof(double));

// Python fills the fields by name (python/module.cpp); each takes eight bytes.  An address is that of the first row, and
// null where there is none.  Strides and steps count elements.
struct RowsCall {
    int64_t op, dtype;
    int64_t rows, n;                           // n: entries in a row
    const char* x;                             // the logits
    int64_t x_stride;                          // from one row to the next
    const uint8_t* mask;                       // 0 = removed
    int64_t mask_step;                         // from one entry to the next; 0 where one value serves the row
    int64_t mask_stride;                       // from one row to the next ...
    const int64_t* mask_rows;                  // ... or the offset of each row's mask
    double number;                             // the parameter, if it is one number ...
    const char* values;                        // ... or one for each row ...
    int64_t values_dtype;                      // ... in float32 or float64
    double edge;
    char* p;                                   // the probabilities: output of forward, input of backward
    RowState* states;                          // one for each row, from forward to backward
    const char* g;                             // backward: the incoming gradient
    char* dx;                                  // backward: the gradient in the logits
    double* dvalues;                           // backward: the gradient in the parameter, for each row
    int64_t detach;                            // backward: the threshold counts as a constant
    int64_t threads;                           // at most so many

    long value_size() const { return values_dtype == dtype_float32 ? sizeof(float) : sizeof(double); }
    double value(long row) const {
        if (!values) return number;
        return values_dtype == dtype_float32 ? ((const float*)values)[row] : ((const double*)values)[row];
    }
    Parameter parameter(long row) const { return {value(row), edge, op == k_softmax}; }
    bool is_half() const { return !is_full_precision(dtype); }
};

}  // namespace rsoftmax
