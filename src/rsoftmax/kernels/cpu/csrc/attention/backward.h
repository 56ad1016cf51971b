// Attention, backward: scores computed again, thresholds as forward left them, and products only where a weight is not
// zero.
//
// With o = sum p n v (n: dropout), dp = n (g . v), ds = c (dp - mean) and s = q . k:
//
//     dv += p n g,  dq += ds k,  dk += ds q
//
// The mean needs all dp of a row, so there are two rounds over the keys: dp and dv, then dq and dk.
#pragma once

#include "blocks.h"

namespace rsoftmax {
namespace {

// The heads of one part write to gradients that no other part writes to.
struct HeadPartition {
    const AttentionCall& call;
    // Whether one part has all of them.
    bool all_batches, all_heads;
    long count;
    explicit HeadPartition(const AttentionCall& call)
        : call(call), all_batches(call.dbias && call.dbias_strides[0] == 0),
          all_heads(call.dbias && call.dbias_strides[1] == 0),
          count((all_batches ? 1 : call.batch) * (all_heads ? 1 : call.heads)) {}
    template <class F> void heads(long part, F f) const {
        long across = all_heads ? 1 : call.heads, b = part / across, h = part % across;
        for (long i = all_batches ? 0 : b; i < (all_batches ? call.batch : b + 1); i++)
            for (long j = all_heads ? 0 : h; j < (all_heads ? call.heads : h + 1); j++) f(i, j);
    }
};

// A row that many others are multiplied with: in registers if its number of vectors is a constant.
template <class N> struct RegisterRow {
    const float* row;
    INLINE RegisterRow(const float* row, N) : row(row) {}
    INLINE Vec<float> operator()(long k) const { return load(row + k * lanes<float>); }
};
template <long n> struct RegisterRow<std::integral_constant<long, n>> {
    Vec<float> x[n];
    INLINE RegisterRow(const float* row, std::integral_constant<long, n>) {
#pragma GCC unroll 16
        for (long k = 0; k < n; k++) x[k] = load(row + k * lanes<float>);
    }
    INLINE Vec<float> operator()(long k) const { return x[k]; }
};

// The sum of products of two rows of `vectors` vectors.
template <class N> INLINE float dot(const RegisterRow<N>& a, const float* b, N vectors) {
    Vec<float> even{}, odd{};
    const long n = vectors;
#pragma GCC unroll 16
    for (long k = 0; k < n; k++) (k % 2 ? odd : even) += a(k) * load(b + k * lanes<float>);
    return reduce(even + odd, plus);
}

template <class N> INLINE void add_multiple(float* to, float a, const RegisterRow<N>& x, N vectors) {
    const long n = vectors;
#pragma GCC unroll 16
    for (long k = 0; k < n; k++) store(to + k * lanes<float>, load(to + k * lanes<float>) + a * x(k));
}

// Calls f with the number of vectors in a row, as a constant where that is common.
template <class F> INLINE void with_vectors(long width, F f) {
    constexpr long common = 64 / lanes<float>;
    long vectors = width / lanes<float>;
    if (vectors == common) f(std::integral_constant<long, common>());
    else f(vectors);
}

struct Backward {
    const AttentionCall& call;
    const AttentionFunctions& functions = attention_functions[call.op];
    long q_row, v_row, s_row;
    float *k_panels, *v_panels, *k_copy, *v_copy, *q, *g, *dq, *dk, *dv, *s;
    // For each weight, see Coefficients.
    float *p, *c, *term;
    float *dropped_p, *dp, *ds;
    Lists lists;
    VisibleKeys visible;

    Backward(const AttentionCall& call, Memory& memory)
        : call(call), q_row(padded_to_narrow(call.width)), v_row(padded_to_narrow(call.value_width)),
          s_row(score_row_size(call)), visible{call, memory.take<KeyRange>(VisibleKeys::cache_size(call))} {
        long keys = padded_to_tile(call.length), weights = block_rows * s_row;
        k_panels = memory.take<float>(keys * q_row);
        v_panels = memory.take<float>(keys * v_row);
        k_copy = memory.take<float>(in_place(call, call.width) ? 0 : call.length * q_row);
        v_copy = memory.take<float>(in_place(call, call.value_width) ? 0 : call.length * v_row);
        q = memory.take<float>(block_rows * q_row);
        g = memory.take<float>(block_rows * v_row);
        dq = memory.take<float>(block_rows * q_row);
        dk = memory.take<float>(keys * q_row);
        dv = memory.take<float>(keys * v_row);
        s = memory.take<float>(weights);
        p = memory.take<float>(weights);
        c = memory.take<float>(weights);
        term = memory.take<float>(weights);
        dp = memory.take<float>(weights);
        // Each c is read once, when its ds is written.
        ds = c;
        dropped_p = memory.take<float>(call.dropped ? weights : 0);
        lists.values = p;
        lists.keys = memory.take<int32_t>(weights);
        lists.tile = key_tile;
        lists.ends = memory.take<long>(block_rows * lists.max_tiles(call.length, key_tile));
    }

