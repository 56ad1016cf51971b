// A block of queries and the keys of their head: what forward and backward share.
#pragma once

#include "../python/memory.h"
#include "dropout.h"
#include "products.h"
#include "queries.h"
#include "row.h"

namespace rsoftmax {
namespace {

// So few queries of a head do not pay for copies of its keys and values.
constexpr long queries_in_place = 24;
static_assert(queries_in_place <= short_block_rows);
// With a larger share of weights that are not zero, dense products are faster; measured.
constexpr double dense_forward = has_many_registers ? .32 : .55, dense_backward = .42;
// Measured: the values of so many keys stay in a near cache.  Short lists prefer larger tiles, and where long ones are
// dense products, all are short.
constexpr long key_tile = has_many_registers ? 512 : 128;

// The rows of a matrix as float32, in whole vectors: in place, or a copy filled with zeros.
struct Rows { const float* data; long row; };

inline bool in_place(const AttentionCall& call, long width) {
    return call.dtype == dtype_float32 && width % narrow_cols == 0;
}

inline Rows rows_of(const char* x, const Strides& strides, const Head& head, long width, float* copy) {
    if (in_place(head.call, width)) return {(const float*)x + head.offset(strides), strides[3]};
    with_dtype(head.call, [&](auto format) {
        copy_rows((const decltype(format)*)x + head.offset(strides), strides[3], head.call.length, width, copy,
            padded_to_narrow(width));
    });
    return {copy, padded_to_narrow(width)};
}

// The keys or values of a head, to be multiplied with queries: as panels that are all built before, or one after the
// other where each serves once, or row by row for few queries.
struct Panels {
    const Head& head;
    const char* x;
    const Strides& strides;
    long width;
    // For all panels, one, or as many rows as a vector has lanes.
    float* memory;
    bool all;

    void build() const {
        for (long j = 0; j < head.call.length; j += tile_cols) build(j, memory + j * width);
    }

    // s (rows x keys) = q x^T for the keys in a range, at their own columns of s; room for whole tiles around them.
    void multiply(const float* q, long q_row, long rows, Range keys, float* s, long s_row) const {
        if (head.rows() <= few_queries) {
            with_dtype(head.call, [&](auto format) {
                using S = decltype(format);
                EachRow<S> all{(const S*)x + head.offset(strides) + keys.first * strides[3], strides[3]};
                dots<S>(q, q_row, rows, all, keys.size(), width, memory, s + keys.first, s_row);
            });
            return;
        }
        for (long j = keys.first / tile_cols * tile_cols; j < keys.last; j += tile_cols) {
            if (!all) build(j, memory);
            strip<false>(ByRows{q, q_row}, all ? memory + j * width : memory, tile_cols, width, s + j, s_row, rows,
                keys.last - j);
        }
    }

    // s = q x^T for one query and some keys, from a key on; room for whole vectors.
    void multiply_some(const float* q, long q_row, long first, const int32_t* keys, long count, float* s) const {
        with_dtype(head.call, [&](auto format) {
            using S = decltype(format);
            ListedRows<S> some{(const S*)x + head.offset(strides) + first * strides[3], strides[3], keys};
            dots<S>(q, q_row, 1, some, count, width, memory, s, 0);
        });
    }

private:
    void build(long j, float* to) const {
        with_dtype(head.call, [&](auto format) {
            auto first = (const decltype(format)*)x + head.offset(strides) + j * strides[3];
            build_panel(first, strides[3], head.call.length - j, width, to);
        });
    }
};

// Applies bias and mask to the scores of a query's keys: masked ones become -inf, and so does the rest of the last
// vector.
inline void apply_bias_and_mask(const AttentionCall& call, const Query& query, KeyRange keys, float* x) {
    long n = keys.size();
    if (call.bias) {
        long step = call.bias_strides[4], i = 0;
        const float* bias = call.bias + query.offset(call.bias_strides) + keys.first * step;
        if (step == 1) for (; i + lanes<float> <= n; i += lanes<float>) {
            Vec<float> b = load(bias + i);
            // Masked, whatever the score is.
            store(x + i, b == -inf<float> ? b : load(x + i) + b);
        }
        for (; i < n; i++) x[i] = bias[i * step] == -inf<float> ? -inf<float> : x[i] + bias[i * step];
    }
    if (!keys.all) {
        long step = call.mask_strides[4], i = 0;
        const uint8_t* mask = call.mask + query.offset(call.mask_strides) + keys.first * step;
        using Bytes = vec<uint8_t, lanes<float>>;
        if (step == 1) for (; i + lanes<float> <= n; i += lanes<float>) {
            Bytes::type unmasked = *(const Bytes::unaligned*)(mask + i);
            store(x + i, widen<uint8_t, float>(unmasked) != 0 ? load(x + i) : splat(-inf<float>));
        }
        for (; i < n; i++) if (!mask[i * step]) x[i] = -inf<float>;
    }
    for (long i = n; i < padded<float>(n); i++) x[i] = -inf<float>;
}

// A block of rows.
struct Block {
    const Head& head;
    long first, rows;
    // The keys that each query sees, their union, and the largest number of keys of a query.
    KeyRange keys[block_rows];
    Range all{0, 0};
    long max_keys = 0;

    Block(const Head& head, long first, VisibleKeys& visible)
        : head(head), first(first), rows(std::min(rows_of_block(head.call), head.rows() - first)) {
        for (long i = 0; i < rows; i++) {
            KeyRange own = keys[i] = visible(query(i));
            if (own.size() == 0) continue;
            all.first = max_keys ? std::min(all.first, own.first) : own.first;
            all.last = std::max(all.last, own.last);
            max_keys = std::max(max_keys, own.size());
        }
    }
    Query query(long i) const { return Query(head, first + i); }
    long total_keys() const {
        long sum = 0;
        for (long i = 0; i < rows; i++) sum += keys[i].size();
        return sum;
    }
    ScoreRow scores_of(const float* s, long s_row, long i) const {
        return {s + i * s_row + keys[i].first, keys[i].size(), keys[i].first, query(i).parameter(head.call)};
    }

    // Queries times the scale, each in `to_row` entries.
    void copy_queries(float* to, long to_row) const {
        const AttentionCall& call = head.call;
        with_dtype(call, [&](auto format) {
            for (long i = 0; i < rows; i++) {
                auto q = (const decltype(format)*)call.q + query(i).offset(call.q_strides);
                copy_rows(q, 0, 1, call.width, to + i * to_row, to_row, float(call.scale));
            }
        });
    }

    // The scores of all rows, with mask and bias, at the columns of their keys.  Backward computes the same bits.
    void compute_scores(const float* q, long q_row, const Panels& panels, float* s, long s_row) const {
        panels.multiply(q, q_row, rows, all, s, s_row);
        for (long i = 0; i < rows; i++)
            apply_bias_and_mask(head.call, query(i), keys[i], s + i * s_row + keys[i].first);
    }
};

// Entries in a row of scores: whole tiles, and a cache line of room: an odd number of lines, so that rows that follow
// each other do not compete for the same places in a cache.
inline long score_row_size(const AttentionCall& call) { return padded_to_tile(call.length) + 64 / long(sizeof(float)); }

}  // namespace
}  // namespace rsoftmax
