// Attention, backward: scores computed again, thresholds as forward left them, and products only where a weight is not
// zero.
//
// With o = sum p n v (n: dropout), dp = n (g . v), ds = c (dp - mean) and s = q . k:  dv += p n g, dq += ds k, dk += ds q.
// The mean needs all dp of a row, so there are two rounds over the keys: dp and dv, then dq and dk.
#pragma once

#include "blocks.h"

namespace rsoftmax {
namespace {

// The heads of one share write to gradients that no other share writes to.
struct Shares {
    const AttentionCall& call;
    bool all_batches, all_heads;                                      // whether one share has all of them
    long count;
    explicit Shares(const AttentionCall& call)
        : call(call), all_batches(call.dbias && call.dbias_strides[0] == 0),
          all_heads(call.dbias && call.dbias_strides[1] == 0),
          count((all_batches ? 1 : call.batch) * (all_heads ? 1 : call.heads)) {}
    template <class F> void heads(long share, F f) const {
        long across = all_heads ? 1 : call.heads, b = share / across, h = share % across;
        for (long i = all_batches ? 0 : b; i < (all_batches ? call.batch : b + 1); i++)
            for (long j = all_heads ? 0 : h; j < (all_heads ? call.heads : h + 1); j++) f(i, j);
    }
};

// A row that many others are multiplied with: held in registers if its number of vectors is a constant.
template <class N> struct Held {
    const float* row;
    INLINE Held(const float* row, N) : row(row) {}
    INLINE V<float> operator()(long k) const { return load(row + k * lanes<float>); }
};
template <long n> struct Held<std::integral_constant<long, n>> {
    V<float> x[n];
    INLINE Held(const float* row, std::integral_constant<long, n>) {
#pragma GCC unroll 16
        for (long k = 0; k < n; k++) x[k] = load(row + k * lanes<float>);
    }
    INLINE V<float> operator()(long k) const { return x[k]; }
};

// The sum of products of two rows of `vectors` vectors.
template <class N> INLINE float dot(const Held<N>& a, const float* b, N vectors) {
    V<float> even{}, odd{};
    const long n = vectors;
#pragma GCC unroll 16
    for (long k = 0; k < n; k++) (k % 2 ? odd : even) += a(k) * load(b + k * lanes<float>);
    return reduce(even + odd, plus);
}

template <class N> INLINE void add_multiple(float* to, float a, const Held<N>& x, N vectors) {
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
    long q_room, v_room, s_room;
    float *k_panels, *v_panels, *k_copy, *v_copy, *q, *g, *dq, *dk, *dv, *s;
    float *p, *c, *term;                                              // for each weight: see Coefficients
    float *dropped_p, *dp, *ds;
    Lists lists;
    SeenKeys seen;

    Backward(const AttentionCall& call, Memory& memory)
        : call(call), q_room(widened(call.width)), v_room(widened(call.value_width)), s_room(score_room(call)),
          seen{call, memory.take<Seen>(SeenKeys::room(call))} {
        long keys = widened(call.length), weights = block_rows * s_room;
        k_panels = memory.take<float>(keys * q_room);
        v_panels = memory.take<float>(keys * v_room);
        k_copy = memory.take<float>(in_place(call, call.width) ? 0 : call.length * q_room);
        v_copy = memory.take<float>(in_place(call, call.value_width) ? 0 : call.length * v_room);
        q = memory.take<float>(block_rows * q_room);
        g = memory.take<float>(block_rows * v_room);
        dq = memory.take<float>(block_rows * q_room);
        dk = memory.take<float>(keys * q_room);
        dv = memory.take<float>(keys * v_room);
        s = memory.take<float>(weights);
        p = memory.take<float>(weights);
        c = memory.take<float>(weights);
        term = memory.take<float>(weights);
        dp = memory.take<float>(weights);
        ds = c;                                                       // each c is read once, when its ds is written
        dropped_p = memory.take<float>(call.dropped ? weights : 0);
        lists.values = p;
        lists.keys = memory.take<int32_t>(weights);
        lists.tile = key_tile;
        lists.ends = memory.take<long>(block_rows * lists.most_tiles(call.length, key_tile));
    }

    void map_head(long batch, long number) {
        Head head{call, batch, number};
        Panels keys{head, call.k, call.k_strides, call.width, k_panels, true};
        if (head.rows() > few_queries) keys.make();
        has_value_panels = false;
        is_checked = false;
        k = rows_of(call.k, call.k_strides, head, call.width, k_copy);
        v = rows_of(call.v, call.v_strides, head, call.value_width, v_copy);
        std::fill(dk, dk + call.length * q_room, 0.f);
        std::fill(dv, dv + call.length * v_room, 0.f);
        for (long first = 0; first < head.rows(); first += block_rows) map_block(Block(head, first, seen), keys);
        long first_key = (batch * call.heads + number) * call.length;
        write(dk, q_room, call.dk, first_key, call.length, call.width, 1);
        write(dv, v_room, call.dv, first_key, call.length, call.value_width, 1);
    }

private:
    Rows k{}, v{};
    bool has_value_panels = false, is_checked = false, is_moderate = false;

    // Rows times a factor to a contiguous tensor, from row number `first` on.
    void write(const float* from, long room, char* to, long first, long rows, long width, float factor) const {
        with_dtype(call, [&](auto format) {
            auto out = (decltype(format)*)to + first * width;
            for (long i = 0; i < rows; i++)
                for (long d = 0; d < width; d += lanes<float>)
                    store(out + i * width + d, load(from + i * room + d) * factor, width - d);
        });
    }

    void map_block(const Block& b, const Panels& keys) {
        RowState states[block_rows];
        long on = 0;
        b.copy_queries(q, q_room);
        b.compute_scores(q, q_room, keys, s, s_room);
        std::fill(dq, dq + b.rows * q_room, 0.f);
        for (long i = 0; i < b.rows; i++) {
            Query query = b.query(i);
            copy_rows(call.g + query.offset(call.g_strides), 0, 1, call.value_width, g + i * v_room, v_room);
            states[i] = call.states[query.number(call)];
            on += functions.support_size(b.scores_of(s, s_room, i), states[i]);
        }
        bool is_dense = on > dense_backward * b.total_keys() && all_are_moderate();
        compute_weights(b, states, is_dense);
        is_dense ? dense_values(b) : sparse_values(b);
        for (long i = 0; i < b.rows; i++) compute_score_gradients(b, i, states[i], is_dense);
        is_dense ? dense_keys(b) : sparse_keys(b);
        for (long i = 0; i < b.rows; i++)
            write(dq + i * q_room, 0, call.dq, b.query(i).number(call), 1, call.width, float(call.scale));
    }

    // Dense products would multiply zeros with infinite keys and values, or overflow.
    bool all_are_moderate() {
        if (!is_checked)
            is_moderate = all_moderate(k.data, k.row, call.length, call.width) && all_moderate(v.data, v.row, call.length, call.value_width);
        is_checked = true;
        return is_moderate;
    }

    // The weights of all rows and their coefficients, as lists or at the columns of their keys.
    void compute_weights(const Block& b, const RowState* states, bool is_dense) {
        lists.begin(b.most);
        long used = 0;
        for (long i = 0; i < b.rows; i++) {
            ScoreRow row = b.scores_of(s, s_room, i);
            if (!is_dense) {
                functions.list_again(row, states[i], lists, i, used, {p + used, c + used, term + used});
                used += padded<float>(lists.count[i]);                // no two rows share a vector
                continue;
            }
            long start = i * s_room + row.first_key;
            lists.start[i] = start;
            lists.count[i] = is_empty(states[i]) ? 0 : row.n;
            if (lists.count[i]) functions.weigh_again(row, states[i], {p + start, c + start, term + start});
            for (float* to : {p, c, term}) clear_around(b, i, to);
        }
    }

    // Zeros at the keys of the block that a row has no weight for.
    void clear_around(const Block& b, long i, float* x) const {
        float* row = x + i * s_room;
        long first = lists.start[i] - i * s_room, last = first + lists.count[i];
        std::fill(row + b.all.first, row + std::max(first, b.all.first), 0.f);
        std::fill(row + std::max(last, b.all.first), row + b.all.last, 0.f);
    }

    // The dropout factors of vector j of a row's weights.
    V<float> dropout_of(const Dropout& dropout, const Block& b, long i, long j, bool is_dense) const {
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
        if (by_panels && !has_value_panels) values.make();
        has_value_panels = true;
        const float* weights = apply_dropout(b, true);
        long first = b.all.first, keys = b.all.size();
        product<true>({weights + first, 1, s_room}, g, v_room, b.rows, dv + first * v_room, v_room, keys, v_room);
        values.multiply(g, v_room, b.rows, b.all, dp, s_room);
    }

    void sparse_values(const Block& b) {
        const float* weights = apply_dropout(b, false);
        with_vectors(v_room, [&](auto vectors) {
            for (long t = 0; t < lists.tiles; t++) lists.parts(b.rows, t, [&](long i, long from, long to) {
                Held gi(g + i * v_room, vectors);
                for (long j = from; j < to; j++) {
                    long key = lists.keys[j];
                    float w = weights[j];
                    dp[j] = dot(gi, v.data + key * v.row, vectors);
                    add_multiple(dv + key * v_room, w, gi, vectors);
                }
            });
        });
    }

    // Where the gradient of the threshold goes: to the score of a key.
    struct ThroughThreshold : GradientReceiver {
        Backward& pass;
        long i;
        float* dbias;
        ThroughThreshold(Backward& pass, long i, float* dbias) : pass(pass), i(i), dbias(dbias) {}
        void add(long key, double a) override {
            long room = pass.q_room, vectors = room / lanes<float>;
            add_multiple(pass.dq + i * room, float(a), Held(pass.k.data + key * pass.k.row, vectors), vectors);
            add_multiple(pass.dk + key * room, float(a), Held(pass.q + i * room, vectors), vectors);
            if (dbias) dbias[key * pass.call.dbias_strides[4]] += float(a);
        }
    };

    // ds, and what the threshold passes on
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
        const float* by = functions.is_projection ? ci : pi;
        Sum<float> product, norm, total;
        for (long j = 0; j < count; j += lanes<float>) {
            product.add(load(by + j) * load(dp_i + j), j);
            norm.add(load(by + j), j);
        }
        float mean = functions.is_projection ? product.get() / norm.get() : product.get();
        for (long j = 0; j < count; j += lanes<float>) {
            V<float> h = load(dp_i + j) - mean;
            total.add(iota<float>() < int32_t(count - j) ? load(term_i + j) * h : V<float>{}, j);
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
        ThroughThreshold receiver(*this, i, dbias);
        double slope = functions.pass_on(b.scores_of(s, s_room, i), state, total.get(), receiver);
        if (dvalue) *dvalue = slope;
    }

    // dq += ds k, dk += ds q
    void dense_keys(const Block& b) {
        long first = b.all.first, keys = b.all.size();
        product<true>({ds + first, s_room, 1}, k.data + first * k.row, k.row, keys, dq, q_room, b.rows, q_room);
        product<true>({ds + first, 1, s_room}, q, q_room, b.rows, dk + first * q_room, q_room, keys, q_room);
    }

    void sparse_keys(const Block& b) {
        with_vectors(q_room, [&](auto vectors) {
            for (long t = 0; t < lists.tiles; t++) lists.parts(b.rows, t, [&](long i, long from, long to) {
                add_rows<false>(ds + from, lists.keys + from, to - from, k.data, k.row, q_room, dq + i * q_room);
                Held qi(q + i * q_room, vectors);
                for (long j = from; j < to; j++) add_multiple(dk + lists.keys[j] * q_room, ds[j], qi, vectors);
            });
        });
    }
};

}  // namespace
}  // namespace rsoftmax
