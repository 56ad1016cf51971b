// Dropout: which weights are dropped follows from a seed, the number of the row and the key, and from nothing else.
#pragma once

#include "vectors.h"

namespace {

template <class U> INLINE U mixed(U x) {                              // of 32 bits; any bit changes about half of the others
    x = (x ^ (x >> 16)) * 0x7feb352du;
    x = (x ^ (x >> 15)) * 0x846ca68bu;
    return x ^ (x >> 16);
}

// The factors of one row's weights: 0, or what keeps their mean.  src/rsoftmax/noise.py draws the same.
struct Noise {
    static constexpr long steps = 65536;                              // 16 bits are drawn
    using Draws = vec<uint32_t, bytes>::type;
    uint32_t key, dropped;
    float factor;
    Noise(int64_t seed, long row, long dropped)
        : key(mixed(mixed(uint32_t(row) ^ uint32_t(seed)) + uint32_t(uint64_t(seed) >> 32))), dropped(dropped),
          factor(dropped < steps ? float(steps) / float(steps - dropped) : 0) {}
    INLINE V<float> operator()(I<float> place) const {
        Draws draws = mixed((Draws)place * 0x9e3779b9u + key) >> 16;
        return (I<float>)draws >= int32_t(dropped) ? splat(factor) : V<float>{};
    }
};

}  // namespace
