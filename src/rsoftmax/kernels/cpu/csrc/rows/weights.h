// The weights w of p = w e^(x - m) / sum, m = max(x): what distinguishes softmax from the mappings with a threshold,
// w = min(x - theta, edge)+.
//
// Each type gives, for a vector of logits x with d = x - m: where w is not zero (on), and w itself.  Weights may carry any
// common factor: a power of two near 1 / span keeps them in range and costs no rounding.  Those with a threshold also
// pass its gradient on.
#pragma once

#include "../simd/exponential.h"
#include "row.h"

namespace rsoftmax {
namespace {

template <class T> T scale(T span) {
    constexpr int mantissa = Exp<T>::mantissa, bias = std::numeric_limits<T>::max_exponent - 1;
    return from_bits<T>(std::max<Int<T>>(1, 2 * bias - Int<T>(bits(span) >> mantissa)) << mantissa);
}

// The largest weight times the slope: none if the edge does not lie within the span.  It never underflows.
template <class T> T cap_of(double edge, double span, T slope) {
    return edge < span ? std::max(T(edge) * slope, std::numeric_limits<T>::min()) : inf<T>;
}

template <class T> constexpr T half_ulp = std::numeric_limits<T>::epsilon() / 2;   // of 1: the least gap between numbers near it

INLINE int exponent(double v) { return int(bits(v) >> 52 & 2047) - 1023; }   // of the power of two below it

// Whether p = w e^d / sum has all its digits wherever w is not zero, at most `span` below the maximum, and p / w does not
// overflow.  `least` is the smallest such weight; powers of two are near enough.
template <class T> bool division_is_accurate(double least, double span, double slope, double sum) {
    double depth = span * 1.45 - exponent(least) + exponent(sum / Exp<T>::lifted_one);
    return depth < 100 && slope > 0x1p-60 && slope < 0x1p60;
}

// Softmax: every kept entry weighs the same.
template <class T> struct Dense {
    static constexpr bool constant = true;
    INLINE I<T> on(V<T> x, V<T>) const { return x > -inf<T>; }
    INLINE V<T> operator()(V<T>, V<T>) const { return splat<T>(1); }
};

// Softmax on the support: the limit of a vanishing edge.  An entry is on the support if x > lo and d >= least.
template <class T> struct Truncated {
    static constexpr bool constant = true;
    T lo, least;
    INLINE I<T> on(V<T> x, V<T> d) const { return (x > lo) & (d >= least); }
    INLINE V<T> operator()(V<T> x, V<T> d) const { return on(x, d) ? splat<T>(1) : V<T>{}; }

    static Truncated to_maximum() { return {-inf<T>, 0}; }            // the limit of a vanishing span; ties share
    static Truncated within(T t) { return {-inf<T>, from_bits<T>(bits(-t) - 1)}; }   // d > -t, t > 0
    static Truncated above(T lo) { return {lo, -inf<T>}; }
};

// min(x - m + t, edge)+, t > 0: d + t > 0 exactly where d > -t.
template <class T> struct Hinge {
    static constexpr bool constant = false;
    T m, t, slope, cap;
    T by_d, by_one, divisor;                                          // see term
    I<T> top{}, tops{};                                               // the position of the maximum, and how often it occurs
    Hinge(T m, T t, double edge) : m(m), t(t), slope(scale(t)), cap(cap_of(edge, t, slope)) {
        bool is_capped = edge < t;
        by_d = is_capped ? 0 : 1;
        by_one = is_capped ? 1 : 0;
        divisor = is_capped ? 1 : -t;
    }
    INLINE I<T> on(V<T>, V<T> d) const { return d > -t; }
    INLINE I<T> rises(V<T> x, V<T> d) const { return on(x, d) & ((d + t) * slope < cap); }
    INLINE V<T> operator()(V<T> x, V<T> d) const { return on(x, d) ? minimum((d + t) * slope, splat(cap)) : V<T>{}; }

    bool division_is_accurate(double sum) const {
        return rsoftmax::division_is_accurate<T>(t * slope * half_ulp<T>, t, slope, sum);
    }
    INLINE V<T> quotient(V<T> x, V<T> d, V<T> p) const {              // p / w = dp/dw, 0 where w is constant
        return rises(x, d) ? p / (on(x, d) ? d + t : splat<T>(1)) : V<T>{};
    }

    // dL/dt = sum u h, u = dp/dw and h = g - sum p g.  Without an edge sum p h = 0 makes it also the sum of u d h, over
    // -t, to which a lone maximum contributes exactly nothing; with one the maximum does not rise anyway.
    INLINE V<T> term(V<T> u, V<T> d) const { return d > -t ? u * (d * by_d + by_one) : V<T>{}; }
    INLINE void find(V<T> x, I<T> index) {
        top = x == m ? index : top;
        tops -= x == m;
    }

    // The threshold m - t passes its gradient to the maximum, in equal shares to ties; pass(i, a) adds a to the gradient in
    // entry i.  Returns the gradient in the parameter.
    template <class X, class Pass>
    double pass_on(double total, const X& x, long n, const Parameter&, const RowState&, bool, Pass pass) const {
        double dt = total / divisor;
        long count = reduce(tops, plus);
        if (count == 1) pass(reduce(top, maximum), -dt);
        else for (long i = 0; i < n; i += lanes<T>) {
            I<T> is_top = x(i) == m;
            for (long k = 0; k < std::min(n - i, lanes<T>); k++) if (is_top[k]) pass(i + k, -dt / count);
        }
        return dt;
    }
};

// min(x - theta, edge)+, theta = hi - (1 - f)(hi - lo) the quantile.  x - theta is computed as (x - hi) + (hi - theta),
// which are both >= 0, and not both 0, where x > lo.
template <class T> struct Quantile {
    static constexpr bool constant = false;
    T m, lo, hi, slope, rest, cap;
    I<T> lower{}, upper{};                                            // the positions of lo and hi
    Quantile(T m, T lo, T hi, double f, double edge)
        : m(m), lo(lo), hi(hi), slope(scale<T>(m - lo)), rest(T((1 - f) * (double(hi * slope) - double(lo * slope)))),
          cap(cap_of(edge, double(m) - lo, slope)) {}
    INLINE V<T> uncapped(V<T> x) const { return (x * slope - hi * slope) + rest; }
    INLINE I<T> on(V<T> x, V<T>) const { return x > lo; }
    INLINE I<T> rises(V<T> x, V<T> d) const { return on(x, d) & (uncapped(x) < cap); }
    INLINE V<T> operator()(V<T> x, V<T> d) const { return on(x, d) ? minimum(uncapped(x), splat(cap)) : V<T>{}; }

    bool division_is_accurate(double sum) const {
        double least = hi > lo ? rest : std::abs(hi * slope) * half_ulp<T>;
        return rsoftmax::division_is_accurate<T>(least, double(m) - lo, slope, sum);
    }
    INLINE V<T> quotient(V<T> x, V<T> d, V<T> p) const {
        return rises(x, d) ? p / (on(x, d) ? (x - hi) + rest / slope : splat<T>(1)) : V<T>{};
    }

    INLINE V<T> term(V<T> u, V<T>) const { return u; }                // -dL/dtheta = sum u h
    INLINE void find(V<T> x, I<T> index) {
        lower = x == lo ? index : lower;
        upper = x == hi ? index : upper;
    }

    template <class X, class Pass>
    double pass_on(double a, const X&, long, const Parameter& by, const RowState& s, bool detach, Pass pass) const {
        if (detach) return 0;
        pass(reduce(lower, maximum), -a * (1 - s.f));
        pass(reduce(upper, maximum), -a * s.f);
        return -a * QuantilePosition(by, s.kept).slope * (s.hi - s.lo);
    }
};

}  // namespace
}  // namespace rsoftmax
