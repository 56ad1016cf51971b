// One row of attention: its scores with mask and bias, its threshold, and the weights that are not zero.
#pragma once

#include "attention_call.h"
#include "guess.h"
#include "noise.h"
#include "operations.h"

namespace {

// The scores of a row, filled up with -inf to a whole vector.
struct Scores {
    const float* x;
    INLINE V<float> operator()(long i) const { return at(x + i); }
};

// How many keys are kept before one is removed, often all of them; 0 if that would take a look at each.
inline long kept_from_the_first(const uint8_t* mask, long step, long n) {
    if (step > 1) return 0;
    const void* removed = std::memchr(mask, 0, step ? n : 1);         // step 0: one value serves all
    return removed ? (const uint8_t*)removed - mask : n;
}

// Completes n scores: what the mask removes is -inf, and so is the rest of the last vector.
inline void complete(const Attention& call, const Place& place, float* x, long n) {
    if (call.bias) {
        const float* bias = call.bias + place.of(call.bias_at);
        long step = call.bias_at[4], i = 0;
        if (step == 1) for (; i + lanes<float> <= n; i += lanes<float>) put(x + i, at(x + i) + at(bias + i));
        for (; i < n; i++) x[i] += bias[i * step];
    }
    if (call.mask) {
        const uint8_t* mask = call.mask + place.of(call.mask_at);
        long step = call.mask_at[4], i = kept_from_the_first(mask, step, n) / lanes<float> * lanes<float>;
        using Bytes = vec<uint8_t, lanes<float>>;
        if (step == 1) for (; i + lanes<float> <= n; i += lanes<float>) {
            typename Bytes::type kept = *(const typename Bytes::loose*)(mask + i);
            put(x + i, widen<uint8_t, float>(kept) != 0 ? at(x + i) : splat(-inf<float>));
        }
        for (; i < n; i++) if (!mask[i * step]) x[i] = -inf<float>;
    }
    for (long i = n; i < padded<float>(n); i++) x[i] = -inf<float>;
}

// What happens to a row as a whole.
inline bool is_nan(const State& s) { return s.kept == 0 && s.m != s.m; }
inline bool is_empty(const State& s) { return s.kept == 0 && s.m == s.m; }

// What the kept scores of a row look like.
struct Look {
    static constexpr int ways = 4;                                    // sums that do not wait for each other
    float top, mean, spread;
    long kept;
    bool bad = false;                                                 // one is NaN or +inf

