// The operations, one struct for each: whether its parameter is valid, what it needs to know of a row, its probabilities
// and its gradient.  `Operations` lists them; to add one, write its struct and name it there.
#pragma once

#include "call.h"
#include "entmax.h"
#include "selection.h"
#include "simplex.h"
#include "sums.h"
#include "weights.h"

namespace {

// p = w e^(x - m) / sum.  Op::with_weights calls a function with the weights that the parameter asks for.
template <class Op> struct Weighted {
    static constexpr int power = 0;                                   // of a projection
    static constexpr bool attends = true;                             // attention.cpp knows it
    static constexpr bool keeps_state = true;
    static constexpr bool selects = false;                            // needs a copy of the row, to select from
    static constexpr bool spreads_nan = true;                         // a bad entry reaches all of its row by itself

    template <class S, class T = Compute<S>>
    static void map(const Row<S>& x, double value, State& s, S* p, T* scratch) {
        T m = s.m, *e = std::is_same_v<S, T> ? (T*)p : scratch;       // e: where unnormalised values go
        Op::template with_weights<T>(value, s, [&](auto w) {
            Sum<T> sum;
            each_vector<T>(x.n, [&](long i, long left) {
                V<T> a = x(i, left), d = a - m, v = w(a, d) * lifted_exp<T>(d);
                store(e + i, v, left);
                sum.add(v, i);
            });
            s.sum = sum.get();
        });
        T total = T(s.sum), inverse = 1 / total;                      // a corrected product is as good as a
        each_vector<T>(x.n, [&](long i, long left) {                  // division: a single entry gets exactly 1
            V<T> v = load(e + i, left), q = v * inverse;
            store(p + i, q + (v - q * total) * inverse, left);
        });
    }

    // dx = (p + u) h, h = g - sum p g and u = dp/dw, and what the threshold passes on.  u is p / w, and e^d / sum where p was
    // rounded to half precision or may have lost digits to underflow.
    template <class S, class T = Compute<S>>
    static void gradient(const Call& call, const Row<S>& x, long row, const S* p, const S* g, S* dx) {
        const State& s = call.states[row];
        long n = x.n;
        double* dvalue = call.dvalues ? call.dvalues + row : nullptr;
        Sum<T> dot;
        each_vector<T>(n, [&](long i, long left) { dot.add(load(p + i, left) * load(g + i, left), i); });
        T mean = dot.get();
        auto softmax = [&] {                                          // constant weights: u = 0
            each_vector<T>(n, [&](long i, long left) {
                store(dx + i, load(p + i, left) * (load(g + i, left) - mean), left);
            });
            if (dvalue) *dvalue = 0;
        };
        if (s.kept == 0) return softmax();
        Op::template with_weights<T>(call.value(row), s, [&](auto w) {
            if constexpr (w.constant) return softmax();
            else {
                T m = s.m;
                Sum<T> total;
                auto each = [&](auto rise) {
                    I<T> place = iota<T>();
                    each_vector<T>(n, [&](long i, long left) {
                        V<T> v = x(i, left), d = v - m, q = load(p + i, left), h = load(g + i, left) - mean;
                        V<T> u = rise(v, d, q);
                        total.add(w.term(u, d) * h, i);
                        w.find(v, place), place += Int<T>(lanes<T>);
                        store(dx + i, (q + u) * h, left);
                    });
                };
                if (std::is_same_v<S, T> && w.is_tame(s.sum)) each([&](V<T> v, V<T> d, V<T> q) { return w.rise(v, d, q); });
                else {
                    T most = std::numeric_limits<T>::max(), unit = T(std::min<double>(w.slope / s.sum, most));
                    each([&](V<T> v, V<T> d, V<T>) {                  // most: 0 times it is 0, in a denormal span too
                        return w.on(v, d) ? smaller(lifted_exp<T>(d) * unit, splat(most)) : V<T>{};
                    });
                }
                auto pass = [dx](long j, double a) { add(dx, j, a); };
                double slope = w.pass_on(total.get(), x, n, s, call.detach, pass);
                if (dvalue) *dvalue = slope;
            }
        });
    }
};

struct Softmax : Weighted<Softmax> {
    static constexpr const char* name = "softmax";
    static bool valid(double) { return true; }
    template <class T, class F> INLINE static void with_weights(double, const State&, F f) { f(Dense<T>()); }
};

struct TSoftmax : Weighted<TSoftmax> {
    static constexpr const char* name = "t_softmax";
    static bool valid(double t) { return t >= 0; }
    template <class T, class F> INLINE static void with_weights(double t, const State& s, F f) {
        if (T(t) == inf<T>) f(Dense<T>());
        else if (T(t) > 0) f(Hinge<T>(s.m, t));
        else f(Peak<T>());
    }
};

struct RSoftmax : Weighted<RSoftmax> {
    static constexpr const char* name = "r_softmax";
    static constexpr bool selects = true;
    static bool valid(double r) { return r >= 0 && r <= 1; }
    template <class T, class F> INLINE static void with_weights(double r, const State& s, F f) {
        if (r == 0) f(Dense<T>());
        else if (s.lo == s.m) f(Peak<T>());
        else f(Quantile<T>(s.m, s.lo, s.hi, s.f));
    }
    // The quantile of n scores, r > 0: select(j) gives the entries of rank j and j + 1 among all, removed ones included.
    template <class Select> INLINE static void find_quantile(long n, double r, State& s, Select select) {
        double rank = r * (s.kept - 1), j = std::floor(rank);
        auto found = select(n - long(s.kept) + long(j));
        s.lo = found.lo, s.hi = found.hi, s.f = rank - j;
    }
    // copy: the row, followed by -inf to the end of a vector, and room for two rows more.
    template <class S, class T> static void map(const Row<S>& x, double r, State& s, S* p, T* copy) {
        long n = x.n, row = padded<T>(n) + lanes<T>;
        if (r > 0) find_quantile(n, r, s, [&](long j) { return select<T>(copy, n, j, T(s.m), copy + row, copy + 2 * row); });
        Weighted::map(x, r, s, p, copy);
    }
};

// dx = v (g - mean of g under v), where v = p^(1 - 1/q) is how fast p = ([z - tau]+)^q falls as the threshold rises.
// Returns that mean.
template <class S, class Root, class T = Compute<S>>
T through_threshold(const S* p, const S* g, S* dx, long n, Root root) {
    Sum<T> dot, norm;
    for (long i = 0; i < n; i += lanes<T>) {
        V<T> v = root(load(p + i, n - i));
        norm.add(v, i);
        dot.add(v * load(g + i, n - i), i);
    }
    double total = norm.get();
    T mean = total == 0 ? 0 : dot.get() / total;
    for (long i = 0; i < n; i += lanes<T>)
        store(dx + i, root(load(p + i, n - i)) * (load(g + i, n - i) - mean), n - i);
    return mean;
}

// p = ([z - tau]+)^q, z = (x - m) / q, tau such that the row sums to one.
template <int q> struct Projection {
    static constexpr int power = q;
    static constexpr bool attends = true;
    static constexpr bool keeps_state = false;
    static constexpr bool selects = false;
    static constexpr bool spreads_nan = false;
    static bool valid(double) { return true; }

    template <class S, class T> static void map(const Row<S>& x, double, State& s, S* p, T* scratch) {
        T m = s.m, tau = simplex<q>(x, x.n, m, scratch);
        each_vector<T>(x.n, [&](long i, long left) {
            V<T> a = larger((x(i, left) - m) * T(1. / q) - tau, V<T>{});
            store(p + i, q == 1 ? a : a * a, left);
        });
    }

    // The support of sparsemax, the root of entmax15.
    template <class T> INLINE static V<T> root(V<T> p) { return q == 1 ? p > 0 ? splat<T>(1) : p : roots<T>(p); }

    template <class S> static void gradient(const Call&, const Row<S>& x, long, const S* p, const S* g, S* dx) {
        through_threshold(p, g, dx, x.n, root<Compute<S>>);
    }
};
struct Sparsemax : Projection<1> { static constexpr const char* name = "sparsemax"; };
struct Entmax15 : Projection<2> { static constexpr const char* name = "entmax15"; };

// p = ([b x - tau]+)^(1/b), b = alpha - 1; the three above are alpha = 1, 2 and 1.5.
struct Entmax {
    static constexpr const char* name = "entmax";
    static constexpr bool attends = false;
    static constexpr bool keeps_state = false;
    static constexpr bool selects = false;
    static constexpr bool spreads_nan = false;
    static bool valid(double alpha) { return alpha >= 1 && alpha <= 4; }

