// Entmax of any alpha: p = P [1 + b d / P^b]+^(1/b) with b = alpha - 1, d = x - max(x) and P the largest probability,
// such that the row sums to one.  This form is stable for small b: as b goes to 0, p goes to P e^d.
#pragma once

#include "../simd/logarithm.h"
#include "../simd/sums.h"

namespace rsoftmax {
namespace {

// The probabilities of a row, from the logarithm a of P, divided by `sum`.
template <class T> struct Tsallis {
    // scale: b / P^b.
    T b, scale, peak;
    Tsallis(double b, double a, double sum = 1)
        : b(b), scale(b * std::exp(-b * a)), peak(std::exp(a) / sum / Exp<T>::scaled_one) {}
    // (p / P)^b, where it is positive.
    INLINE Vec<T> base(Vec<T> d) const { return 1 + d * scale; }
    INLINE Vec<T> operator()(Vec<T> d, Vec<T> v) const {
        Vec<T> w = v > 0 ? d * scale : Vec<T>{}, u = v > 0 ? v : splat<T>(1);
        return v > 0 ? scaled_exp<T>(log1p<T>(w, u) / b) * peak : Vec<T>{};
    }
};

// Finds a = log P by Newton's method on F(a)^b, F the sum of the row.  As a function of P^b that is convex for alpha
// <= 2: from a = 0, where F >= 1, the steps never pass the root.  For alpha > 2 they may, and where an entry enters
// the support the slope is infinite; so bounds enclose the root, and a step that leaves them, or comes late, bisects
// instead.  Entries with d <= -1/b are never in the support, and are left out from the start.
template <class T, class X> Tsallis<T> tsallis(const X& x, long n, T m, double b, T* d) {
    constexpr double enough = 2 * std::numeric_limits<T>::epsilon();
    long c = 0;
    for (long i = 0; i < n; i += lanes<T>) {
        Vec<T> v = x(i) - m;
        c += compress(d + c, v, 1 + v * T(b) > 0);
    }
    store(d + c, splat(-inf<T>));
    double low = -std::log(double(c)) - enough, high = 0, a = 0;
    for (int step = 0; ; step++) {
        Tsallis<T> p(b, a);
        // F and dF/da.
        Sum<T> sum, slope;
        for (long i = 0; i < c; i += lanes<T>) {
            Vec<T> v = p.base(load(d + i)), q = p(load(d + i), v);
            sum.add(q, i);
            slope.add(v > 0 ? q / v : Vec<T>{}, i);
        }
        double f = sum.get(), excess = std::log(f);
        (excess > 0 ? high : low) = a;
        if (std::abs(excess) <= enough || high - low <= enough * (1 - low)) return {b, a, f};
        a += std::log1p(f / slope.get() * std::expm1(-b * excess)) / b;
        if (!(low < a && a < high) || (step > 8 && step % 2)) a = (low + high) / 2;
    }
}

// p^e; 0 where p is 0 or too small to have a logarithm here.
template <class T> INLINE Vec<T> power(Vec<T> p, T e) {
    IntVec<T> is_normal = p >= std::numeric_limits<T>::min();
    Vec<T> l = log<T>(is_normal ? p : splat<T>(1));
    return is_normal ? e >= 0 ? plain_exp<T>(e * l) : 1 / plain_exp<T>(-e * l) : p - p;
}

// dp/dalpha at a fixed threshold, from p and v = p^(1 - b): (p (1 - t) - v) / b^2 with t = b l, l = log p, and where
// that would cancel its series, -p l^2 (1/2! - t/3! + t^2/4! - ...).
template <class T> INLINE Vec<T> alpha_gradient(Vec<T> p, Vec<T> v, T b) {
    constexpr int terms = sizeof(T) == 4 ? 8 : 14;
    IntVec<T> is_normal = p >= std::numeric_limits<T>::min();
    Vec<T> l = log<T>(is_normal ? p : splat<T>(1)), t = l * b, sum{};
    // 1/2 (1 - t/3 (1 - t/4 (...))).
    for (int k = terms; k > 0; k--) sum = (1 - sum * t) * T(1. / (k + 1));
    Vec<T> slope = t > T(-0.5) ? -p * l * l * sum : (p * (1 - t) - v) / (b * b);
    return is_normal ? slope : p - p;
}

}  // namespace
}  // namespace rsoftmax
