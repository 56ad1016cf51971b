// The weights w of p = w e^(x - m) / sum, m = max(x): what distinguishes softmax from the mappings with a threshold,
// w = min(x - theta, edge)+.
//
// Each type gives, for a vector of logits x with d = x - m: where w is not zero (in_support), and w itself.  Weights
// may carry any common factor: a power of two near 1 / span keeps them in range and costs no rounding.  Those with a
// threshold also propagate its gradient.
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

// Half a unit in the last place of 1: the least gap between numbers near it.
template <class T> constexpr T half_ulp = std::numeric_limits<T>::epsilon() / 2;

// That of the power of two below v.
INLINE int exponent(double v) { return int(bits(v) >> 52 & 2047) - 1023; }

// Whether p = w e^d / sum has all its digits wherever w is not zero, at most `span` below the maximum, and p / w does
// not overflow.  `least` is the smallest such weight; powers of two are near enough.
template <class T> bool division_is_accurate(double least, double span, double slope, double sum) {
    double depth = span * 1.45 - exponent(least) + exponent(sum / Exp<T>::scaled_one);
    return depth < 100 && slope > 0x1p-60 && slope < 0x1p60;
}

// Softmax: every unmasked entry weighs the same.
template <class T> struct Dense {
    static constexpr bool constant = true;
    INLINE IntVec<T> in_support(Vec<T> x, Vec<T>) const { return x > -inf<T>; }
    INLINE Vec<T> operator()(Vec<T>, Vec<T>) const { return splat<T>(1); }
};

// Softmax on the support: the limit of a vanishing edge.  An entry is in the support if x > lo and d >= least.
template <class T> struct Truncated {
    static constexpr bool constant = true;
    T lo, least;
    INLINE IntVec<T> in_support(Vec<T> x, Vec<T> d) const { return (x > lo) & (d >= least); }
    INLINE Vec<T> operator()(Vec<T> x, Vec<T> d) const { return in_support(x, d) ? splat<T>(1) : Vec<T>{}; }

    // The limit of a vanishing span; ties share.
    static Truncated to_maximum() { return {-inf<T>, 0}; }
    // d > -t, t > 0.
    static Truncated within(T t) { return {-inf<T>, from_bits<T>(bits(-t) - 1)}; }
    static Truncated above(T lo) { return {lo, -inf<T>}; }
};

// min(x - m + t, edge)+, t > 0: d + t > 0 exactly where d > -t.
template <class T> struct Hinge {
    static constexpr bool constant = false;
    T m, t, slope, cap;
    // The factors of d and 1 in `term`, and the divisor of their sum.
    T d_factor, one_factor, divisor;
    // The position of the maximum, and how often it occurs.
    IntVec<T> top{}, tops{};
    Hinge(T m, T t, double edge) : m(m), t(t), slope(scale(t)), cap(cap_of(edge, t, slope)) {
        bool is_capped = edge < t;
        d_factor = is_capped ? 0 : 1;
        one_factor = is_capped ? 1 : 0;
        divisor = is_capped ? 1 : -t;
    }
    INLINE IntVec<T> in_support(Vec<T>, Vec<T> d) const { return d > -t; }
    INLINE IntVec<T> rises(Vec<T> x, Vec<T> d) const { return in_support(x, d) & ((d + t) * slope < cap); }
    INLINE Vec<T> operator()(Vec<T> x, Vec<T> d) const {
        return in_support(x, d) ? minimum((d + t) * slope, splat(cap)) : Vec<T>{};
    }

    bool division_is_accurate(double sum) const {
        return rsoftmax::division_is_accurate<T>(t * slope * half_ulp<T>, t, slope, sum);
    }
    // p / w = dp/dw, 0 where w is constant.
    INLINE Vec<T> quotient(Vec<T> x, Vec<T> d, Vec<T> p) const {
        return rises(x, d) ? p / (in_support(x, d) ? d + t : splat<T>(1)) : Vec<T>{};
    }

    // dL/dt = sum u h, u = dp/dw and h = g - sum p g.  Without an edge sum p h = 0 makes it also the sum of u d h,
    // over -t, to which a lone maximum contributes exactly nothing; with one the maximum does not rise anyway.
    INLINE Vec<T> term(Vec<T> u, Vec<T> d) const { return d > -t ? u * (d * d_factor + one_factor) : Vec<T>{}; }
    INLINE void find(Vec<T> x, IntVec<T> index) {
        top = x == m ? index : top;
        tops -= x == m;
    }

    // The threshold m - t propagates its gradient to the maximum, in equal parts to ties; pass(i, a) adds a to the
    // gradient in entry i.  Returns the gradient in the parameter.
    template <class X, class Pass>
    double propagate_threshold(double total, const X& x, long n, const Parameter&, const RowState&, bool,
        Pass pass) const {
        double dt = total / divisor;
        long count = reduce(tops, plus);
        if (count == 1) pass(reduce(top, maximum), -dt);
        else for (long i = 0; i < n; i += lanes<T>) {
            IntVec<T> is_top = x(i) == m;
            for (long k = 0; k < std::min(n - i, lanes<T>); k++) if (is_top[k]) pass(i + k, -dt / count);
        }
        return dt;
    }
};

// min(x - theta, edge)+, theta = hi - (1 - f)(hi - lo) the quantile.  x - theta is computed as
// (x - hi) + (hi - theta), which are both >= 0, and not both 0, where x > lo.
template <class T> struct Quantile {
    static constexpr bool constant = false;
    T m, lo, hi, slope, rest, cap;
    // The positions of lo and hi.
    IntVec<T> lower{}, upper{};
    Quantile(T m, T lo, T hi, double f, double edge)
        : m(m), lo(lo), hi(hi), slope(scale<T>(m - lo)), rest(T((1 - f) * (double(hi * slope) - double(lo * slope)))),
          cap(cap_of(edge, double(m) - lo, slope)) {}
    INLINE Vec<T> uncapped(Vec<T> x) const { return (x * slope - hi * slope) + rest; }
    INLINE IntVec<T> in_support(Vec<T> x, Vec<T>) const { return x > lo; }
    INLINE IntVec<T> rises(Vec<T> x, Vec<T> d) const { return in_support(x, d) & (uncapped(x) < cap); }
    INLINE Vec<T> operator()(Vec<T> x, Vec<T> d) const {
        return in_support(x, d) ? minimum(uncapped(x), splat(cap)) : Vec<T>{};
    }

    bool division_is_accurate(double sum) const {
        double least = hi > lo ? rest : std::abs(hi * slope) * half_ulp<T>;
        return rsoftmax::division_is_accurate<T>(least, double(m) - lo, slope, sum);
    }
    INLINE Vec<T> quotient(Vec<T> x, Vec<T> d, Vec<T> p) const {
        return rises(x, d) ? p / (in_support(x, d) ? (x - hi) + rest / slope : splat<T>(1)) : Vec<T>{};
    }

    // -dL/dtheta = sum u h.
    INLINE Vec<T> term(Vec<T> u, Vec<T>) const { return u; }
    INLINE void find(Vec<T> x, IntVec<T> index) {
        lower = x == lo ? index : lower;
        upper = x == hi ? index : upper;
    }

    template <class X, class Pass>
    double propagate_threshold(double a, const X&, long, const Parameter& parameter, const RowState& s, bool detach,
        Pass pass) const {
        if (detach) return 0;
        pass(reduce(lower, maximum), -a * (1 - s.f));
        pass(reduce(upper, maximum), -a * s.f);
        return -a * QuantilePosition(parameter, s.unmasked).slope * (s.hi - s.lo);
    }
};

}  // namespace
}  // namespace rsoftmax