    template <class S, class T> static void map(const Row<S>& x, double alpha, State& s, S* p, T* scratch) {
        if (alpha == 1) return Softmax::map(x, alpha, s, p, scratch);
        if (alpha == 1.5) return Entmax15::map(x, alpha, s, p, scratch);
        if (alpha == 2) return Sparsemax::map(x, alpha, s, p, scratch);
        T m = s.m;
        Tsallis<T> row = tsallis(x, x.n, m, alpha - 1, scratch);
        for (long i = 0; i < x.n; i += lanes<T>) {
            V<T> d = x(i) - m;
            store(p + i, row(d, row.base(d)), x.n - i);
        }
    }

    template <class S, class T = Compute<S>>
    static void gradient(const Call& call, const Row<S>& x, long row, const S* p, const S* g, S* dx) {
        double alpha = call.value(row);
        if (alpha == 1) slopes(call, x, row, p, g, dx, [](V<T> v) { return v; });
        else if (alpha == 1.5) slopes(call, x, row, p, g, dx, Entmax15::root<T>);
        else if (alpha == 2) slopes(call, x, row, p, g, dx, Sparsemax::root<T>);
        else slopes(call, x, row, p, g, dx, [b = T(alpha - 1)](V<T> v) { return power<T>(v, 1 - b); });
    }

