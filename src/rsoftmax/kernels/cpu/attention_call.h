// What a call of attention is about: which tensors, and where everything lies.
#pragma once

#include "call.h"
#include "fields.h"

namespace {

// Every tensor has five dimensions, [batch, head of keys, head of queries for it, row, entry], and strides in elements, 0
// where one value serves all.  Rows of q, k, v, o and g are in one piece.  An address is null where there is nothing.
struct Attention {
    int64_t op, dtype;                                                // as in Call; dtype is that of q, k, v, dq, dk, dv
    int64_t batch, heads, groups, rows, length, width, value_width;
    const char *q, *k, *v;
    Strides q_at, k_at, v_at;
    const float* bias;                                                // added to the scores
    Strides bias_at;
    const uint8_t* mask;                                              // 0 = removed
    Strides mask_at;
    double number;                                                    // the parameter, if it is one number ...
    const double* values;                                             // ... or one for each row
    Strides values_at;
    double scale;                                                     // of the scores
    int64_t causal;                                                   // a row sees the keys 0 to its own number
    int64_t dropped, seed;                                            // dropout: how many of 65536 weights; see noise.h
    float* o;                                                         // the output
    Strides o_at;
    State* states;                                                    // one for each row, from forward to backward
    const float* g;                                                   // backward: the incoming gradient
    Strides g_at;
    char *dq, *dk, *dv;                                               // backward: contiguous
    float* dbias;                                                     // backward: zeros, to be added to
    Strides dbias_at;
    double* dvalues;                                                  // backward: for each row
    int64_t threads;                                                  // the largest number to use
};

// The queries that share keys, of one head of keys in one batch, are the rows 0 .. groups * rows - 1 of it.
struct Head {
    const Attention& call;
    long batch, head;
    long rows() const { return call.groups * call.rows; }
};

struct Place {
    long batch, head, group, row;
    Place(const Head& h, long n) : batch(h.batch), head(h.head), group(n / h.call.rows), row(n % h.call.rows) {}
    long of(const Strides& at) const { return batch * at[0] + head * at[1] + group * at[2] + row * at[3]; }
    long number(const Attention& c) const { return ((batch * c.heads + head) * c.groups + group) * c.rows + row; }
    long sees(const Attention& c) const { return c.causal ? std::min<long>(row + 1, c.length) : c.length; }
    double value(const Attention& c) const { return c.values ? c.values[of(c.values_at)] : c.number; }
};

}  // namespace
