// The number formats of tensors: float32 and float64 as they are, float16 and bfloat16 read into float32 and rounded
// back.  load and store move one vector of a row, also where the row ends within it.
#pragma once

#include "vectors.h"

namespace {

struct half { uint16_t bits; };
struct bfloat { uint16_t bits; };
template <class S> using Compute = std::conditional_t<sizeof(S) == 2, float, S>;   // the type to compute in
using F = V<float>;
using U = vec<uint32_t, bytes>::type;
using H = vec<uint16_t, bytes / 2>::type;

template <class S> struct Raw { using type = V<S>; };                  // a vector as it lies in memory
template <> struct Raw<half> { using type = H; };
template <> struct Raw<bfloat> { using type = H; };

INLINE V<float> decode(V<float> v, float) { return v; }
INLINE V<double> decode(V<double> v, double) { return v; }
INLINE F decode(H v, bfloat) { return (F)(__builtin_convertvector(v, U) << 16); }
INLINE F decode(H v, half) {                                          // rebias by a product: exact, denormals too
    U u = __builtin_convertvector(v, U), body = (u & 0x7fff) << 13, sign = (u & 0x8000) << 16;
    U number = (U)((F)body * 0x1p112f), special = body | 0x7f800000;
    return (F)((body >= (0x7c00u << 13) ? special : number) | sign);
}
INLINE V<float> encode(V<float> v, float) { return v; }
INLINE V<double> encode(V<double> v, double) { return v; }
INLINE H encode(F v, bfloat) {                                        // round to nearest even
    U u = (U)v, r = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
    return __builtin_convertvector((U)(v == v ? (I<float>)r : (I<float>)U{} + 0x7fc0), H);
}
INLINE H encode(F v, half) {
    U u = (U)v, sign = u & 0x80000000, body = u ^ sign;
    U normal = (body - (112u << 23) + 0xfff + ((body >> 13) & 1)) >> 13;
    U small = (U)((F)body + 0.5f) - (126u << 23);                     // adding 1/2 shifts a denormal into place
    U big = body > 0x7f800000u ? U{} + 0x7e00 : U{} + 0x7c00;
    U r = body < (113u << 23) ? small : body >= (143u << 23) ? big : normal;
    return __builtin_convertvector(r | (sign >> 16), H);
}

// The first `size` bytes of a vector; the others are zero when read, and are not written.
template <int piece> INLINE void copy_pieces(char* to, const char* from, long size) {   // faster than memcpy of any size
    if (size & piece) memcpy(to, from, piece), to += piece, from += piece;
    if constexpr (piece > 2) copy_pieces<piece / 2>(to, from, size);
}
template <class R> __attribute__((noinline)) R load_pieces(const void* p, long size) {
    R raw{};
    copy_pieces<sizeof(R) / 2>((char*)&raw, (const char*)p, size);
    return raw;
}
template <class R> __attribute__((noinline)) void store_pieces(void* p, R raw, long size) {
    copy_pieces<sizeof(R) / 2>((char*)p, (const char*)&raw, size);
}
#if defined(__SANITIZE_ADDRESS__) || !defined(__AVX2__)               // the sanitizer does not understand masked loads
template <class R> INLINE R load_end(const void* p, long size) { return load_pieces<R>(p, size); }
template <class R> INLINE void store_end(void* p, R raw, long size) { store_pieces<R>(p, raw, size); }
#elif defined(__AVX512BW__)
INLINE uint64_t first(long count) { return ~uint64_t(0) >> (64 - count); }
template <class R> INLINE R load_end(const void* p, long size) {
    if constexpr (sizeof(R) == 64) return (R)_mm512_maskz_loadu_epi8(first(size), p);
    else return (R)_mm256_maskz_loadu_epi8(first(size), p);
}
template <class R> INLINE void store_end(void* p, R raw, long size) {
    if constexpr (sizeof(R) == 64) _mm512_mask_storeu_epi8(p, first(size), (__m512i)raw);
    else _mm256_mask_storeu_epi8(p, first(size), (__m256i)raw);
}
#else                                                                 // masks are for four bytes: not for half precision
INLINE __m256i first(long count) { return (__m256i)(iota<float>() < int(count / 4)); }
template <class R> INLINE R load_end(const void* p, long size) {
    if constexpr (sizeof(R) == 32) return (R)_mm256_maskload_epi32((const int*)p, first(size));
    else return load_pieces<R>(p, size);
}
template <class R> INLINE void store_end(void* p, R raw, long size) {
    if constexpr (sizeof(R) == 32) _mm256_maskstore_epi32((int*)p, first(size), (__m256i)raw);
    else store_pieces<R>(p, raw, size);
}
#endif

// One vector of a row of which `left` entries remain; lanes beyond them are zero, and are not stored.
template <class S, class T = Compute<S>> INLINE V<T> load(const S* p, long left) {
    using R = typename Raw<S>::type;
    if (__builtin_expect(left < lanes<T>, 0)) return decode(load_end<R>(p, left * sizeof(S)), S());
    R raw;
    memcpy(&raw, p, sizeof raw);
    return decode(raw, S());
}
template <class S, class T = Compute<S>> INLINE void store(S* p, V<T> v, long left) {
    auto raw = encode(v, S());
    if (__builtin_expect(left < lanes<T>, 0)) store_end(p, raw, left * sizeof(S));
    else memcpy(p, &raw, sizeof raw);
}

// Calls f(i, left) for each vector of n entries, of which `left` remain from entry i on: as good as a constant for all but
// the last vector, which spares them what the end of a row takes.
template <class T, class F> INLINE void each_vector(long n, F f) {
    long i = 0;
    for (; i + lanes<T> <= n; i += lanes<T>) f(i, lanes<T>);
    if (i < n) f(i, n - i);
}

}  // namespace
