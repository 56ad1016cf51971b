// The weights w of p = w e^(x - m) / sum, m = max(x): what tells softmax, t-softmax and r-softmax apart.
//
// Each gives, for a vector of scores x with d = x - m: where w is not zero (on), and w itself.  Weights may carry any
// common factor: a power of two near 1 / span keeps them in range and costs no rounding.  Those with a threshold also
// say where its gradient goes.
#pragma once

#include "call.h"
#include "exponential.h"

namespace {

template <class T> T scale(T span) {
    constexpr int mantissa = Exp<T>::mantissa, bias = std::numeric_limits<T>::max_exponent - 1;
    return number<T>(std::max<Int<T>>(1, 2 * bias - Int<T>(bits(span) >> mantissa)) << mantissa);
}

template <class T> constexpr T half_ulp = std::numeric_limits<T>::epsilon() / 2;   // of 1: the least gap between numbers near it

INLINE int exponent(double v) { return int(bits(v) >> 52 & 2047) - 1023; }   // of the power of two below it

// Whether p = w e^d / sum has all its digits wherever w is not zero, at most `span` below the maximum, and p / w is no
// larger than numbers can be.  `least` is the smallest such weight; powers of two are near enough.
template <class T> bool tame(double least, double span, double slope, double sum) {
    double depth = span * 1.45 - exponent(least) + exponent(sum / Exp<T>::lifted_one);
    return depth < 100 && slope > 0x1p-60 && slope < 0x1p60;
}

template <class S> INLINE void add(S* dx, long i, double a) {
    if constexpr (std::is_same_v<S, Compute<S>>) dx[i] += S(a);
    else store(dx + i, load(dx + i, 1) + Compute<S>(a), 1);
}

// Softmax: every kept entry weighs the same.
template <class T> struct Dense {
    static constexpr bool constant = true;
    INLINE I<T> on(V<T> x, V<T>) const { return x > -inf<T>; }
    INLINE V<T> operator()(V<T>, V<T>) const { return splat<T>(1); }
};

// The limit of a vanishing span: the maximum alone, shared by ties.
template <class T> struct Peak {
    static constexpr bool constant = true;
    INLINE I<T> on(V<T>, V<T> d) const { return d == 0; }
    INLINE V<T> operator()(V<T> x, V<T> d) const { return on(x, d) ? splat<T>(1) : V<T>{}; }
};

// [x - m + t]+, t > 0: d + t > 0 exactly where d > -t.
template <class T> struct Hinge {
    static constexpr bool constant = false;
    T m, t, slope;
    I<T> top{}, tops{};                                               // where the maximum is, and how often
    Hinge(T m, T t) : m(m), t(t), slope(scale(t)) {}
    INLINE I<T> on(V<T>, V<T> d) const { return d > -t; }
    INLINE V<T> operator()(V<T> x, V<T> d) const { return on(x, d) ? (d + t) * slope : V<T>{}; }

    bool is_tame(double sum) const { return tame<T>(t * slope * half_ulp<T>, t, slope, sum); }
    INLINE V<T> rise(V<T> x, V<T> d, V<T> p) const { return p / (on(x, d) ? d + t : splat<T>(1)); }

    // dL/dt = sum u h, u = dp/dw and h = g - sum p g.  As sum p h = 0 it is also the sum of this times h, over -t, in
    // which a lone maximum counts exactly nothing.
    INLINE V<T> term(V<T> u, V<T> d) const { return d > -t ? u * d : V<T>{}; }
    INLINE void find(V<T> x, I<T> place) { top = x == m ? place : top, tops -= x == m; }

    // The threshold m - t passes its gradient to the maximum, in equal shares where there are several; pass(i, a) adds a
    // to the gradient in entry i.  Returns the gradient in the parameter.
    template <class X, class Pass> double pass_on(double total, const X& x, long n, const State&, bool, Pass pass) const {
        double dt = total / -t;
        long count = fold(tops, plus);
        if (count == 1) pass(fold(top, larger), -dt);
        else for (long i = 0; i < n; i += lanes<T>) {
            I<T> is_top = x(i) == m;
            for (long k = 0; k < std::min(n - i, lanes<T>); k++) if (is_top[k]) pass(i + k, -dt / count);
        }
        return dt;
    }
};

// [x - theta]+, theta = hi - (1 - f)(hi - lo) the quantile: written as (x - hi) + (hi - theta), which are both >= 0,
// and not both 0, where x > lo.
template <class T> struct Quantile {
    static constexpr bool constant = false;
    T m, lo, hi, slope, rest;
    I<T> lower{}, upper{};                                            // where lo and hi are
    Quantile(T m, T lo, T hi, double f)
        : m(m), lo(lo), hi(hi), slope(scale<T>(m - lo)), rest(T((1 - f) * (double(hi * slope) - double(lo * slope)))) {}
    INLINE I<T> on(V<T> x, V<T>) const { return x > lo; }
    INLINE V<T> operator()(V<T> x, V<T> d) const { return on(x, d) ? (x * slope - hi * slope) + rest : V<T>{}; }

    bool is_tame(double sum) const {
        return tame<T>(hi > lo ? rest : std::abs(hi * slope) * half_ulp<T>, double(m) - lo, slope, sum);
    }
    INLINE V<T> rise(V<T> x, V<T> d, V<T> p) const { return p / (on(x, d) ? (x - hi) + rest / slope : splat<T>(1)); }

    INLINE V<T> term(V<T> u, V<T>) const { return u; }                // -dL/dtheta = sum u h
    INLINE void find(V<T> x, I<T> place) { lower = x == lo ? place : lower, upper = x == hi ? place : upper; }

    template <class X, class Pass> double pass_on(double a, const X&, long, const State& s, bool detach, Pass pass) const {
        if (detach) return 0;
        pass(fold(lower, larger), -a * (1 - s.f));
        pass(fold(upper, larger), -a * s.f);
        return -a * (s.kept - 1) * (s.hi - s.lo);
    }
};

}  // namespace
