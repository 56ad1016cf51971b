// The exponential function of numbers up to zero.
#pragma once

#include <iterator>

#include "vectors.h"

namespace rsoftmax {
namespace {

template <class T> struct Exp;
template <> struct Exp<float> {
    static constexpr int mantissa = 23;
    static constexpr float scaled_one = 0x1p64f, low = -104.f, magic = 0x1.8p23f + 64, hi = 0.693359375f,
        lo = -2.12194440e-4f,
        c[] = {1.38145964699801597e-3f, 8.36871685026245498e-3f, 4.16683880721639183e-2f, 1.66665206321606605e-1f,
               4.99999934477993070e-1f, 1.f, 1.f};
};
template <> struct Exp<double> {
    static constexpr int mantissa = 52;
    static constexpr double scaled_one = 0x1p512, low = -746., magic = 0x1.8p52 + 512, hi = 6.93145751953125e-1,
        lo = 1.42860682030941723e-6,
        c[] = {2.46109072753049769e-8, 2.76208570640526757e-7, 2.75587254703334172e-6, 2.48015205662007863e-5,
               1.98412683909614882e-4, 1.38888889169161141e-3, 8.33333333390043603e-3, 4.16666666666255134e-2,
               1.66666666666659938e-1, 5.00000000000000117e-1, 1., 1.};
};

// exp(d) 2^lift for d <= 0, within 2 ulp: d = k ln 2 + r, |r| <= ln 2 / 2; the lift is 64 in float, 512 in double.  It
// keeps every result normal until the division by the sum takes it off again, so underflow is gradual and rounds once.
template <class T> INLINE Vec<T> scaled_exp_of_numbers(Vec<T> d) {
    using C = Exp<T>;
    d = maximum(splat<T>(C::low), d);
    // Its low bits hold k + lift.
    Vec<T> z = d * T(1.4426950408889634) + C::magic;
    Vec<T> k = z - C::magic, r = d - k * C::hi - k * C::lo, q = splat(C::c[0]);
    for (size_t i = 1; i < std::size(C::c); i++) q = q * r + C::c[i];
    // Straight into the exponent.
    return (Vec<T>)((IntVec<T>)q + ((IntVec<T>)z << C::mantissa));
}
// The same, and NaN stays NaN: the sum would have changed its bits.
template <class T> INLINE Vec<T> scaled_exp(Vec<T> d) { return d == d ? scaled_exp_of_numbers<T>(d) : d; }
template <class T> INLINE Vec<T> plain_exp(Vec<T> d) { return scaled_exp<T>(d) * (1 / Exp<T>::scaled_one); }

}  // namespace
}  // namespace rsoftmax
