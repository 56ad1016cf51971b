// Order statistics: the entries of rank j and j + 1 of a row, in linear time and exact with ties.
#pragma once

#include "../simd/vectors.h"

namespace rsoftmax {
namespace {

template <class T> struct Pair { T lo, hi; };

// Counts for each of s[0..m) how many of y[0..n) are less.  What has at most j entries below it is at most the
// entry of rank j (from 0), and what has more is greater; so if s holds that entry it is the largest of the
// first kind, and if not, it lies between the two kinds.  Exact with ties.  m n steps: for few entries.
template <class T> struct Ranked {
    Vec<T> low = splat(-inf<T>), mid = splat(-inf<T>), high = splat(inf<T>);
    INLINE void add(Vec<T> v, const T* y, long n, long j, long k) {
        IntVec<T> less{};
#pragma GCC unroll 8
        for (long l = 0; l < n; l++) less -= y[l] < v;
        low = maximum(low, less <= Int<T>(j) ? v : splat(-inf<T>));
        mid = maximum(mid, less <= Int<T>(k) ? v : splat(-inf<T>));
        high = minimum(high, less > Int<T>(k) ? v : splat(inf<T>));
    }
};

// One vector of entries of y[0..n), evenly spaced so that sorted rows are sampled well too.
template <class T, size_t... k> INLINE Vec<T> sample(const T* y, long n, std::index_sequence<k...>) {
    long stride = n / lanes<T>;
    return Vec<T>{y[k * stride + stride / 2]...};
}

struct Split { long le, in; };
// Copies the entries of y strictly between a and b to `to`, and counts those <= a.
template <class T> INLINE Split split(const T* y, long n, T a, T b, T* to) {
    IntVec<T> above{};
    long in = 0;
    for (long i = 0; i < n; i += lanes<T>) {
        Vec<T> v = load(y + i);
        IntVec<T> gt = v > a;
        above -= gt;
        in += compress(to + in, v, gt & (v < b));
    }
    return {n - reduce(above, plus), in};
}

// The smallest entry > above.
template <class T> T smallest_above(const T* y, long n, T above, T otherwise) {
    Vec<T> best = splat(otherwise);
    for (long i = 0; i < n; i += lanes<T>) {
        Vec<T> v = load(y + i);
        best = minimum(best, v > above ? v : splat(otherwise));
    }
    return reduce(best, minimum);
}

// Rank j by radix: the bits of a float, the negative ones reversed, order as the numbers do.  One byte is
// fixed per pass, so it is linear for all values.
template <class T> T radix(const T* y, long n, long j) {
    using B = std::make_unsigned_t<Int<T>>;
    constexpr B sign = B(1) << (8 * sizeof(T) - 1);
    B prefix = 0, mask = 0;
    for (int shift = 8 * sizeof(T) - 8; shift >= 0; shift -= 8) {
        long count[256] = {}, digit = 0;
        for (long i = 0; i < n; i++) {
            B b = bits(y[i]), key = b & sign ? ~b : b | sign;
            if ((key & mask) == prefix) count[(key >> shift) & 255]++;
        }
        while (digit < 255 && j >= count[digit]) j -= count[digit++];
        prefix |= B(digit) << shift;
        mask |= B(255) << shift;
    }
    return from_bits<T>(prefix & sign ? prefix ^ sign : ~prefix);
}

// The entries of rank j and j + 1 of y[0..n), which is followed by -inf to the end of a vector; `next` stands
// for rank n.  A small sample proposes two entries, a < b, that should enclose rank j; counting the entries <= a and
// those between shows where rank j really is, and only the open interval that holds it is searched further.  The entry
// after the last one of (a, b) is b itself, because b is an entry.  The two buffers alternate.  Bad proposals cost
// passes, and after six rows' worth of them radix selection takes over.
template <class T> Pair<T> select(const T* y, long n, long j, T next, T* to, T* other) {
    constexpr long few = 32;
    for (long work = 0, limit = 6 * n;; work += n) {
        Ranked<T> r;
        if (n <= few) {
            for (long i = 0; i < n; i += lanes<T>) r.add(load(y + i), y, n, j, j + 1);
            return {reduce(r.low, maximum), j + 1 < n ? reduce(r.mid, maximum) : next};
        }
        // The samples mislead: stop sampling.
        if (work > limit) {
            T lo = radix(y, n, j);
            return {lo, j + 1 < split(y, n, lo, inf<T>, to).le ? lo : smallest_above(y, n, lo, next)};
        }
        // Ranks within a sample, with a margin.
        T s[lanes<T>];
        store(s, sample(y, n, std::make_index_sequence<lanes<T>>()));
        float f = (j + .5f) / n, rank = f * lanes<T> - .5f, variance = lanes<T> * f * (1 - f);
        float margin = .6f * std::sqrt(std::max(variance, 0.f)) + .5f;  // NaNs may leave j > n
        r.add(load(s), s, lanes<T>, std::floor(rank - margin), std::ceil(rank + margin) - 1);
        T a = reduce(r.low, maximum), b = reduce(r.high, minimum);
        // Mostly ties: separate those.
        if (a == -inf<T> && b == inf<T>) a = reduce(load(s), maximum);
        Split c = split(y, n, a, b, to);
        // At a, or below.
        if (j < c.le) {
            T above = j + 1 < c.le ? a : smallest_above(y, n, a, next);
            c = split(y, n, -inf<T>, a, to);
            if (j >= c.le + c.in) return {a, above};
            next = a;
        } else if (j < c.le + c.in) {
            if (b < inf<T>) next = b;
        } else {                                                      // at b, or above
            c = split(y, n, b, inf<T>, to);
            if (j < c.le) return {b, j + 1 < c.le ? b : smallest_above(y, n, b, next)};
        }
        store(to + c.in, splat(-inf<T>));
        y = to;
        n = c.in;
        j -= c.le;
        std::swap(to, other);
    }
}

}  // namespace
}  // namespace rsoftmax