    void map_head(long batch, long number) {
        Head head{call, batch, number};
        Panels keys{head, call.k, call.k_strides, call.width, k_panels, true};
        if (head.rows() > few_queries) keys.build();
        has_value_panels = false;
        is_checked = false;
        k = rows_of(call.k, call.k_strides, head, call.width, k_copy);
        v = rows_of(call.v, call.v_strides, head, call.value_width, v_copy);
        std::fill(dk, dk + call.length * q_row, 0.f);
        std::fill(dv, dv + call.length * v_row, 0.f);
        for (long first = 0; first < head.rows(); first += rows_of_block(call))
            map_block(Block(head, first, visible), keys);
        long first_key = (batch * call.heads + number) * call.length;
        write(dk, q_row, call.dk, first_key, call.length, call.width, 1);
        write(dv, v_row, call.dv, first_key, call.length, call.value_width, 1);
    }

private:
    Rows k{}, v{};
    bool has_value_panels = false, is_checked = false, is_moderate = false;

    // Rows times a factor to a contiguous tensor, from row number `first` on.
    void write(const float* from, long from_row, char* to, long first, long rows, long width, float factor) const {
        with_dtype(call, [&](auto format) {
            auto out = (decltype(format)*)to + first * width;
            for (long i = 0; i < rows; i++)
                for (long d = 0; d < width; d += lanes<float>)
                    store(out + i * width + d, load(from + i * from_row + d) * factor, width - d);
        });
    }

    void map_block(const Block& b, const Panels& keys) {
        RowState states[block_rows];
        long nonzero = 0;
        b.copy_queries(q, q_row);
        b.compute_scores(q, q_row, keys, s, s_row);
        std::fill(dq, dq + b.rows * q_row, 0.f);
        for (long i = 0; i < b.rows; i++) {
            Query query = b.query(i);
            copy_rows(call.g + query.offset(call.g_strides), 0, 1, call.value_width, g + i * v_row, v_row);
            states[i] = call.states[query.number(call)];
            nonzero += functions.support_size(b.scores_of(s, s_row, i), states[i], -1);
        }
        bool is_dense = nonzero > dense_backward * b.total_keys() && all_are_moderate();
        recompute_block_weights(b, states, is_dense);
        is_dense ? dense_values(b) : sparse_values(b);
        for (long i = 0; i < b.rows; i++) compute_score_gradients(b, i, states[i], is_dense);
        is_dense ? dense_keys(b) : sparse_keys(b);
        for (long i = 0; i < b.rows; i++)
            write(dq + i * q_row, 0, call.dq, b.query(i).number(call), 1, call.width, float(call.scale));
    }

    // Dense products would multiply zeros with infinite keys and values, or overflow.
    bool all_are_moderate() {
        if (!is_checked)
            is_moderate = all_moderate(k.data, k.row, call.length, call.width) &&
                all_moderate(v.data, v.row, call.length, call.value_width);
        is_checked = true;
        return is_moderate;
    }

    // The weights of all rows and their coefficients, as lists or at the columns of their keys.
    void recompute_block_weights(const Block& b, const RowState* states, bool is_dense) {
        lists.begin(b.max_keys);
        long used = 0;
        for (long i = 0; i < b.rows; i++) {
            ScoreRow row = b.scores_of(s, s_row, i);
            if (!is_dense) {
                functions.rebuild_list(row, states[i], lists, i, used, {p + used, c + used, term + used});
                // No two rows share a vector.
                used += padded<float>(lists.count[i]);
                continue;
            }
            long start = i * s_row + row.first_key;
            lists.start[i] = start;
            lists.count[i] = is_empty(states[i]) ? 0 : row.n;
            if (lists.count[i]) functions.recompute_weights(row, states[i], {p + start, c + start, term + start});
            for (float* to : {p, c, term}) clear_around(b, i, to);
        }
    }

    // Zeros at the keys of the block that a row has no weight for.
    void clear_around(const Block& b, long i, float* x) const {
        float* row = x + i * s_row;
        long first = lists.start[i] - i * s_row, last = first + lists.count[i];
        std::fill(row + b.all.first, row + std::max(first, b.all.first), 0.f);
        std::fill(row + std::max(last, b.all.first), row + b.all.last, 0.f);
    }

    // The dropout factors of vector j of a row's weights.
    Vec<float> dropout_of(const Dropout& dropout, const Block& b, long i, long j, bool is_dense) const {
        long index = lists.start[i] + j;
        return dropout(is_dense ? iota<float>() + int32_t(b.keys[i].first + j) : load(lists.keys + index));
    }

    // p n, which is p without dropout.
    const float* apply_dropout(const Block& b, bool is_dense) const {
        if (!call.dropped) return p;
        for (long i = 0; i < b.rows; i++) {
            Dropout dropout(call.seed, b.query(i).number(call), call.dropped);
            long start = lists.start[i];
            for (long j = 0; j < lists.count[i]; j += lanes<float>)
                store(dropped_p + start + j, load(p + start + j) * dropout_of(dropout, b, i, j, is_dense));
            if (is_dense) clear_around(b, i, dropped_p);
        }
        return dropped_p;
    }

