// The number formats of tensors: float32 and float64 as they are, float16 and bfloat16 decoded into float32 and rounded
// back.  load and store move one vector of a row, also where the row ends within it.
#pragma once

#include "vectors.h"

namespace rsoftmax {

struct float16 { uint16_t bits; };
struct bfloat16 { uint16_t bits; };

namespace {

template <class S> using Compute = std::conditional_t<sizeof(S) == 2, float, S>;   // the type to compute in
using F = V<float>;
using U = vec<uint32_t, bytes>::type;
using H = vec<uint16_t, bytes / 2>::type;

template <class S> struct Raw { using type = V<S>; };                  // a vector as it lies in memory
template <> struct Raw<float16> { using type = H; };
template <> struct Raw<bfloat16> { using type = H; };

INLINE V<float> decode(V<float> v, float) { return v; }
INLINE V<double> decode(V<double> v, double) { return v; }
INLINE F decode(H v, bfloat16) { return (F)(__builtin_convertvector(v, U) << 16); }
INLINE V<float> encode(V<float> v, float) { return v; }
INLINE V<double> encode(V<double> v, double) { return v; }
INLINE H encode(F v, bfloat16) {                                      // round to nearest even
    U u = (U)v, r = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
    return __builtin_convertvector((U)(v == v ? (I<float>)r : (I<float>)U{} + 0x7fc0), H);
}
#if defined(__AVX512F__)
INLINE F decode(H v, float16) { return (F)_mm512_maskz_cvtph_ps(0xffff, (__m256i)v); }
INLINE H encode(F v, float16) { return (H)_mm512_maskz_cvtps_ph(0xffff, (__m512)v, _MM_FROUND_TO_NEAREST_INT); }
#elif defined(__F16C__)
INLINE F decode(H v, float16) { return (F)_mm256_cvtph_ps((__m128i)v); }
INLINE H encode(F v, float16) { return (H)_mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT); }
#else
INLINE F decode(H v, float16) {                                       // rebias by a product: exact, denormals too
    U u = __builtin_convertvector(v, U), body = (u & 0x7fff) << 13, sign = (u & 0x8000) << 16;
    U number = (U)((F)body * 0x1p112f), special = body | 0x7f800000;
    return (F)((body >= (0x7c00u << 13) ? special : number) | sign);
}
INLINE H encode(F v, float16) {
    U u = (U)v, sign = u & 0x80000000, body = u ^ sign;
    U normal = (body - (112u << 23) + 0xfff + ((body >> 13) & 1)) >> 13;
    U small = (U)((F)body + 0.5f) - (126u << 23);                     // adding 1/2 shifts a denormal into place
    U big = body > 0x7f800000u ? U{} + 0x7e00 : U{} + 0x7c00;
    U r = body < (113u << 23) ? small : body >= (143u << 23) ? big : normal;
    return __builtin_convertvector(r | (sign >> 16), H);
}
#endif

// The first `size` bytes of a vector; the others are zero when loaded, and are not stored.
template <int piece> INLINE void copy_pieces(char* to, const char* from, long size) {   // faster than memcpy of any size
    if (size & piece) {
        memcpy(to, from, piece);
        to += piece;
        from += piece;
    }
    if constexpr (piece > 2) copy_pieces<piece / 2>(to, from, size);
}
template <class R> NOINLINE R load_pieces(const void* p, long size) {
    R raw{};
    copy_pieces<sizeof(R) / 2>((char*)&raw, (const char*)p, size);
    return raw;
}
template <class R> NOINLINE void store_pieces(void* p, R raw, long size) {
    copy_pieces<sizeof(R) / 2>((char*)p, (const char*)&raw, size);
}
#if defined(__SANITIZE_ADDRESS__) || !defined(__AVX2__)               // the sanitizer does not understand masked loads
template <class R> INLINE R load_end(const void* p, long size) { return load_pieces<R>(p, size); }
template <class R> INLINE void store_end(void* p, R raw, long size) { store_pieces<R>(p, raw, size); }
#elif defined(__AVX512BW__)
INLINE uint64_t first_bytes(long count) { return ~uint64_t(0) >> (64 - count); }
template <class R> INLINE R load_end(const void* p, long size) {
    if constexpr (sizeof(R) == 64) return (R)_mm512_maskz_loadu_epi8(first_bytes(size), p);
    else return (R)_mm256_maskz_loadu_epi8(first_bytes(size), p);
}
template <class R> INLINE void store_end(void* p, R raw, long size) {
    if constexpr (sizeof(R) == 64) _mm512_mask_storeu_epi8(p, first_bytes(size), (__m512i)raw);
    else _mm256_mask_storeu_epi8(p, first_bytes(size), (__m256i)raw);
}
#else                                                                 // masks are for four bytes: not for half precision
INLINE __m256i first_bytes(long count) { return (__m256i)(iota<float>() < int(count / 4)); }
template <class R> INLINE R load_end(const void* p, long size) {
    if constexpr (sizeof(R) == 32) return (R)_mm256_maskload_epi32((const int*)p, first_bytes(size));
    else return load_pieces<R>(p, size);
}
template <class R> INLINE void store_end(void* p, R raw, long size) {
    if constexpr (sizeof(R) == 32) _mm256_maskstore_epi32((int*)p, first_bytes(size), (__m256i)raw);
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

}  // namespace
}  // namespace rsoftmax
