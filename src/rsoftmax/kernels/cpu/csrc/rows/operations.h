// The operations, one struct for each: whether its parameter is valid, what it needs to know about a row, its
// probabilities and its gradient.  Must match kernels/reference.py, which defines them, and
// attention/row_functions.cpp.  To add one, write its struct and name it in call.h, functions.h and row_functions.cpp.
#pragma once

#include "../simd/quotient.h"
#include "../simd/sums.h"
#include "entmax.h"
#include "quantile_hint.h"
#include "row.h"
#include "simplex.h"
#include "weights.h"

namespace rsoftmax {
namespace {

// --------------------------------------------------------------------------- p = w e^(x - m) / sum, for any weights w

// Fills e with w e^(x - m); returns their sum.
template <class T, class W> INLINE double masses(const Row<T>& x, T m, W w, T* e) {
    Sum<T> sum;
    each_vector<T>(x.n, [&](long i, long left) {
        Vec<T> a = x(i, left), d = a - m, v = w(a, d) * scaled_exp<T>(d);
        store(e + i, v, left);
        sum.add(v, i);
    });
    return sum.get();
}

// The same for constant weights, which several operations share: compiled once.
template <class T, class W>
NOINLINE double constant_masses(const Row<T>& x, T m, W w, T* e) { return masses(x, m, w, e); }

template <class T> INLINE void normalise(T* p, long n, T sum) {
    Quotient<T> quotient(sum);
    each_vector<T>(n, [&](long i, long left) { store(p + i, quotient(load(p + i, left)), left); });
}

template <class T> INLINE T dot(const T* p, const T* g, long n) {
    Sum<T> sum;
    each_vector<T>(n, [&](long i, long left) { sum.add(load(p + i, left) * load(g + i, left), i); });
    return sum.get();
}

// dx = p h, h = g - sum p g
template <class T> NOINLINE void softmax_gradient(const T* p, const T* g, T* dx, long n, T mean) {
    each_vector<T>(n, [&](long i, long left) { store(dx + i, load(p + i, left) * (load(g + i, left) - mean), left); });
}

// dx = (p + u) h, u = dp/dw where w rises with x, and else 0.  rise gives u; returns the sum of w.term(u) h.
template <class T, class W, class Rise>
INLINE double rising_gradient(const Row<T>& x, const RowState& s, W& w, const T* p, const T* g, T* dx, T mean,
    Rise rise) {
    T m = s.m;
    Sum<T> total;
    IntVec<T> index = iota<T>();
    each_vector<T>(x.n, [&](long i, long left) {
        Vec<T> v = x(i, left), d = v - m, q = load(p + i, left), h = load(g + i, left) - mean, u = rise(v, d, q);
        total.add(w.term(u, d) * h, i);
        w.find(v, index);
        index += Int<T>(lanes<T>);
        store(dx + i, (q + u) * h, left);
    });
    return total.get();
}

// The same, and the gradient that the threshold propagates.  u is p / w, and e^d / sum where p was rounded to half
// precision or may have lost digits to underflow.  Returns the gradient in the parameter.
template <class T, class W>
INLINE double weighted_gradient(const RowsCall& call, const Row<T>& x, long row, W w, const T* p, const T* g, T* dx,
    T mean) {
    const RowState& s = call.states[row];
    double total;
    if (!call.is_half() && w.division_is_accurate(s.sum))
        total = rising_gradient(x, s, w, p, g, dx, mean, [&](Vec<T> v, Vec<T> d, Vec<T> q) {
            return w.quotient(v, d, q);
        });
    else {
        // Finite: 0 times it is 0, in a denormal span too.
        constexpr T largest = std::numeric_limits<T>::max();
        T unit = T(std::min<double>(w.slope / s.sum, largest));
        total = rising_gradient(x, s, w, p, g, dx, mean, [&](Vec<T> v, Vec<T> d, Vec<T>) {
            return w.rises(v, d) ? minimum(scaled_exp<T>(d) * unit, splat(largest)) : Vec<T>{};
        });
    }
    auto pass = [dx](long j, double a) { dx[j] += T(a); };
    return w.propagate_threshold(total, x, x.n, call.parameter(row), s, call.detach, pass);
}

// Op::with_weights calls a function with the weights that the parameter asks for.
template <class Op> struct Weighted {
    // That of a projection; 0: none.
    static constexpr int power = 0;
    // Whether it needs a copy of the row, to select from.
    static constexpr bool selects = false;
    // Whether a NaN or +inf reaches all of its row by itself.
    static constexpr bool propagates_nan = true;

    template <class T> static void map(const Row<T>& x, const Parameter& parameter, RowState& s, T* p, T*) {
        Op::template with_weights<T>(parameter, s, [&](auto w) {
            if constexpr (w.constant) s.sum = constant_masses<T>(x, T(s.m), w, p);
            else s.sum = masses<T>(x, T(s.m), w, p);
        });
        normalise<T>(p, x.n, T(s.sum));
    }

    template <class T>
    static void gradient(const RowsCall& call, const Row<T>& x, long row, const T* p, const T* g, T* dx) {
        const RowState& s = call.states[row];
        T mean = dot(p, g, x.n);
        double dvalue = 0;
        auto constant = [&] { softmax_gradient(p, g, dx, x.n, mean); };
        if (s.unmasked == 0) constant();
        else Op::template with_weights<T>(call.parameter(row), s, [&](auto w) {
            if constexpr (w.constant) constant();
            else dvalue = weighted_gradient<T>(call, x, row, w, p, g, dx, mean);
        });
        if (call.dvalues) call.dvalues[row] = dvalue;
    }
};

struct Softmax : Weighted<Softmax> {
    static bool valid(const Parameter&) { return true; }
    template <class T, class F>
    INLINE static void with_weights(const Parameter&, const RowState&, F f) { f(Dense<T>()); }
};

struct TSoftmax : Weighted<TSoftmax> {
    static bool valid(const Parameter& parameter) { return parameter.value >= 0; }
    template <class T, class F> INLINE static void with_weights(const Parameter& parameter, const RowState& s, F f) {
        T t = T(parameter.value);
        if (t == inf<T>) f(Dense<T>());
        else if (t == 0) f(Truncated<T>::to_maximum());
        else if (parameter.edge == 0) f(Truncated<T>::within(t));
        else f(Hinge<T>(s.m, t, parameter.edge));
    }
};

// r-softmax, and k-softmax, which differs only in the position of the threshold.
struct RSoftmax : Weighted<RSoftmax> {
    static constexpr bool selects = true;
    static bool valid(const Parameter& parameter) {
        return parameter.is_count ? parameter.value >= 1 : parameter.value >= 0 && parameter.value <= 1;
    }
    template <class T, class F> INLINE static void with_weights(const Parameter& parameter, const RowState& s, F f) {
        if (QuantilePosition(parameter, s.unmasked).is_dense) f(Dense<T>());
        else if (s.lo == s.m) f(Truncated<T>::to_maximum());
        else if (parameter.edge == 0) f(Truncated<T>::above(s.lo));
        else f(Quantile<T>(s.m, s.lo, s.hi, s.f, parameter.edge));
    }
    // Finds the quantile of n logits: select(j) gives the entries of rank j and j + 1 among all, masked ones included.
    template <class Select>
    INLINE static void find_quantile(long n, const Parameter& parameter, RowState& s, Select select) {
        QuantilePosition at(parameter, s.unmasked);
        if (at.is_dense) return;
        double j = std::floor(at.position);
        auto quantile = select(n - long(s.unmasked) + long(j));
        s.lo = quantile.lo;
        s.hi = quantile.hi;
        s.f = at.position - j;
    }
};

// --------------------------------------------------------------------------------------------- p = ([z - tau]+)^power

// dx = v (g - mean of g under v), where v = p^(1 - 1/q) is how fast p = ([z - tau]+)^q falls as the threshold rises.
// Returns that mean.
template <class T, class Root> T threshold_gradient(const T* p, const T* g, T* dx, long n, Root root) {
    Sum<T> product, norm;
    for (long i = 0; i < n; i += lanes<T>) {
        Vec<T> v = root(load(p + i, n - i));
        norm.add(v, i);
        product.add(v * load(g + i, n - i), i);
    }
    double total = norm.get();
    T mean = total == 0 ? 0 : product.get() / total;
    for (long i = 0; i < n; i += lanes<T>)
        store(dx + i, root(load(p + i, n - i)) * (load(g + i, n - i) - mean), n - i);
    return mean;
}

// p = ([z - tau]+)^q, z = (x - m) / q, tau such that the row sums to one.
template <int q> struct Projection {
    static constexpr int power = q;
    static constexpr bool selects = false;
    static constexpr bool propagates_nan = false;
    static bool valid(const Parameter&) { return true; }

    template <class T> NOINLINE static void map(const Row<T>& x, const Parameter&, RowState& s, T* p, T* scratch) {
        T m = s.m, tau = simplex<q>(x, x.n, m, scratch);
        each_vector<T>(x.n, [&](long i, long left) {
            Vec<T> a = maximum((x(i, left) - m) * T(1. / q) - tau, Vec<T>{});
            store(p + i, q == 1 ? a : a * a, left);
        });
    }

    // The support of sparsemax, the square root of entmax15.
    template <class T>
    INLINE static Vec<T> root(Vec<T> p) { return q == 1 ? p > 0 ? splat<T>(1) : p : square_root<T>(p); }

    template <class T> static void gradient(const RowsCall&, const Row<T>& x, long, const T* p, const T* g, T* dx) {
        threshold_gradient<T>(p, g, dx, x.n, root<T>);
    }
};
struct Sparsemax : Projection<1> {};
struct Entmax15 : Projection<2> {};

// p = ([b x - tau]+)^(1/b), b = alpha - 1; softmax, sparsemax and entmax15 are alpha = 1, 2 and 1.5.
struct Entmax {
    static constexpr bool selects = false;
    static constexpr bool propagates_nan = false;
    static bool valid(const Parameter& parameter) { return parameter.value >= 1 && parameter.value <= 4; }

