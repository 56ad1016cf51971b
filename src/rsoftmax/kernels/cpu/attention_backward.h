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
    float* row;
    INLINE Held(float* row, N) : row(row) {}
    INLINE V<float> operator()(long k) const { return at(row + k * lanes<float>); }
    INLINE void add(long k, V<float> v) { put(row + k * lanes<float>, (*this)(k) + v); }
    INLINE void write() const {}
};
template <long n> struct Held<std::integral_constant<long, n>> {
    float* row;
    V<float> x[n];
    INLINE Held(float* row, std::integral_constant<long, n>) : row(row) {
#pragma GCC unroll 16
        for (long k = 0; k < n; k++) x[k] = at(row + k * lanes<float>);
    }
    INLINE V<float> operator()(long k) const { return x[k]; }
    INLINE void add(long k, V<float> v) { x[k] += v; }
    INLINE void write() const {
#pragma GCC unroll 16
        for (long k = 0; k < n; k++) put(row + k * lanes<float>, x[k]);
    }
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
template <class N> INLINE void add_multiple(Held<N>& to, float a, const float* x, N vectors) {
    const long n = vectors;
#pragma GCC unroll 16
    for (long k = 0; k < n; k++) to.add(k, a * at(x + k * lanes<float>));
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
        lists.values = p, lists.places = pieces.take<int32_t>(all);
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
        long used = 0;
        for (long i = 0; i < b.rows; i++) {                           // lists are whole vectors: no two share one
            lists.start[i] = is_dense ? i * s_room : used;
            used += padded<float>(row(b, i, states[i], is_dense));
        }
        is_dense ? dense_values(b) : sparse_values(b);
        for (long i = 0; i < b.rows; i++) finish(b, i, states[i], is_dense);
        is_dense ? dense_keys(b) : sparse_keys(b);
        for (long i = 0; i < b.rows; i++)
            write(dq + i * q_room, 0, (S*)call.dq + b.place(i).number(call) * call.width, 1, call.width, float(call.scale));
    }

    // The weights of a row, as a list or as they lie, and their coefficients.  Returns the length of the list.
    long row(const Block<S>& b, long i, State& state, bool is_dense) {
        Place place = b.place(i);
        long n = place.sees(call), at_ = lists.start[i], &count = lists.count[i];
        float* x = s + i * s_room;
        count = 0;
        if (is_nan(state)) for (; count < n; count++) p[at_ + count] = c[at_ + count] = NAN, term[at_ + count] = 0, lists.places[at_ + count] = count;
        else if (!is_empty(state)) with_mass<Op>(place.value(call), state, [&](auto mass) {
            if (is_dense) std::copy(x, x + padded<float>(n), p + at_), count = n;
            else count = gather(mass, x, n, p + at_, lists.places + at_);
            Quotient quotient(state.sum);
            for (long j = 0; j < count; j += lanes<float>) {
                V<float> v = at(p + at_ + j), w = mass(v), cj, tj;
                if (Op::power == 0) w = quotient(w);
                mass.coefficients(v, w, cj, tj);
                put(p + at_ + j, w), put(c + at_ + j, cj), put(term + at_ + j, tj);
            }
        });
        if (is_dense) for (float* to : {p, c, term}) std::fill(to + at_ + count, to + at_ + b.limit, 0.f);
        return count;
    }

    // Calls f with the factors of dropout of a row, for vector j of its list.
    V<float> noise_of(const Noise& noise, long at_, long j, bool is_dense) const {
        return noise(is_dense ? iota<float>() + int32_t(j) : at(lists.places + at_ + j));
    }

    void copy_dropped(const Block<S>& b, bool is_dense) {             // d = p n
        for (long i = 0; i < b.rows; i++) {
            Noise noise(call.seed, b.place(i).number(call), call.dropped);
            long at_ = lists.start[i], count = is_dense ? b.limit : lists.count[i];
            for (long j = 0; j < count; j += lanes<float>)
                put(d + at_ + j, call.dropped ? at(p + at_ + j) * noise_of(noise, at_, j, is_dense) : at(p + at_ + j));
        }
    }

    // dv += p n g, and d = g . v
    void dense_values(const Block<S>& b) {
        if (!has_value_panels) panels_of<S>(call.v, call.v_at, b.head, call.value_width, v_panels, true).make(), has_value_panels = true;
        copy_dropped(b, true);
        product<true>({d, 1, s_room}, g, v_room, b.rows, dv, v_room, b.limit, v_room);
        for (long j = 0; j < b.limit; j += wide)
            strip<false>({g, v_room, 1}, v_panels + j * call.value_width, wide, call.value_width, d + j, s_room, b.rows);
    }

    void sparse_values(const Block<S>& b) {
        copy_dropped(b, false);
        with_vectors(v_room, [&](auto vectors) {
            lists.by_tiles(b.rows, b.limit, key_tile, [&](long i, long from, long to) {
                Held gi(g + i * v_room, vectors);
                for (long j = from; j < to; j++) {
                    long key = lists.places[j];
                    float w = d[j];
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
        double* dvalue = call.dvalues ? call.dvalues + place.number(call) : nullptr;
        if (dvalue) *dvalue = is_nan(state) ? NAN : 0;
        if (count == 0) {
            if (is_dense) std::fill(d + at_, d + at_ + b.limit, 0.f);
            return;
        }
        Noise noise(call.seed, place.number(call), call.dropped);
        Sum<float> product, norm;
        for (long j = 0; j < count; j += lanes<float>) {
            I<float> inside = iota<float>() < int32_t(count - j);
            V<float> dp = at(d + at_ + j), by = at((Op::power ? c : p) + at_ + j);
            if (call.dropped) dp *= noise_of(noise, at_, j, is_dense);
            product.add(inside ? by * dp : V<float>{}, j), norm.add(inside ? by : V<float>{}, j);
            put(d + at_ + j, dp);
        }
        float mean = Op::power ? product.get() / norm.get() : product.get();
        Sum<float> total;
        for (long j = 0; j < count; j += lanes<float>) {
            I<float> inside = iota<float>() < int32_t(count - j);
            V<float> h = at(d + at_ + j) - mean;
            total.add(inside ? at(term + at_ + j) * h : V<float>{}, j);
            put(d + at_ + j, at(c + at_ + j) * h);
        }
        if (is_dense) std::fill(d + at_ + count, d + at_ + b.limit, 0.f);
        float* dbias = call.dbias ? call.dbias + place.of(call.dbias_at) : nullptr;
        long step = call.dbias_at[4];
        if (dbias) for (long j = 0; j < count; j++) dbias[(is_dense ? j : lists.places[at_ + j]) * step] += d[at_ + j];
        if (is_nan(state)) return;
        with_mass<Op>(place.value(call), state, [&](auto mass) {
            if constexpr (!mass.constant) {
                const float* x = s + i * s_room;
                I<float> where = iota<float>();
                for (long j = 0; j < n; j += lanes<float>, where += int32_t(lanes<float>)) mass.find(at(x + j), where);
                double slope = mass.w.pass_on(total.get(), Scores{x}, n, state, false, [&](long key, double a) {
                    long vectors = q_room / lanes<float>;
                    Held dqi(dq + i * q_room, vectors), qi(q + i * q_room, vectors);
                    add_multiple(dqi, float(a), k.at + key * k.row, vectors);
                    add_multiple(dk + key * q_room, float(a), qi, vectors);
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
            lists.by_tiles(b.rows, b.limit, key_tile, [&](long i, long from, long to) {
                Held dqi(dq + i * q_room, vectors);
                for (long j = from; j < to; j++) add_multiple(dqi, d[j], k.at + lists.places[j] * k.row, vectors);
                dqi.write();
                Held qi(q + i * q_room, vectors);
                for (long j = from; j < to; j++) add_multiple(dk + lists.places[j] * q_room, d[j], qi, vectors);
            });
        });
    }
};

}  // namespace
