// A call of the row kernels: the operation, the rows and where they lie in memory.
#pragma once

#include <algorithm>
#include <cstdint>

namespace rsoftmax {

// The operations by number; Python finds them by these names.
enum Operation : int64_t { softmax, t_softmax, r_softmax, k_softmax, sparsemax, entmax15, entmax };
constexpr const char* operation_names[] = {"softmax", "t_softmax", "r_softmax", "k_softmax", "sparsemax", "entmax15",
    "entmax"};
constexpr long operation_count = sizeof operation_names / sizeof *operation_names;

// The numbers that forward leaves for backward, for each row.
constexpr long state_size(long op) { return op <= k_softmax ? 6 : 0; }
// Whether backward needs the logits.
constexpr bool reads_logits_again(long op) { return op == t_softmax || op == r_softmax || op == k_softmax; }

enum Dtype : int64_t { dtype_float32, dtype_float64, dtype_float16, dtype_bfloat16 };
constexpr const char* dtype_names[] = {"float32", "float64", "float16", "bfloat16"};
constexpr bool is_full_precision(long dtype) { return dtype == dtype_float32 || dtype == dtype_float64; }
constexpr long dtype_count = sizeof dtype_names / sizeof *dtype_names;

// The parameter of a row's mapping.
struct Parameter {
    // t, r, k or alpha.
    double value;
    // The distance above the threshold over which weights rise.
    double edge;
    // Whether the value is k, the size of the support.
    bool is_count;
};

// The position of the threshold among the n unmasked entries in ascending order, from 0 on: r (n - 1), or n - 1 - k.
// Must match r_softmax and k_softmax in kernels/reference.py, and short_rows.h.
struct QuantilePosition {
    // The position, and its derivative in the parameter.
    double position, slope;
    // No threshold: softmax, for r = 0 and k > n - 1.
    bool is_dense;
    QuantilePosition(const Parameter& parameter, double n)
        : position(parameter.is_count ? std::max(n - 1 - parameter.value, 0.) : parameter.value * (n - 1)),
          slope(parameter.is_count ? -1 : n - 1),
          is_dense(parameter.is_count ? parameter.value > n - 1 : parameter.value == 0) {}
};

// What backward needs to know about a row: the maximum; the quantile, by the entries around it and the fraction of the
// way between; the sum of the unnormalised probabilities; and the number of unmasked entries, 0 if the whole row has
// one value and no gradient.
struct RowState { double m, lo, hi, f, sum, unmasked; };
static_assert(sizeof(RowState) == state_size(softmax) * sizeof(double));

// Python fills the fields by name (kernels/cpu/rows.py, python/module.cpp); each takes eight bytes.  An address is
// that of the first row, and null where there is none.  Strides and steps count elements.
struct RowsCall {
    int64_t op, dtype;
    // The number of rows, and of entries in a row.
    int64_t rows, n;

    // The logits; x_stride is the distance of two rows.
    const char* x;
    int64_t x_stride;

    // 0 = masked.  mask_step is the distance of two entries, 0 where one value serves the row; mask_stride is that of
    // two rows, unless mask_rows has the offset of each row.
    const uint8_t* mask;
    int64_t mask_step, mask_stride;
    const int64_t* mask_rows;

    // The parameter of the mapping: `values`, one for each row, in float32 or float64, or else `number`.
    double number;
    const char* values;
    int64_t values_dtype;
    double edge;

    // The probabilities: output of forward, input of backward; and what forward leaves for backward, for each row.
    char* p;
    RowState* states;

    // Backward: the incoming gradient, the gradients in the logits and in the parameter of each row, and whether the
    // threshold counts as a constant.
    const char* g;
    char* dx;
    double* dvalues;
    int64_t detach;

    // The largest number of threads.
    int64_t threads;

    long value_size() const { return values_dtype == dtype_float32 ? sizeof(float) : sizeof(double); }
    double value(long row) const {
        if (!values) return number;
        return values_dtype == dtype_float32 ? ((const float*)values)[row] : ((const double*)values)[row];
    }
    Parameter parameter(long row) const { return {value(row), edge, op == k_softmax}; }
    bool is_half() const { return !is_full_precision(dtype); }
};

}  // namespace rsoftmax