    template <class T> static void map(const Row<T>& x, const Parameter& parameter, RowState& s, T* p, T* scratch) {
        double alpha = parameter.value;
        if (alpha == 1) return Softmax::map(x, parameter, s, p, scratch);
        if (alpha == 1.5) return Entmax15::map(x, parameter, s, p, scratch);
        if (alpha == 2) return Sparsemax::map(x, parameter, s, p, scratch);
        T m = s.m;
        Tsallis<T> row = tsallis(x, x.n, m, alpha - 1, scratch);
        for (long i = 0; i < x.n; i += lanes<T>) {
            Vec<T> d = x(i) - m;
            store(p + i, row(d, row.base(d)), x.n - i);
        }
    }

    template <class T>
    static void gradient(const RowsCall& call, const Row<T>& x, long row, const T* p, const T* g, T* dx) {
        double alpha = call.parameter(row).value;
        if (alpha == 1) both_gradients(call, x, row, p, g, dx, [](Vec<T> v) { return v; });
        else if (alpha == 1.5) both_gradients(call, x, row, p, g, dx, Entmax15::root<T>);
        else if (alpha == 2) both_gradients(call, x, row, p, g, dx, Sparsemax::root<T>);
        else both_gradients(call, x, row, p, g, dx, [b = T(alpha - 1)](Vec<T> v) { return power<T>(v, 1 - b); });
    }

