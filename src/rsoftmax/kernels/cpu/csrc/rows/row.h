// The logits of a row.
#pragma once

#include "../simd/formats.h"
#include "call.h"

namespace rsoftmax {
namespace {

// The logits of a row, read one vector at a time; masked entries and the padding after the last one are -inf.
template <class T> struct Row {
    const T* x;
    const uint8_t* mask = nullptr;
    long n, step;
    Row(const RowsCall& call, long row)
        : x((const T*)call.x + row * call.x_stride), n(call.n), step(call.mask_step) {
        if (call.mask) mask = call.mask + (call.mask_rows ? call.mask_rows[row] : row * call.mask_stride);
    }
    INLINE Vec<T> operator()(long i) const { return (*this)(i, n - i); }
    INLINE Vec<T> operator()(long i, long left) const {
        Vec<T> v = load(x + i, left);
        if (mask) v = apply_mask(v, i);
        if (left < lanes<T>) v = iota<T>() < Int<T>(left) ? v : splat(-inf<T>);
        return v;
    }

private:
    using Bytes = typename vec<uint8_t, lanes<T>>::type;
    INLINE Vec<T> apply_mask(Vec<T> v, long i) const {
        bool whole = step == 1 && n - i >= lanes<T>;
        using Unaligned = typename vec<uint8_t, lanes<T>>::unaligned;
        Bytes unmasked = __builtin_expect(whole, 1) ? *(const Unaligned*)(mask + i) : gather(i);
        return widen<uint8_t, T>(unmasked) != 0 ? v : splat(-inf<T>);
    }
    NOINLINE Bytes gather(long i) const {
        Bytes unmasked{};
        for (long k = 0; k < std::min(n - i, lanes<T>); k++) unmasked[k] = mask[(i + k) * step];
        return unmasked;
    }
};

}  // namespace
}  // namespace rsoftmax
