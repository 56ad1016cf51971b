// Where the quantile of a row probably lies, from the rows before it: a hint saves time and changes no result.
#pragma once

#include "selection.h"

namespace rsoftmax {

// Rows of one attention head, or of one call, are alike: in units of its standard deviation, a row's quantile is near
// that of the row before.
struct QuantileHint {
    // The standardised quantile, and the mean error of hints.
    float z = 0, error = 1;
    bool is_set = false;

    void learn(float quantile, float mean, float deviation) {
        float standardised = (quantile - mean) / deviation;
        if (!std::isfinite(standardised)) return;
        error = is_set ? error + .1f * (std::abs(standardised - z) - error) : .1f;
        z = is_set ? z + .2f * (standardised - z) : standardised;
        is_set = true;
    }
};

namespace {

template <class T> struct Moments {
    T mean, deviation;
    Moments() = default;
    INLINE Moments(Vec<T> sum, Vec<T> squares, long count) {
        mean = reduce(sum, plus) / count;
        deviation = std::sqrt(std::max(reduce(squares, plus) / count - mean * mean, T(0)));
    }
};

template <class T>
Pair<T> try_hint(const QuantileHint& hint, const T* y, long n, long j, T next, const Moments<T>& row, T* to,
    T* other) {
    if (hint.is_set) {
        T half = 3 * hint.error + .01f;
        T a = row.mean + (hint.z - half) * row.deviation, b = row.mean + (hint.z + half) * row.deviation;
        Split c = split(y, n, a, b, to);
        // Both lie between a and b, and few others do.
        if (c.le <= j && j + 1 < c.le + c.in && c.in <= n / 4) {
            store(to + c.in, splat(-inf<T>));
            return select<T>(to, c.in, j - c.le, next, other, to + padded<T>(c.in) + lanes<T>);
        }
    }
    return select<T>(y, n, j, next, to, other);
}

// As select: the entries of rank j and j + 1 of y[0..n), which is followed by -inf to the end of a vector.
template <class T>
Pair<T> select_near(QuantileHint& hint, const T* y, long n, long j, T next, const Moments<T>& row, T* to, T* other) {
    // Shorter rows need no hint.
    constexpr long shortest = 64;
    if (n < shortest) return select<T>(y, n, j, next, to, other);
    Pair<T> quantile = try_hint(hint, y, n, j, next, row, to, other);
    hint.learn(quantile.lo, row.mean, row.deviation);
    return quantile;
}

}  // namespace
}  // namespace rsoftmax
