// Attention, backward: scores computed again, thresholds as forward left them, and all products only where a weight is
// not zero.
//
// With o = sum p n v (n: dropout), dp = n (g . v), ds = c (dp - mean) and s = q . k:  dv += p n g, dq += ds k, dk += ds q.
// The mean needs all dp of a row, so there are two rounds over the keys: dp and dv, then dq and dk.
#pragma once

#include "attention_blocks.h"

namespace {

// The heads of one share write to gradients that no other share writes to.
struct Shares {
    const Attention& call;
    bool batches, all_heads;                                          // whether one share has all of them
    long count;
    explicit Shares(const Attention& call)
        : call(call), batches(call.dbias && call.dbias_at[0] == 0), all_heads(call.dbias && call.dbias_at[1] == 0),
          count((batches ? 1 : call.batch) * (all_heads ? 1 : call.heads)) {}
    template <class F> void heads(long share, F f) const {
        long across = all_heads ? 1 : call.heads, b = share / across, h = share % across;
        for (long i = batches ? 0 : b; i < (batches ? call.batch : b + 1); i++)
            for (long j = all_heads ? 0 : h; j < (all_heads ? call.heads : h + 1); j++) f(i, j);
    }
};

// A row that many others are multiplied with: held in registers if the number of its vectors is a constant.
template <class N> struct Held {
    const float* row;
    INLINE Held(const float* row, N) : row(row) {}
    INLINE V<float> operator()(long k) const { return at(row + k * lanes<float>); }
};
template <long n> struct Held<std::integral_constant<long, n>> {
    V<float> x[n];
    INLINE Held(const float* row, std::integral_constant<long, n>) {
#pragma GCC unroll 16
        for (long k = 0; k < n; k++) x[k] = at(row + k * lanes<float>);
    }
    INLINE V<float> operator()(long k) const { return x[k]; }
};

// The sum of products of two rows of `vectors` vectors.
template <class N> INLINE float dot(const Held<N>& a, const float* b, N vectors) {
    V<float> even{}, odd{};
    const long n = vectors;
#pragma GCC unroll 16
    for (long k = 0; k < n; k++) (k % 2 ? odd : even) += a(k) * at(b + k * lanes<float>);
    return fold(even + odd, plus);
}

template <class N> INLINE void add_multiple(float* to, float a, const Held<N>& x, N vectors) {
    const long n = vectors;
#pragma GCC unroll 16
    for (long k = 0; k < n; k++) put(to + k * lanes<float>, at(to + k * lanes<float>) + a * x(k));
}

// Calls f with the number of vectors in a row, as a constant where that is common.
template <class F> INLINE void with_vectors(long width, F f) {
    constexpr long common = 64 / lanes<float>;
    long vectors = width / lanes<float>;
    if (vectors == common) f(std::integral_constant<long, common>());
    else f(vectors);
}

template <class Op, class S> struct Backward {
    const Attention& call;
    long q_room, v_room, s_room;
    float *k_panels, *v_panels, *k_copy, *v_copy, *q, *g, *dq, *dk, *dv, *s, *p, *c, *term, *d;
    Lists lists;

    Backward(const Attention& call, Pieces& pieces)
        : call(call), q_room(widened(call.width)), v_room(widened(call.value_width)), s_room(score_room(call)) {
        long keys = widened(call.length), all = block * s_room;
        k_panels = pieces.take<float>(keys * call.width), v_panels = pieces.take<float>(keys * call.value_width);
        k_copy = pieces.take<float>(in_place<S>(call.width) ? 0 : call.length * q_room);
        v_copy = pieces.take<float>(in_place<S>(call.value_width) ? 0 : call.length * v_room);
        q = pieces.take<float>(block * q_room), g = pieces.take<float>(block * v_room);
        dq = pieces.take<float>(block * q_room);
        dk = pieces.take<float>(keys * q_room), dv = pieces.take<float>(keys * v_room);
        s = pieces.take<float>(all), p = pieces.take<float>(all), c = pieces.take<float>(all);
        term = pieces.take<float>(all), d = pieces.take<float>(all);
        lists.values = p, lists.places = pieces.take<int32_t>(all), lists.tile = key_tile;
        lists.ends = pieces.take<long>(block * lists.most_tiles(call.length, key_tile));
    }

    void head(long batch, long number) {
        Head head{call, batch, number};
        auto keys = panels_of<S>(call.k, call.k_at, head, call.width, k_panels, true);
        keys.make();
        has_value_panels = false;
        k = rows_of<S>(call.k, call.k_at, head, call.length, call.width, k_copy);
        v = rows_of<S>(call.v, call.v_at, head, call.length, call.value_width, v_copy);
        std::fill(dk, dk + call.length * q_room, 0.f);
        std::fill(dv, dv + call.length * v_room, 0.f);
        for (long first = 0; first < head.rows(); first += block) one(Block<S>(head, first), keys);
        write(dk, q_room, (S*)call.dk + (batch * call.heads + number) * call.length * call.width, call.length, call.width, 1);
        write(dv, v_room, (S*)call.dv + (batch * call.heads + number) * call.length * call.value_width, call.length,
              call.value_width, 1);
    }

private:
    Rows k{}, v{};
    bool has_value_panels = false;

    static void write(const float* from, long room, S* to, long rows, long width, float factor) {
        for (long i = 0; i < rows; i++)
            for (long d = 0; d < width; d += lanes<float>) store(to + i * width + d, at(from + i * room + d) * factor, width - d);
    }

    void one(const Block<S>& b, const Panels<S>& keys) {
        State states[block];
        long on = 0, all = 0;
        b.queries(q, q_room);
        b.scores(q, q_room, keys, s, s_room);
        std::fill(dq, dq + b.rows * q_room, 0.f);
        for (long i = 0; i < b.rows; i++) {
            Place place = b.place(i);
            long n = place.sees(call);
            copy_rows(call.g + place.of(call.g_at), 0, 1, call.value_width, g + i * v_room, v_room);
            states[i] = call.states[place.number(call)];
            on += count_on<Op>(s + i * s_room, n, place.value(call), states[i]), all += n;
        }
        bool is_dense = on > dense_backward * all;
        lists.begin(b.limit);
        for (long i = 0, used = 0; i < b.rows; used += padded<float>(lists.count[i++]))   // no two rows share a vector
            row(b, i, states[i], is_dense ? i * s_room : used, is_dense);
        is_dense ? dense_values(b) : sparse_values(b);
        for (long i = 0; i < b.rows; i++) finish(b, i, states[i], is_dense);
        is_dense ? dense_keys(b) : sparse_keys(b);
        for (long i = 0; i < b.rows; i++)
            write(dq + i * q_room, 0, (S*)call.dq + b.place(i).number(call) * call.width, 1, call.width, float(call.scale));
    }

    // The weights of a row from `from` on, as a list or as they lie, and their coefficients.
    void row(const Block<S>& b, long i, State& state, long from, bool is_dense) {
        Place place = b.place(i);
        long n = place.sees(call), &count = lists.count[i];
        const float* x = s + i * s_room;
        if (state.kept == 0) {
            lists.fill_whole(i, from, x, n, state);
            std::fill(c + from, c + from + count, NAN), std::fill(term + from, term + from + count, 0.f);
        } else with_mass<Op>(place.value(call), state, [&](auto mass) {
            if (is_dense) lists.start[i] = from, count = n;
            else lists.fill(i, from, x, n, [mass](V<float> v, I<float>) { return mass.on(v); }), x = p + from;
            weigh_again<Op>(mass, state, x, count, p + from, c + from, term + from);
        });
        if (is_dense) for (float* to : {p, c, term}) std::fill(to + from + count, to + from + b.limit, 0.f);
    }

    // Calls f with the factors of dropout of a row, for vector j of its list.
    V<float> noise_of(const Noise& noise, long at_, long j, bool is_dense) const {
        return noise(is_dense ? iota<float>() + int32_t(j) : at(lists.places + at_ + j));
    }

    // p n: p itself without dropout, else in d.
    const float* dropped(const Block<S>& b, bool is_dense) {
        if (!call.dropped) return p;
        for (long i = 0; i < b.rows; i++) {
            Noise noise(call.seed, b.place(i).number(call), call.dropped);
            long at_ = lists.start[i], count = is_dense ? b.limit : lists.count[i];
            for (long j = 0; j < count; j += lanes<float>) put(d + at_ + j, at(p + at_ + j) * noise_of(noise, at_, j, is_dense));
        }
        return d;
    }

    // dv += p n g, and d = g . v
    void dense_values(const Block<S>& b) {
        if (!has_value_panels) panels_of<S>(call.v, call.v_at, b.head, call.value_width, v_panels, true).make(), has_value_panels = true;
        product<true>({dropped(b, true), 1, s_room}, g, v_room, b.rows, dv, v_room, b.limit, v_room);
        for (long j = 0; j < b.limit; j += wide)
            strip<false>({g, v_room, 1}, v_panels + j * call.value_width, wide, call.value_width, d + j, s_room, b.rows);
    }

    void sparse_values(const Block<S>& b) {
        const float* weights = dropped(b, false);
        with_vectors(v_room, [&](auto vectors) {
            for (long t = 0; t < lists.tiles; t++) lists.parts(b.rows, t, [&](long i, long from, long to) {
                Held gi(g + i * v_room, vectors);
                for (long j = from; j < to; j++) {
                    long key = lists.places[j];
                    float w = weights[j];
                    d[j] = dot(gi, v.at + key * v.row, vectors);
                    add_multiple(dv + key * v_room, w, gi, vectors);
                }
            });
        });
    }

    // d = ds, and what the threshold passes on
    void finish(const Block<S>& b, long i, const State& state, bool is_dense) {
        Place place = b.place(i);
        long at_ = lists.start[i], count = lists.count[i], n = place.sees(call);
        float *pi = p + at_, *ci = c + at_, *ti = term + at_, *di = d + at_;
        double* dvalue = call.dvalues ? call.dvalues + place.number(call) : nullptr;
        if (dvalue) *dvalue = is_nan(state) ? NAN : 0;
        for (float* x : {pi, ci, di}) std::fill(x + count, x + padded<float>(count), 0.f);
        if (call.dropped) {
            Noise noise(call.seed, place.number(call), call.dropped);
            for (long j = 0; j < count; j += lanes<float>) put(di + j, at(di + j) * noise_of(noise, at_, j, is_dense));
        }
        const float* by = Op::power ? ci : pi;
        Sum<float> product, norm, total;
        for (long j = 0; j < count; j += lanes<float>) product.add(at(by + j) * at(di + j), j), norm.add(at(by + j), j);
        float mean = Op::power ? product.get() / norm.get() : product.get();
        for (long j = 0; j < count; j += lanes<float>) {
            V<float> h = at(di + j) - mean;
            total.add(iota<float>() < int32_t(count - j) ? at(ti + j) * h : V<float>{}, j);
            put(di + j, at(ci + j) * h);
        }
        if (is_dense) std::fill(di + count, di + b.limit, 0.f);
        if (count == 0) return;
        float* dbias = call.dbias ? call.dbias + place.of(call.dbias_at) : nullptr;
        long step = call.dbias_at[4];
        if (dbias) for (long j = 0; j < count; j++) dbias[(is_dense ? j : lists.places[at_ + j]) * step] += di[j];
        if (is_nan(state)) return;
        with_mass<Op>(place.value(call), state, [&](auto mass) {
            if constexpr (!mass.constant) {
                const float* x = s + i * s_room;
                double slope = found(mass.w, x, n).pass_on(total.get(), Scores{x}, n, state, false, [&](long key, double a) {
                    long vectors = q_room / lanes<float>;
                    add_multiple(dq + i * q_room, float(a), Held(k.at + key * k.row, vectors), vectors);
                    add_multiple(dk + key * q_room, float(a), Held(q + i * q_room, vectors), vectors);
                    if (dbias) dbias[key * step] += float(a);
                });
                if (dvalue) *dvalue = slope;
            }
        });
    }

    // dq += ds k, dk += ds q
    void dense_keys(const Block<S>& b) {
        product<true>({d, s_room, 1}, k.at, k.row, b.limit, dq, q_room, b.rows, q_room);
        product<true>({d, 1, s_room}, q, q_room, b.rows, dk, q_room, b.limit, q_room);
    }

    void sparse_keys(const Block<S>& b) {
        with_vectors(q_room, [&](auto vectors) {
            for (long t = 0; t < lists.tiles; t++) lists.parts(b.rows, t, [&](long i, long from, long to) {
                add_rows<false>(d + from, lists.places + from, to - from, k.at, k.row, q_room, dq + i * q_room);
                Held qi(q + i * q_room, vectors);
                for (long j = from; j < to; j++) add_multiple(dk + lists.places[j] * q_room, d[j], qi, vectors);
            });
        });
    }
};

}  // namespace
