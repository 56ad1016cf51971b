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
    // The sums that one step needs.
    struct Norm {
        Sum<T> one, two;
        IntVec<T> in{};
        INLINE void add(Vec<T> v, T tau, long i) {
            IntVec<T> in_support = v > tau;
            in -= in_support;
            v = in_support ? v - tau : Vec<T>{};
            one.add(v, i);
            if (q == 2) two.add(v * v, i);
        }
    };
    T tau = -1;
    long c = 0, before = n + 1;
    for (long i = 0; i < n; i += lanes<T>) {
        Vec<T> v = (x(i) - m) * T(1. / q);
        c += compress(z + c, v, v > tau);
    }
    store(z + c, splat(-inf<T>));
    for (;;) {
        // Over these entries alone: the others do not change a bit of the sums.
        Norm norm;
        for (long i = 0; i < c; i += lanes<T>) norm.add(load(z + i), tau, i);
        long k = reduce(norm.in, plus);
        double h = q == 1 ? norm.one.get() : std::sqrt(norm.two.get());
        T up = q == 1 ? tau + (h - 1) / k : tau + h * (h - 1) / norm.one.get();
        // The support, or tau, no longer changes.
        if (q == 1 ? k >= before : !(up > tau)) return up;
        tau = up;
        before = k;
    }
}

}  // namespace
}  // namespace rsoftmax
