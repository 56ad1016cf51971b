// Vectors of the widest registers that the compiler was told to use, and what is done with their lanes.
//
// Written with the vector extensions of GCC and Clang, so that one source serves every instruction set.  Everything
// here and in the other headers is internal to a library: the same names are compiled once for each instruction set.
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

namespace {

#if defined(__AVX512F__)
constexpr int bytes = 64;
#elif defined(__AVX2__)
constexpr int bytes = 32;
#else
constexpr int bytes = 16;
#endif

template <class E, int B> struct vec {
    typedef E type __attribute__((vector_size(B)));
    typedef E loose __attribute__((vector_size(B), aligned(1), may_alias));   // anywhere in memory
};
template <class T> using Int = std::conditional_t<sizeof(T) == 4, int32_t, int64_t>;
template <class T> constexpr long lanes = bytes / sizeof(T);
template <class T> using V = typename vec<T, bytes>::type;          // values
template <class T> using I = typename vec<Int<T>, bytes>::type;     // masks (0 or -1) and counts
template <class T> constexpr T inf = std::numeric_limits<T>::infinity();

// The length of a row of n entries, filled up to whole vectors.
template <class T> INLINE long padded(long n) { return (n + lanes<T> - 1) / lanes<T> * lanes<T>; }

template <class T> INLINE V<T> splat(T a) { return a - V<T>{}; }
template <class T> INLINE V<T> at(const T* p) { return *(const typename vec<T, bytes>::loose*)p; }
template <class T> INLINE void put(T* p, V<T> v) { *(typename vec<T, bytes>::loose*)p = v; }

template <class T> INLINE auto bits(T v) { std::make_unsigned_t<Int<T>> b; memcpy(&b, &v, sizeof b); return b; }
template <class T, class B> INLINE T number(B b) { T v; memcpy(&v, &b, sizeof v); return v; }

template <class T, size_t... k> INLINE I<T> iota_(std::index_sequence<k...>) { return I<T>{Int<T>(k)...}; }
template <class T> INLINE I<T> iota() { return iota_<T>(std::make_index_sequence<lanes<T>>()); }   // 0, 1, 2, ...

constexpr auto plus = [](auto a, auto b) { return a + b; };
struct Larger {
    template <class A> INLINE A operator()(A a, A b) const { return a > b ? a : b; }
#ifdef __AVX512F__                                                    // compilers do not find the instruction by themselves
    INLINE V<float> operator()(V<float> a, V<float> b) const {        // of _mm512_max_ps gcc 12 warns, in its own header
        return (V<float>)_mm512_maskz_max_ps(0xffff, (__m512)a, (__m512)b);
    }
#elif defined(__AVX2__)
    INLINE V<float> operator()(V<float> a, V<float> b) const { return (V<float>)_mm256_max_ps((__m256)a, (__m256)b); }
#endif
};
constexpr Larger larger;
constexpr auto smaller = [](auto a, auto b) { return a < b ? a : b; };

template <class T> INLINE V<T> roots(V<T> v) {
    for (int k = 0; k < lanes<T>; k++) v[k] = std::sqrt(v[k]);
    return v;
}

// All lanes into one number, by f: halves onto each other until two lanes are left.
template <class A, size_t... k, class F> INLINE auto halves(A v, std::index_sequence<k...>, F f) {
    return f(__builtin_shufflevector(v, v, k...), __builtin_shufflevector(v, v, (k + sizeof...(k))...));
}
template <class A, class F> INLINE auto fold(A v, F f) {
    constexpr int n = sizeof(v) / sizeof(v[0]);
    if constexpr (n == 2) return f(v[0], v[1]);
    else return fold(halves(v, std::make_index_sequence<n / 2>(), f), f);
}

// Whether a mask holds in every lane.
template <class T> INLINE bool everywhere(I<T> mask) {
#if defined(__AVX512BW__)
    return _mm512_movepi8_mask((__m512i)mask) == ~0ull;
#elif defined(__AVX2__)
    return _mm256_movemask_epi8((__m256i)mask) == -1;
#else
    return fold(mask, [](auto a, auto b) { return a & b; });
#endif
}

#if defined(__AVX2__) && !defined(__AVX512F__)
// For each choice of eight lanes, where to find those that were chosen: eight bytes.
struct Chosen {
    uint64_t lanes[256];
    constexpr Chosen() : lanes() {
        for (int mask = 0; mask < 256; mask++)
            for (int k = 0, n = 0; k < 8; k++)
                if (mask >> k & 1) lanes[mask] |= uint64_t(k) << 8 * n++;
    }
};
constexpr Chosen chosen;
#endif

// Appends the lanes of v chosen by keep, in order; may write a whole vector.  Returns how many were kept.
template <class T> INLINE long pack(T* to, V<T> v, I<T> keep) {
#ifdef __AVX512F__
    if constexpr (sizeof(T) == 4) {
        auto k = _mm512_movepi32_mask((__m512i)keep);
        put<T>(to, (V<T>)_mm512_maskz_compress_ps(k, (__m512)v));
        return __builtin_popcount(k);
    } else {
        auto k = _mm512_movepi64_mask((__m512i)keep);
        put<T>(to, (V<T>)_mm512_maskz_compress_pd(k, (__m512d)v));
        return __builtin_popcount(k);
    }
#else
#ifdef __AVX2__
    if constexpr (sizeof(T) == 4) {
        auto k = _mm256_movemask_ps((__m256)keep);
        __m256i order = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(chosen.lanes[k]));
        put<T>(to, (V<T>)_mm256_permutevar8x32_epi32((__m256i)v, order));
        return __builtin_popcount(k);
    }
#endif
    long n = 0;
    for (int k = 0; k < lanes<T>; k++) to[n] = v[k], n -= keep[k];
    return n;
#endif
}

// Integers to the width of T, doubling (GCC 12 takes a longer step lane by lane).
template <class E, class T, class B> INLINE I<T> widen(B v) {
    if constexpr (sizeof(E) == sizeof(T)) return (I<T>)v;
    else {
        using D = std::conditional_t<sizeof(E) == 1, int16_t, std::conditional_t<sizeof(E) == 2, int32_t, int64_t>>;
        return widen<D, T>(__builtin_convertvector(v, typename vec<D, 2 * sizeof(B)>::type));
    }
}

}  // namespace
