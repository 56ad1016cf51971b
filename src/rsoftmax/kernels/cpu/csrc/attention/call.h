// A call of attention: its tensors, and where everything lies in memory.
#pragma once

#include "../rows/call.h"

namespace rsoftmax {

using Strides = int64_t[5];                                           // of a tensor of five dimensions, in elements

// Every tensor has five dimensions, [batch, key head, query head of it, row, entry], and strides in elements, 0 where one
// value serves all.  Rows of q, k, v, o and g are contiguous.  An address is null where there is none.
struct AttentionCall {
    int64_t op, dtype;                                                // dtype is that of q, k, v, dq, dk, dv
    int64_t batch, heads, groups, rows, length, width, value_width;
    const char *q, *k, *v;
    Strides q_strides, k_strides, v_strides;
    const float* bias;                                                // added to the scores
    Strides bias_strides;
    const uint8_t* mask;                                              // 0 = removed
    Strides mask_strides;
    double number;                                                    // the parameter, if it is one number ...
    const double* values;                                             // ... or one for each row
    Strides values_strides;
    double edge;
    double scale;                                                     // of the scores
    int64_t causal;                                                   // row i sees the keys 0 to i
    int64_t dropped, seed;                                            // dropout: how many of 65536 weights; see dropout.h
    float* o;                                                         // the output
    Strides o_strides;
    RowState* states;                                                 // one for each row, from forward to backward
    const float* g;                                                   // backward: the incoming gradient
    Strides g_strides;
    char *dq, *dk, *dv;                                               // backward: contiguous
    float* dbias;                                                     // backward: zeros, to be added to
    Strides dbias_strides;
    double* dvalues;                                                  // backward: for each row
    int64_t threads;                                                  // at most so many
};

}  // namespace rsoftmax
