// Vectors as wide as the registers of the target instruction set, and operations on their lanes.  WIDE_VECTORS asks for
// the vectors of AVX-512 with any other: the compiler divides them among registers, and all sums have the order, and all
// tiles the sizes, of the AVX-512 library, which a processor without AVX-512 can then test (make test-wide).
//
// Written with the vector extensions of GCC and Clang, so that one source serves every instruction set.  Each
// instruction set is compiled into a library of its own, with hidden symbols, so the same names do not meet.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>
#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

#define INLINE inline __attribute__((always_inline))
#define NOINLINE __attribute__((noinline))

namespace rsoftmax {
namespace {

#if defined(__AVX512F__)
#define AVX512_VECTORS
constexpr int bytes = 64;
#elif defined(WIDE_VECTORS)
constexpr int bytes = 64;
#elif defined(__AVX2__)
#define AVX2_VECTORS
constexpr int bytes = 32;
#else
constexpr int bytes = 16;
#endif

template <class E, int B> struct vec {
    typedef E type __attribute__((vector_size(B)));
    typedef E unaligned __attribute__((vector_size(B), aligned(1), may_alias));
};
template <class T> using Int = std::conditional_t<sizeof(T) == 4, int32_t, int64_t>;
template <class T> constexpr long lanes = bytes / sizeof(T);
// A vector of values, and one of masks (0 or -1) or counts.
template <class T> using Vec = typename vec<T, bytes>::type;
template <class T> using IntVec = typename vec<Int<T>, bytes>::type;
template <class T> constexpr T inf = std::numeric_limits<T>::infinity();

// The length of a row of n entries, rounded up to whole vectors.
template <class T> INLINE long padded(long n) { return (n + lanes<T> - 1) / lanes<T> * lanes<T>; }

template <class T> INLINE Vec<T> splat(T a) { return a - Vec<T>{}; }
template <class T> INLINE Vec<T> load(const T* p) { return *(const typename vec<T, bytes>::unaligned*)p; }
template <class T> INLINE void store(T* p, Vec<T> v) { *(typename vec<T, bytes>::unaligned*)p = v; }

template <class T> INLINE auto bits(T v) {
    std::make_unsigned_t<Int<T>> b;
    memcpy(&b, &v, sizeof b);
    return b;
}
template <class T, class B> INLINE T from_bits(B b) {
    T v;
    memcpy(&v, &b, sizeof v);
    return v;
}

template <class T, size_t... k> INLINE IntVec<T> iota_(std::index_sequence<k...>) { return IntVec<T>{Int<T>(k)...}; }
// 0, 1, 2, ...
template <class T> INLINE IntVec<T> iota() { return iota_<T>(std::make_index_sequence<lanes<T>>()); }

constexpr auto plus = [](auto a, auto b) { return a + b; };
struct Maximum {
    template <class A> INLINE A operator()(A a, A b) const { return a > b ? a : b; }
#ifdef AVX512_VECTORS
    // Compilers do not find the instruction themselves; gcc 12 warns about _mm512_max_ps in its own header.
    INLINE Vec<float> operator()(Vec<float> a, Vec<float> b) const {
        return (Vec<float>)_mm512_maskz_max_ps(0xffff, (__m512)a, (__m512)b);
    }
#elif defined(AVX2_VECTORS)
    INLINE Vec<float> operator()(Vec<float> a, Vec<float> b) const {
        return (Vec<float>)_mm256_max_ps((__m256)a, (__m256)b);
    }
#endif
};
constexpr Maximum maximum;
struct Minimum {
    template <class A> INLINE A operator()(A a, A b) const { return a < b ? a : b; }
#ifdef AVX512_VECTORS
    INLINE Vec<float> operator()(Vec<float> a, Vec<float> b) const {
        return (Vec<float>)_mm512_maskz_min_ps(0xffff, (__m512)a, (__m512)b);
    }
#elif defined(AVX2_VECTORS)
    INLINE Vec<float> operator()(Vec<float> a, Vec<float> b) const {
        return (Vec<float>)_mm256_min_ps((__m256)a, (__m256)b);
    }
#endif
};
constexpr Minimum minimum;

template <class T> INLINE Vec<T> square_root(Vec<T> v) {
    for (int k = 0; k < lanes<T>; k++) v[k] = std::sqrt(v[k]);
    return v;
}

// Combines all lanes by f: halves onto each other until one number is left.
template <class A, size_t... k, class F> INLINE auto combine_halves(A v, std::index_sequence<k...>, F f) {
    return f(__builtin_shufflevector(v, v, k...), __builtin_shufflevector(v, v, (k + sizeof...(k))...));
}
template <class A, class F> INLINE auto reduce(A v, F f) {
    constexpr int n = sizeof(v) / sizeof(v[0]);
    if constexpr (n == 2) return f(v[0], v[1]);
    else return reduce(combine_halves(v, std::make_index_sequence<n / 2>(), f), f);
}

// Whether a mask holds in every lane.
template <class T> INLINE bool all(IntVec<T> mask) {
#ifdef AVX512_VECTORS
    return _mm512_movepi8_mask((__m512i)mask) == ~0ull;
#elif defined(AVX2_VECTORS)
    return _mm256_movemask_epi8((__m256i)mask) == -1;
#else
    return reduce(mask, [](auto a, auto b) { return a & b; });
#endif
}

#ifdef AVX2_VECTORS
// For each subset of eight lanes, the indices of the lanes in it: eight bytes.
struct LaneSubsets {
    uint64_t indices[256];
    constexpr LaneSubsets() : indices() {
        for (int mask = 0; mask < 256; mask++)
            for (int k = 0, n = 0; k < 8; k++)
                if (mask >> k & 1) indices[mask] |= uint64_t(k) << 8 * n++;
    }
};
constexpr LaneSubsets lane_subsets;
#endif

// Appends the lanes of v selected by keep, in order; may write a whole vector.  Returns their number.
template <class T> INLINE long compress(T* to, Vec<T> v, IntVec<T> keep) {
#ifdef AVX512_VECTORS
    if constexpr (sizeof(T) == 4) {
        auto k = _mm512_movepi32_mask((__m512i)keep);
        store<T>(to, (Vec<T>)_mm512_maskz_compress_ps(k, (__m512)v));
        return __builtin_popcount(k);
    } else {
        auto k = _mm512_movepi64_mask((__m512i)keep);
        store<T>(to, (Vec<T>)_mm512_maskz_compress_pd(k, (__m512d)v));
        return __builtin_popcount(k);
    }
#else
#ifdef AVX2_VECTORS
    if constexpr (sizeof(T) == 4) {
        auto k = _mm256_movemask_ps((__m256)keep);
        __m256i order = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(lane_subsets.indices[k]));
        store<T>(to, (Vec<T>)_mm256_permutevar8x32_epi32((__m256i)v, order));
        return __builtin_popcount(k);
    }
#endif
    long n = 0;
    for (int k = 0; k < lanes<T>; k++) {
        to[n] = v[k];
        n -= keep[k];
    }
    return n;
#endif
}

// Integers to the width of T, doubling (GCC 12 takes a longer step lane by lane).
template <class E, class T, class B> INLINE IntVec<T> widen(B v) {
    if constexpr (sizeof(E) == sizeof(T)) return (IntVec<T>)v;
    else {
        using D = std::conditional_t<sizeof(E) == 1, int16_t, std::conditional_t<sizeof(E) == 2, int32_t, int64_t>>;
        return widen<D, T>(__builtin_convertvector(v, typename vec<D, 2 * sizeof(B)>::type));
    }
}

// Calls f(i, left) for each vector of n entries, of which `left` remain from entry i on: a constant for all but the
// last vector, so that only that one pays for the end of the row.
template <class T, class F> INLINE void each_vector(long n, F f) {
    long i = 0;
    for (; i + lanes<T> <= n; i += lanes<T>) f(i, lanes<T>);
    if (i < n) f(i, n - i);
}

}  // namespace
}  // namespace rsoftmax
