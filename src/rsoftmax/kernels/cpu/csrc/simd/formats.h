// The number formats of tensors: float32 and float64 as they are, float16 and bfloat16 decoded into float32 and
// rounded back.  load and store move one vector of a row, also where the row ends within it.
#pragma once

#include "vectors.h"

namespace rsoftmax {

struct float16 { uint16_t bits; };
struct bfloat16 { uint16_t bits; };

namespace {

// The type to compute in.
template <class S> using Compute = std::conditional_t<sizeof(S) == 2, float, S>;
using FloatVec = Vec<float>;
using UintVec = vec<uint32_t, bytes>::type;
using HalfVec = vec<uint16_t, bytes / 2>::type;

// A vector as it lies in memory.
template <class S> struct Raw { using type = Vec<S>; };
template <> struct Raw<float16> { using type = HalfVec; };
template <> struct Raw<bfloat16> { using type = HalfVec; };

INLINE Vec<float> decode(Vec<float> v, float) { return v; }
INLINE Vec<double> decode(Vec<double> v, double) { return v; }
INLINE FloatVec decode(HalfVec v, bfloat16) { return (FloatVec)(__builtin_convertvector(v, UintVec) << 16); }
INLINE Vec<float> encode(Vec<float> v, float) { return v; }
INLINE Vec<double> encode(Vec<double> v, double) { return v; }
// Round to nearest even.
INLINE HalfVec encode(FloatVec v, bfloat16) {
    UintVec u = (UintVec)v, r = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
    return __builtin_convertvector((UintVec)(v == v ? (IntVec<float>)r : (IntVec<float>)UintVec{} + 0x7fc0), HalfVec);
}
#ifdef AVX512_VECTORS
INLINE FloatVec decode(HalfVec v, float16) { return (FloatVec)_mm512_maskz_cvtph_ps(0xffff, (__m256i)v); }
INLINE HalfVec encode(FloatVec v, float16) {
    return (HalfVec)_mm512_maskz_cvtps_ph(0xffff, (__m512)v, _MM_FROUND_TO_NEAREST_INT);
}
#elif defined(AVX2_VECTORS)
INLINE FloatVec decode(HalfVec v, float16) { return (FloatVec)_mm256_cvtph_ps((__m128i)v); }
INLINE HalfVec encode(FloatVec v, float16) { return (HalfVec)_mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT); }
#else
// Rebias by a product: exact, denormals too.
INLINE FloatVec decode(HalfVec v, float16) {
    UintVec u = __builtin_convertvector(v, UintVec), body = (u & 0x7fff) << 13, sign = (u & 0x8000) << 16;
    UintVec number = (UintVec)((FloatVec)body * 0x1p112f), special = body | 0x7f800000;
    return (FloatVec)((body >= (0x7c00u << 13) ? special : number) | sign);
}
INLINE HalfVec encode(FloatVec v, float16) {
    UintVec u = (UintVec)v, sign = u & 0x80000000, body = u ^ sign;
    UintVec normal = (body - (112u << 23) + 0xfff + ((body >> 13) & 1)) >> 13;
    // Adding 1/2 shifts a denormal into place.
    UintVec small = (UintVec)((FloatVec)body + 0.5f) - (126u << 23);
    UintVec big = body > 0x7f800000u ? UintVec{} + 0x7e00 : UintVec{} + 0x7c00;
    UintVec r = body < (113u << 23) ? small : body >= (143u << 23) ? big : normal;
    return __builtin_convertvector(r | (sign >> 16), HalfVec);
}
#endif

// The first `size` bytes of a vector; the others are zero when loaded, and are not stored.
// Faster than memcpy of any size.
template <int piece> INLINE void copy_pieces(char* to, const char* from, long size) {
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
#if defined(__SANITIZE_ADDRESS__) || !(defined(AVX512_VECTORS) || defined(AVX2_VECTORS))
// Also for the address sanitizer, which does not understand masked loads.
template <class R> INLINE R load_end(const void* p, long size) { return load_pieces<R>(p, size); }
template <class R> INLINE void store_end(void* p, R raw, long size) { store_pieces<R>(p, raw, size); }
#elif defined(AVX512_VECTORS)
INLINE uint64_t first_bytes(long count) { return ~uint64_t(0) >> (64 - count); }
template <class R> INLINE R load_end(const void* p, long size) {
    if constexpr (sizeof(R) == 64) return (R)_mm512_maskz_loadu_epi8(first_bytes(size), p);
    else return (R)_mm256_maskz_loadu_epi8(first_bytes(size), p);
}
template <class R> INLINE void store_end(void* p, R raw, long size) {
    if constexpr (sizeof(R) == 64) _mm512_mask_storeu_epi8(p, first_bytes(size), (__m512i)raw);
    else _mm256_mask_storeu_epi8(p, first_bytes(size), (__m256i)raw);
}
#else
// These masks are for four bytes: not for half precision.
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
template <class S, class T = Compute<S>> INLINE Vec<T> load(const S* p, long left) {
    using R = typename Raw<S>::type;
    if (__builtin_expect(left < lanes<T>, 0)) return decode(load_end<R>(p, left * sizeof(S)), S());
    R raw;
    memcpy(&raw, p, sizeof raw);
    return decode(raw, S());
}
template <class S, class T = Compute<S>> INLINE void store(S* p, Vec<T> v, long left) {
    auto raw = encode(v, S());
    if (__builtin_expect(left < lanes<T>, 0)) store_end(p, raw, left * sizeof(S));
    else memcpy(p, &raw, sizeof raw);
}

}  // namespace
}  // namespace rsoftmax
