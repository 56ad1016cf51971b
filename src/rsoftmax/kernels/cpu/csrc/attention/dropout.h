// Dropout: whether a weight is dropped is a hash of the seed, the row's number and the key, so that nothing is stored.
#pragma once

#include "../simd/vectors.h"

namespace rsoftmax {
namespace {

// A hash of 32 bits: any bit changes about half of the others.
template <class Bits> INLINE Bits hash(Bits x) {
    x = (x ^ (x >> 16)) * 0x7feb352du;
    x = (x ^ (x >> 15)) * 0x846ca68bu;
    return x ^ (x >> 16);
}

// The factors of one row's weights: 0, or the one that keeps their mean.  Must match the Python code of
// dropout in rsoftmax.attention.
struct Dropout {
    // 16 bits are drawn for each weight.
    static constexpr long steps = 65536;
    using Draws = vec<uint32_t, bytes>::type;
    uint32_t row_hash, dropped;
    float factor;
    Dropout(int64_t seed, long row, long dropped)
        : row_hash(hash(hash(uint32_t(row) ^ uint32_t(seed)) + uint32_t(uint64_t(seed) >> 32))), dropped(dropped),
          factor(dropped < steps ? float(steps) / float(steps - dropped) : 0) {}
    INLINE Vec<float> operator()(IntVec<float> keys) const {
        Draws draws = hash((Draws)keys * 0x9e3779b9u + row_hash) >> 16;
        return (IntVec<float>)draws >= int32_t(dropped) ? splat(factor) : Vec<float>{};
    }
};

}  // namespace
}  // namespace rsoftmax