    // dv += p n g, and dp = g . v
    void dense_values(const Block& b) {
        Panels values{b.head, call.v, call.v_strides, call.value_width, v_panels, true};
        bool by_panels = b.head.rows() > few_queries;
        if (by_panels && !has_value_panels) values.build();
        has_value_panels = true;
        const float* weights = apply_dropout(b, true);
        long first = b.all.first, keys = b.all.size();
        product<true>(ByColumns{weights + first, s_row}, g, v_row, b.rows, dv + first * v_row, v_row, keys, v_row);
        values.multiply(g, v_row, b.rows, b.all, dp, s_row);
    }

    void sparse_values(const Block& b) {
        const float* weights = apply_dropout(b, false);
        with_vectors(v_row, [&](auto vectors) {
            for (long t = 0; t < lists.tiles; t++) lists.parts(b.rows, t, [&](long i, long from, long to) {
                RegisterRow gi(g + i * v_row, vectors);
                for (long j = from; j < to; j++) {
                    long key = lists.keys[j];
                    float w = weights[j];
                    dp[j] = dot(gi, v.data + key * v.row, vectors);
                    add_multiple(dv + key * v_row, w, gi, vectors);
                }
            });
        });
    }

    // Where the gradient of the threshold goes: to the score of a key.
    struct ThresholdGradient : GradientReceiver {
        Backward& pass;
        long i;
        float* dbias;
        ThresholdGradient(Backward& pass, long i, float* dbias) : pass(pass), i(i), dbias(dbias) {}
        void add(long key, double a) override {
            long row = pass.q_row, vectors = row / lanes<float>;
            add_multiple(pass.dq + i * row, float(a), RegisterRow(pass.k.data + key * pass.k.row, vectors), vectors);
            add_multiple(pass.dk + key * row, float(a), RegisterRow(pass.q + i * row, vectors), vectors);
            if (dbias) dbias[key * pass.call.dbias_strides[4]] += float(a);
        }
    };

    // ds, and the gradient that the threshold propagates
    void compute_score_gradients(const Block& b, long i, const RowState& state, bool is_dense) {
        Query query = b.query(i);
        long start = lists.start[i], count = lists.count[i];
        float *pi = p + start, *ci = c + start, *term_i = term + start, *dp_i = dp + start, *ds_i = ds + start;
        double* dvalue = call.dvalues ? call.dvalues + query.number(call) : nullptr;
        if (dvalue) *dvalue = is_nan(state) ? NAN : 0;
        for (float* x : {pi, ci, dp_i}) std::fill(x + count, x + padded<float>(count), 0.f);
        if (call.dropped) {
            Dropout dropout(call.seed, query.number(call), call.dropped);
            for (long j = 0; j < count; j += lanes<float>)
                store(dp_i + j, load(dp_i + j) * dropout_of(dropout, b, i, j, is_dense));
        }
        const float* mean_weights = functions.is_projection ? ci : pi;
        Sum<float> product, norm, total;
        for (long j = 0; j < count; j += lanes<float>) {
            product.add(load(mean_weights + j) * load(dp_i + j), j);
            norm.add(load(mean_weights + j), j);
        }
        float mean = functions.is_projection ? product.get() / norm.get() : product.get();
        for (long j = 0; j < count; j += lanes<float>) {
            Vec<float> h = load(dp_i + j) - mean;
            total.add(iota<float>() < int32_t(count - j) ? load(term_i + j) * h : Vec<float>{}, j);
            store(ds_i + j, load(ci + j) * h);
        }
        if (is_dense) clear_around(b, i, ds);
        if (count == 0) return;
        float* dbias = call.dbias ? call.dbias + query.offset(call.dbias_strides) : nullptr;
        long step = call.dbias_strides[4];
        if (dbias) for (long j = 0; j < count; j++) {
            long key = is_dense ? b.keys[i].first + j : lists.keys[start + j];
            dbias[key * step] += ds_i[j];
        }
        if (is_nan(state)) return;
        ThresholdGradient receiver(*this, i, dbias);
        double slope = functions.propagate_threshold(b.scores_of(s, s_row, i), state, total.get(), receiver);
        if (dvalue) *dvalue = slope;
    }

    // dq += ds k, dk += ds q
    void dense_keys(const Block& b) {
        long first = b.all.first, keys = b.all.size();
        product<true>(ByRows{ds + first, s_row}, k.data + first * k.row, k.row, keys, dq, q_row, b.rows, q_row);
        product<true>(ByColumns{ds + first, s_row}, q, q_row, b.rows, dk + first * q_row, q_row, keys, q_row);
    }

    void sparse_keys(const Block& b) {
        with_vectors(q_row, [&](auto vectors) {
            for (long t = 0; t < lists.tiles; t++) lists.parts(b.rows, t, [&](long i, long from, long to) {
                add_rows<false>(ds + from, lists.keys + from, to - from, k.data, k.row, q_row, dq + i * q_row);
                RegisterRow qi(q + i * q_row, vectors);
                for (long j = from; j < to; j++) add_multiple(dk + lists.keys[j] * q_row, ds[j], qi, vectors);
            });
        });
    }
};

}  // namespace
}  // namespace rsoftmax
