// Where the quantile of a row probably lies, from the rows before it: a hint saves time and changes no result.
#pragma once

#include "../rows/selection.h"

namespace rsoftmax {

// Rows of one attention head are alike: in units of its standard deviation, a row's quantile is near that of the row before.
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

struct Moments { float mean, deviation; };

inline Two<float> try_hint(const QuantileHint& hint, const float* y, long n, long j, float next, Moments row, float* to, float* other) {
    if (hint.known) {
        float half = 3 * hint.error + .01f;
        float a = row.mean + (hint.z - half) * row.deviation, b = row.mean + (hint.z + half) * row.deviation;
        Split c = split(y, n, a, b, to);
        if (c.le <= j && j + 1 < c.le + c.in) {                       // both lie between a and b
            store(to + c.in, splat(-inf<float>));
            return select<float>(to, c.in, j - c.le, next, other, other + padded<float>(n) + lanes<float>);
        }
    }
    return select<float>(y, n, j, next, to, other);
}

// As select: the entries of rank j and j + 1 of y[0..n), which is followed by -inf to the end of a vector.
inline Two<float> select_near(QuantileHint& hint, const float* y, long n, long j, float next, Moments row, float* to, float* other) {
    constexpr long shortest = 64;                                     // shorter rows need no hint
    if (n < shortest) return select<float>(y, n, j, next, to, other);
    Two<float> found = try_hint(hint, y, n, j, next, row, to, other);
    hint.learn(found.lo, row.mean, row.deviation);
    return found;
}

}  // namespace
}  // namespace rsoftmax
