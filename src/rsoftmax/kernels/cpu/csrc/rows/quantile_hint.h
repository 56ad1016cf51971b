// Where the quantile of a row probably lies, from the rows before it: a hint saves time and changes no result.
#pragma once

#include "selection.h"

namespace rsoftmax {

// Rows of one attention head, or of one call, are alike: in units of its standard deviation, a row's quantile is near that
// of the row before.
struct QuantileHint {
    float z = 0, error = 1;                                           // the standardised quantile, and how far off hints were
    bool known = false;

    void learn(float quantile, float mean, float deviation) {
        float standardised = (quantile - mean) / deviation;
        if (!std::isfinite(standardised)) return;
        error = known ? error + .1f * (std::abs(standardised - z) - error) : .1f;
        z = known ? z + .2f * (standardised - z) : standardised;
        known = true;
    }
};

namespace {

template <class T> struct Moments {
    T mean, deviation;
    Moments() = default;
    INLINE Moments(V<T> sum, V<T> squares, long count) {
        mean = reduce(sum, plus) / count;
        deviation = std::sqrt(std::max(reduce(squares, plus) / count - mean * mean, T(0)));
    }
};

template <class T>
Two<T> try_hint(const QuantileHint& hint, const T* y, long n, long j, T next, const Moments<T>& row, T* to, T* other) {
    if (hint.known) {
        T half = 3 * hint.error + .01f;
        T a = row.mean + (hint.z - half) * row.deviation, b = row.mean + (hint.z + half) * row.deviation;
        Split c = split(y, n, a, b, to);
        if (c.le <= j && j + 1 < c.le + c.in && c.in <= n / 4) {      // both lie between a and b, and few others do
            store(to + c.in, splat(-inf<T>));
            return select<T>(to, c.in, j - c.le, next, other, to + padded<T>(c.in) + lanes<T>);
        }
    }
    return select<T>(y, n, j, next, to, other);
}

// As select: the entries of rank j and j + 1 of y[0..n), which is followed by -inf to the end of a vector.
template <class T>
Two<T> select_near(QuantileHint& hint, const T* y, long n, long j, T next, const Moments<T>& row, T* to, T* other) {
    constexpr long shortest = 64;                                     // shorter rows need no hint
    if (n < shortest) return select<T>(y, n, j, next, to, other);
    Two<T> found = try_hint(hint, y, n, j, next, row, to, other);
    hint.learn(found.lo, row.mean, row.deviation);
    return found;
}

}  // namespace
}  // namespace rsoftmax