    Look(const float* x, long n) : kept(n) {
        V<float> most[ways], sum[ways] = {}, squares[ways] = {};
        std::fill(most, most + ways, splat(-inf<float>));
        auto add = [&](int k, V<float> v, V<float> inside) {
            most[k] = larger(most[k], v), sum[k] += inside, squares[k] += inside * inside;
        };
        long i = 0;
        for (; i + ways * lanes<float> <= n; i += ways * lanes<float>)
#pragma GCC unroll 4
            for (int k = 0; k < ways; k++) add(k, at(x + i + k * lanes<float>), at(x + i + k * lanes<float>));
        for (; i < n; i += lanes<float>) add(0, at(x + i), iota<float>() < int32_t(n - i) ? at(x + i) : V<float>{});
        top = fold(larger(larger(most[0], most[1]), larger(most[2], most[3])), larger);
        set(sum[0] + sum[1] + sum[2] + sum[3], squares[0] + squares[1] + squares[2] + squares[3]);
        if (!std::isfinite(mean)) look_closely(x, n);
    }

private:
    void look_closely(const float* x, long n) {                       // something is removed, or bad
        V<float> sum{}, squares{};
        I<float> in{}, wrong{};
        for (long i = 0; i < n; i += lanes<float>) {
            V<float> v = at(x + i), inside = v > -inf<float> ? v : V<float>{};
            in -= v > -inf<float>, wrong |= ~(v < inf<float>);
            sum += inside, squares += inside * inside;
        }
        kept = fold(in, plus), bad = fold(wrong, [](auto a, auto b) { return a | b; });
        set(sum, squares);
    }
    void set(V<float> sum, V<float> squares) {
        mean = fold(sum, plus) / kept;
        spread = std::sqrt(std::max(fold(squares, plus) / kept - mean * mean, 0.f));
    }
};

// A row's maximum and threshold; scratch has room for three rows.  kept = 0 marks a row without weights, m = NaN one that
// is NaN throughout.  For the projections, lo is tau.
template <class Op> State state_of(const float* x, long n, double value, Guess& guess, float* scratch) {
    Look look(x, n);
    if (look.bad || !Op::valid(value)) return {NAN, 0, 0, 0, 0, 0};
    if (look.kept == 0) return {0, 0, 0, 0, 0, 0};
    State s{look.top, 0, 0, 0, 0, double(look.kept)};
    if constexpr (Op::selects) {
        long room = padded<float>(n) + lanes<float>;
        if (value > 0) Op::find_quantile(n, value, s, [&](long j) {
            return guess.ranks(x, n, j, look.top, look.mean, look.spread, scratch, scratch + room);
        });
    }
    if constexpr (Op::power > 0) s.lo = simplex<Op::power>(Scores{x}, n, look.top, scratch);
    return s;
}

// ------------------------------------------------------------------------------------------- the mass of an entry

// w e^(x - m), and the gradient's coefficients: ds = c (dp - mean), and `term`, whose sum times (dp - mean) is the
// gradient in the threshold.
template <class W> struct Exponential {
    static constexpr bool constant = W::constant;
    W w;
    float m, unit;
    INLINE I<float> on(V<float> x) const { return w.on(x, x - m); }
    INLINE V<float> operator()(V<float> x) const { return w(x, x - m) * lifted_exp<float>(x - m); }
    INLINE V<float> rise(V<float> x) const {                          // dp/dw
        constexpr float most = std::numeric_limits<float>::max();
        V<float> u = on(x) ? lifted_exp<float>(x - m) * unit : V<float>{};
        return u > most ? splat(most) : u;
    }
    INLINE void coefficients(V<float> x, V<float> p, V<float>& c, V<float>& term) const {
        if constexpr (constant) c = p, term = V<float>{};
        else {
            V<float> u = rise(x);
            c = p + u, term = w.term(u, x - m);
        }
    }
};

// ([z - tau]+)^q; there the coefficient is p^(1 - 1/q), and the mean is that under the coefficients.
template <int q> struct Projected {
    static constexpr bool constant = true;
    float m, tau;
    INLINE V<float> above(V<float> x) const { return larger((x - m) * (1.f / q) - tau, V<float>{}); }
    INLINE I<float> on(V<float> x) const { return above(x) > 0; }
    INLINE V<float> operator()(V<float> x) const { return q == 1 ? above(x) : above(x) * above(x); }
    INLINE void coefficients(V<float> x, V<float>, V<float>& c, V<float>& term) const {
        c = q == 1 ? (on(x) ? splat(1.f) : V<float>{}) : above(x), term = V<float>{};
    }
};

// Calls f with the mass function of a row.
template <class Op, class F> INLINE void with_mass(double value, const State& s, F f) {
    if constexpr (Op::power > 0) f(Projected<Op::power>{float(s.m), float(s.lo)});
    else Op::template with_weights<float>(value, s, [&](auto w) {
        float unit = 0;
        if constexpr (!w.constant) unit = float(std::min(w.slope / s.sum, double(std::numeric_limits<float>::max())));
        f(Exponential<decltype(w)>{w, float(s.m), unit});
    });
}

// Weights that know where the entries are to which their threshold passes its gradient.
template <class W> INLINE W found(W w, const float* x, long n) {
    I<float> place = iota<float>();
    for (long i = 0; i < n; i += lanes<float>, place += int32_t(lanes<float>)) w.find(at(x + i), place);
    return w;
}

// How many weights are not zero.
template <class Op> long count_on(const float* x, long n, double value, const State& s) {
    if (is_nan(s)) return n;
    if (is_empty(s)) return 0;
    long count = 0;
    with_mass<Op>(value, s, [&](auto mass) {
        I<float> on{};
        for (long i = 0; i < n; i += lanes<float>) on -= mass.on(at(x + i));
        count = fold(on, plus);
    });
    return count;
}

// v / total; a corrected product is as good as a division: a single entry gets exactly 1.
struct Quotient {
    float total, inverse;
    explicit Quotient(double sum) : total(sum), inverse(1 / total) {}
    INLINE V<float> operator()(V<float> v) const {
        V<float> q = v * inverse;
        return q + (v - q * total) * inverse;
    }
};

// From scores to weights p, in place; the projections sum to one already.
template <class Op, class M> INLINE void weigh(M mass, State& s, float* x, long n) {
    Sum<float> sum;
    for (long i = 0; i < n; i += lanes<float>) {
        V<float> v = mass(at(x + i));
        put(x + i, v), sum.add(v, i);
    }
    if (Op::power > 0) return;
    s.sum = sum.get();
    Quotient quotient(s.sum);
    for (long i = 0; i < n; i += lanes<float>) put(x + i, quotient(at(x + i)));
}

// The same again, with the sum that is known, and the coefficients of the gradient; p may be x.
template <class Op, class M>
INLINE void weigh_again(M mass, const State& s, const float* x, long n, float* p, float* c, float* term) {
    Quotient quotient(s.sum);
    for (long i = 0; i < n; i += lanes<float>) {
        V<float> v = at(x + i), w = mass(v), ci, ti;
        if (Op::power == 0) w = quotient(w);
        mass.coefficients(v, w, ci, ti);
        put(p + i, w), put(c + i, ci), put(term + i, ti);
    }
}

}  // namespace
