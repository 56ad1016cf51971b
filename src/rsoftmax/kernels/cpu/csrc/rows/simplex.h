// The projections: sparsemax and 1.5-entmax subtract a threshold tau such that the row sums to one.
#pragma once

#include "../simd/sums.h"

namespace rsoftmax {
namespace {

// The root tau of sum [z - tau]_+^q = 1, z = d / q, for q = 1 (sparsemax) and 2 (entmax15), by Newton's method
// on the norm h(tau) = (sum [z - tau]_+^q)^(1/q), which is convex and falling: from the left the steps never
// pass the root, so entries that drop out of the support never return, and every step halves the excess h - 1 or the
// slope, so few steps are needed.  Entries with z <= -1 cannot be in the support: the largest, 0, would exceed 1.
template <int q, class T, class X> T simplex(const X& x, long n, T m, T* z) {
    struct Norm {                                                     // the sums that one step needs
        Sum<T> one, two;
        I<T> in{};
        INLINE I<T> add(V<T> v, T tau, long i) {
            I<T> on = v > tau;
            in -= on;
            v = on ? v - tau : V<T>{};
            one.add(v, i);
            if (q == 2) two.add(v * v, i);
            return on;
        }
    } norm;
    T tau = -1;
    long c = 0, before = n + 1;
    for (long i = 0; i < n; i += lanes<T>) {
        V<T> v = (x(i) - m) * T(1. / q);
        c += compress(z + c, v, norm.add(v, tau, i));
    }
    store(z + c, splat(-inf<T>));
    for (;;) {
        long k = reduce(norm.in, plus);
        double h = q == 1 ? norm.one.get() : std::sqrt(norm.two.get());
        T up = q == 1 ? tau + (h - 1) / k : tau + h * (h - 1) / norm.one.get();
        if (q == 1 ? k >= before : !(up > tau)) return up;            // the support, or tau, no longer changes
        tau = up;
        before = k;
        norm = Norm();
        for (long i = 0; i < c; i += lanes<T>) norm.add(load(z + i), tau, i);
    }
}

}  // namespace
}  // namespace rsoftmax
