// A guess where the order statistics of a row are, from the rows before it: it saves time and changes no result.
#pragma once

#include "selection.h"

namespace {

// Rows of one head of attention look alike: in units of its spread, a row's quantile is near that of the row before.
struct Guess {
    static constexpr long shortest = 64;                              // rows worth a guess
    float z = 0, error = 1;                                           // where it was, and how far off guesses were
    bool known = false;

    // As select: the entries of rank j and j + 1 of y[0..n), which is followed by -inf to the end of a vector.
    Two<float> ranks(const float* y, long n, long j, float next, float mean, float spread, float* to, float* other) {
        if (n < shortest) return select<float>(y, n, j, next, to, other);
        Two<float> found = near(y, n, j, next, mean, spread, to, other);
        float at = (found.lo - mean) / spread;
        if (std::isfinite(at)) {
            error = known ? error + .1f * (std::abs(at - z) - error) : .1f;
            z = known ? z + .2f * (at - z) : at, known = true;
        }
        return found;
    }

private:
    Two<float> near(const float* y, long n, long j, float next, float mean, float spread, float* to, float* other) const {
        if (known) {
            float half = 3 * error + .01f, a = mean + (z - half) * spread, b = mean + (z + half) * spread;
            Split c = split(y, n, a, b, to);
            if (c.le <= j && j + 1 < c.le + c.in) {                   // both lie between a and b
                put(to + c.in, splat(-inf<float>));
                return select<float>(to, c.in, j - c.le, next, other, other + padded<float>(n) + lanes<float>);
            }
        }
        return select<float>(y, n, j, next, to, other);
    }
};

}  // namespace
