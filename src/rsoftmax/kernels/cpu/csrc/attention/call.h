// A call of attention: its tensors, and where everything lies in memory.
#pragma once

#include "../rows/call.h"

namespace rsoftmax {

// So few queries of a head do not pay for transposed keys; measured.
constexpr long few_queries = 8;

// Of a tensor of five dimensions, in elements; 0 where one value serves all.
using Strides = int64_t[5];

// Every tensor has five dimensions, [batch, key head, query head of it, row, entry].  Rows of q, k, v, o and g are
// contiguous.  An address is null where there is no tensor.  The fields are those of kernels/cpu/attention.py.
struct AttentionCall {
    // The operation, the dtype of q, k, v, dq, dk and dv, and the sizes; `length` is the number of keys.
    int64_t op, dtype;
    int64_t batch, heads, groups, rows, length, width, value_width;

    const char *q, *k, *v;
    Strides q_strides, k_strides, v_strides;
    // Added to the scores.
    const float* bias;
    Strides bias_strides;
    // 0 = masked.
    const uint8_t* mask;
    Strides mask_strides;

    // A shadow of the keys of each head, see shadow.h, and how many of the first keys have not changed since it was
    // used; only for few queries, without bias, dropout and states.
    char* shadow;
    Strides shadow_strides;
    int64_t unchanged;

    // The parameter of the mapping: `values`, one for each row, or else `number`.
    double number;
    const double* values;
    Strides values_strides;
    double edge;

    // The factor of the scores, and whether row i sees only the keys 0 to i.
    double scale;
    int64_t causal;
    // Dropout: how many of 65536 weights, see dropout.h.
    int64_t dropped, seed;

    // The output, and what forward leaves for backward, for each row.
    float* o;
    Strides o_strides;
    RowState* states;

    // Backward: the incoming gradient; the gradients, contiguous; that of the bias, which is added to zeros; and that
    // of the parameter, for each row.
    const float* g;
    Strides g_strides;
    char *dq, *dk, *dv;
    float* dbias;
    Strides dbias_strides;
    double* dvalues;

    // The largest number of threads.
    int64_t threads;
};

}  // namespace rsoftmax