    // The gradients in x and alpha; a rise of the threshold makes p fall by root(p).
    template <class S, class Root, class T = Compute<S>>
    static void slopes(const Call& call, const Row<S>& x, long row, const S* p, const S* g, S* dx, Root root) {
        T mean = through_threshold(p, g, dx, x.n, root), b = T(call.value(row) - 1);
        if (!call.dvalues) return;
        Sum<T> slope;
        for (long i = 0; i < x.n; i += lanes<T>) {
            V<T> v = load(p + i, x.n - i);
            slope.add(by_alpha<T>(v, root(v), b) * (load(g + i, x.n - i) - mean), i);
        }
        call.dvalues[row] = slope.get();
    }
};

template <class...> struct List {};
using Operations = List<Softmax, TSoftmax, RSoftmax, Sparsemax, Entmax15, Entmax>;

// -------------------------------------------------------------------------------------------- one row of a call

// Scratch for one row: three rows of it, with a vector of room behind each.
template <class T> INLINE size_t scratch_size(long n) { return (3 * padded<T>(n) + 4 * lanes<T>) * sizeof(T); }

template <class Op, class S, class T = Compute<S>> void forward(const Call& call, long row, T* scratch) {
    Row<S> x(call, row);
    long n = call.n;
    auto p = (S*)call.p + row * n;
    double value = call.value(row);

    V<T> top = splat(-inf<T>);
    I<T> removed{}, bad{};
    each_vector<T>(n, [&](long i, long left) {
        V<T> a = x(i, left);
        top = larger(top, a);
        if (Op::selects) put(scratch + i, a), removed -= a == -inf<T>;
        if (!Op::spreads_nan) bad |= ~(a < inf<T>);
    });
    T m = fold(top, larger);
    State s{m, 0, 0, 0, 0, double(padded<T>(n) - fold(removed, plus))};
    bool valid = Op::valid(value), empty = m == -inf<T>;              // empty: nothing is kept, or nothing but NaN
    if (empty) for (long i = 0; i < n; i += lanes<T>) bad |= ~(x(i) < inf<T>);
    bool nan = !valid || fold(bad, plus) != 0;
    if (nan || empty) {
        for (long i = 0; i < n; i += lanes<T>) store(p + i, splat(nan ? T(NAN) : T(0)), n - i);
        s.kept = 0;
    } else Op::map(x, value, s, p, scratch);
    if (call.states) call.states[row] = s;
}

template <class Op, class S> void backward(const Call& call, long row) {
    long n = call.n;
    auto p = (const S*)call.p + row * n, g = (const S*)call.g + row * n;
    Op::gradient(call, Row<S>(call, row), row, p, g, (S*)call.dx + row * n);
}

}  // namespace
