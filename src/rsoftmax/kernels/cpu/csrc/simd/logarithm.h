// The natural logarithm of positive normal numbers.
#pragma once

#include "exponential.h"

namespace rsoftmax {
namespace {

// v = 2^k (1 + f), |f| < sqrt(2) - 1; with s = f / (2 + f) and R = s^2 (2/3 + 2/5 s^2 + 2/7 s^4 + ...),
// log(1 + f) = 2 atanh(s) = f - s (f - R), of which f is exact.  Within 2 ulp; NaN stays NaN.
template <class T> INLINE Vec<T> log(Vec<T> v) {
    using C = Exp<T>;
    constexpr int terms = sizeof(T) == 4 ? 5 : 11;
    // Adding it writes an integer into the low bits.
    const T unit = T(0x1.8p0) * T(Int<T>(1) << C::mantissa);
    const Int<T> middle = Int<T>(bits(T(0.70710678118654752)));
    // up is k.
    IntVec<T> up = ((IntVec<T>)v - middle) >> C::mantissa;
    Vec<T> f = (Vec<T>)((IntVec<T>)v - (up << C::mantissa)) - 1, k = (Vec<T>)(up + (IntVec<T>)splat(unit)) - unit;
    Vec<T> s = f / (2 + f), z = s * s, r = splat(T(2. / (2 * terms + 1)));
    for (int i = terms - 1; i > 0; i--) r = r * z + T(2. / (2 * i + 1));
    Vec<T> l = k * C::hi + (f - (s * (f - r * z) - k * C::lo));
    return v == v ? l : v;
}

// log(1 + w) = log(v) and what 1 + w lost when it was rounded to v, over v.
template <class T> INLINE Vec<T> log1p(Vec<T> w, Vec<T> v) { return log<T>(v) + (w - (v - 1)) / v; }

}  // namespace
}  // namespace rsoftmax