    // The gradients in x and alpha; p falls by root(p) as the threshold rises.
    template <class T, class Root>
    static void both_gradients(const RowsCall& call, const Row<T>& x, long row, const T* p, const T* g, T* dx,
        Root root) {
        T mean = threshold_gradient<T>(p, g, dx, x.n, root), b = T(call.parameter(row).value - 1);
        if (!call.dvalues) return;
        Sum<T> slope;
        for (long i = 0; i < x.n; i += lanes<T>) {
            Vec<T> v = load(p + i, x.n - i);
            slope.add(alpha_gradient<T>(v, root(v), b) * (load(g + i, x.n - i) - mean), i);
        }
        call.dvalues[row] = slope.get();
    }
};

// -------------------------------------------------------------------------------------------------- one row of a call

// Scratch for one row: three rows, with a vector behind each.
template <class T> INLINE long scratch_entries(long n) { return 3 * padded<T>(n) + 4 * lanes<T>; }

// What forward looks at first.
template <class T> struct Extent {
    // The maximum.
    T m;
    // Whether the row is fully masked, and whether some entry is NaN or +inf.
    bool is_empty, has_bad;
    // The number of unmasked entries, and their moments, if the operation selects.
    long unmasked;
    Moments<T> moments;
};
template <class T, bool selects, bool propagates_nan> INLINE Extent<T> extent_of(const Row<T>& x, T* copy) {
    Vec<T> top = splat(-inf<T>), sum{}, squares{};
    IntVec<T> masked{}, bad{};
    each_vector<T>(x.n, [&](long i, long left) {
        Vec<T> a = x(i, left);
        top = maximum(top, a);
        if (selects) {
            store(copy + i, a);
            IntVec<T> is_masked = a == -inf<T>;
            Vec<T> inside = is_masked ? Vec<T>{} : a;
            masked -= is_masked;
            sum += inside;
            squares += inside * inside;
        }
        if (!propagates_nan) bad |= ~(a < inf<T>);
    });
    T m = reduce(top, maximum);
    // Empty, or nothing but NaN.
    if (m == -inf<T>) for (long i = 0; i < x.n; i += lanes<T>) bad |= ~(x(i) < inf<T>);
    Extent<T> extent{m, m == -inf<T>, reduce(bad, plus) != 0, padded<T>(x.n) - long(reduce(masked, plus)), {}};
    if (selects) extent.moments = {sum, squares, extent.unmasked};
    return extent;
}

// The scratch of an operation that selects begins with a copy of the row, followed by -inf to the end of a vector.
template <class Op, class T> void forward(const RowsCall& call, long row, QuantileHint& hint, T* scratch) {
    Row<T> x(call, row);
    T* p = (T*)call.p + row * call.n;
    Parameter parameter = call.parameter(row);
    Extent<T> extent = extent_of<T, Op::selects, Op::propagates_nan>(x, scratch);
    RowState s{extent.m, 0, 0, 0, 0, double(extent.unmasked)};
    bool is_nan = !Op::valid(parameter) || extent.has_bad;
    if (is_nan || extent.is_empty) {
        std::fill(p, p + call.n, is_nan ? T(NAN) : T(0));
        s.unmasked = 0;
    } else {
        long n = call.n, size = padded<T>(n) + lanes<T>;
        if constexpr (Op::selects) Op::find_quantile(n, parameter, s, [&](long j) {
            return select_near(hint, scratch, n, j, extent.m, extent.moments, scratch + size, scratch + 2 * size);
        });
        Op::map(x, parameter, s, p, scratch);
    }
    if (call.states) call.states[row] = s;
}

template <class Op, class T> void backward(const RowsCall& call, long row) {
    long n = call.n;
    auto p = (const T*)call.p + row * n, g = (const T*)call.g + row * n;
    Op::gradient(call, Row<T>(call, row), row, p, g, (T*)call.dx + row * n);
}

}  // namespace
}  // namespace rsoftmax
