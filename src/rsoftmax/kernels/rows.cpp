// Sparse probability mappings over the rows of a matrix, forward and backward.
//
// Written once with GCC/Clang vector extensions and compiled once per instruction set (see setup.py);
// Python loads the library that fits the CPU, so there is no dispatch in here.
//
// Removed entries are read as -inf, and so is the padding that completes the last vector of a row: they are
// smaller than every kept entry, weigh nothing, and only shift ranks.

#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <dlfcn.h>
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>
#ifdef __AVX512F__
#include <immintrin.h>
#endif

namespace {

// ---------------------------------------------------------------------------------------------- vectors

#if defined(__AVX512F__)
constexpr int bytes = 64;
#elif defined(__AVX2__)
constexpr int bytes = 32;
#else
constexpr int bytes = 16;
#endif
#define INLINE inline __attribute__((always_inline))

template <class E, int B> struct vec {
    typedef E type __attribute__((vector_size(B)));
    typedef E loose __attribute__((vector_size(B), aligned(1), may_alias));
};
template <class T> using Int = std::conditional_t<sizeof(T) == 4, int32_t, int64_t>;
template <class T> constexpr long lanes = bytes / sizeof(T);
template <class T> using V = typename vec<T, bytes>::type;          // values
template <class T> using I = typename vec<Int<T>, bytes>::type;     // masks (0 or -1) and counts
template <class T> constexpr T inf = std::numeric_limits<T>::infinity();

template <class T> INLINE V<T> splat(T a) { return a - V<T>{}; }
template <class T> INLINE V<T> at(const T* p) { return *(const typename vec<T, bytes>::loose*)p; }
template <class T> INLINE void put(T* p, V<T> v) { *(typename vec<T, bytes>::loose*)p = v; }

template <class T> INLINE auto bits(T v) { std::make_unsigned_t<Int<T>> b; memcpy(&b, &v, sizeof b); return b; }
template <class T, class B> INLINE T number(B b) { T v; memcpy(&v, &b, sizeof v); return v; }

template <class T, size_t... k> INLINE I<T> iota_(std::index_sequence<k...>) { return I<T>{Int<T>(k)...}; }
template <class T> INLINE I<T> iota() { return iota_<T>(std::make_index_sequence<lanes<T>>()); }

template <class A, size_t... k, class F> INLINE auto halves(A v, std::index_sequence<k...>, F f) {
    return f(__builtin_shufflevector(v, v, k...), __builtin_shufflevector(v, v, (k + sizeof...(k))...));
}
template <class A, class F> INLINE auto fold(A v, F f) {              // all lanes into one number
    constexpr int n = sizeof(v) / sizeof(v[0]);
    if constexpr (n == 2) return f(v[0], v[1]);
    else return fold(halves(v, std::make_index_sequence<n / 2>(), f), f);
}
constexpr auto plus = [](auto a, auto b) { return a + b; };
constexpr auto larger = [](auto a, auto b) { return a > b ? a : b; };
constexpr auto smaller = [](auto a, auto b) { return a < b ? a : b; };

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
    long n = 0;
    for (int k = 0; k < lanes<T>; k++) to[n] = v[k], n -= keep[k];
    return n;
#endif
}

// A sum that stays accurate for a million terms: short runs in lanes, their totals in double, what those
// round off kept too (Knuth's two-sum).
template <class T> struct Sum {
    V<T> run{};
    double total = 0, rest = 0;
    INLINE void add(V<T> v, long i) {
        run += v;
        if ((i + lanes<T>) % ((sizeof(T) == 4 ? 32 : 8) * lanes<T>) == 0) {
            double r = fold(run, plus), t = total + r, b = t - total;
            rest += (total - (t - b)) + (r - b), total = t, run = V<T>{};
        }
    }
    INLINE double get() const { return total + (rest + double(fold(run, plus))); }
};

// exp(d) 2^lift for d <= 0, within 2 ulp: d = k ln 2 + r, |r| <= ln 2 / 2.  The lift keeps every result normal until
// the division by the sum takes it off again, so underflow is gradual and rounds once.  NaN stays NaN.
template <class T> struct Exp;
template <> struct Exp<float> {
    static constexpr int mantissa = 23;
    static constexpr float low = -104.f, magic = 0x1.8p23f + 64, hi = 0.693359375f, lo = -2.12194440e-4f,
        c[] = {1.38145964699801597e-3f, 8.36871685026245498e-3f, 4.16683880721639183e-2f, 1.66665206321606605e-1f,
               4.99999934477993070e-1f, 1.f, 1.f};
};
template <> struct Exp<double> {
    static constexpr int mantissa = 52;
    static constexpr double low = -746., magic = 0x1.8p52 + 512, hi = 6.93145751953125e-1, lo = 1.42860682030941723e-6,
        c[] = {2.46109072753049769e-8, 2.76208570640526757e-7, 2.75587254703334172e-6, 2.48015205662007863e-5,
               1.98412683909614882e-4, 1.38888889169161141e-3, 8.33333333390043603e-3, 4.16666666666255134e-2,
               1.66666666666659938e-1, 5.00000000000000117e-1, 1., 1.};
};
template <class T> INLINE V<T> lifted_exp(V<T> d) {
    using C = Exp<T>;
    d = d < C::low ? splat<T>(C::low) : d;
    V<T> z = d * T(1.4426950408889634) + C::magic;                    // its low bits hold k + lift
    V<T> k = z - C::magic, r = d - k * C::hi - k * C::lo, q = splat(C::c[0]);
    for (size_t i = 1; i < std::size(C::c); i++) q = q * r + C::c[i];
    V<T> e = (V<T>)((I<T>)q + ((I<T>)z << C::mantissa));              // straight into the exponent
    return d == d ? e : d;                                            // where a NaN's payload must not end up
}

// -------------------------------------------------------------------------------------- storage formats

struct half { uint16_t bits; };
struct bfloat { uint16_t bits; };
template <class S> using Compute = std::conditional_t<sizeof(S) == 2, float, S>;
using F = V<float>;
using U = vec<uint32_t, bytes>::type;
using H = vec<uint16_t, bytes / 2>::type;

template <class S> struct Raw { using type = V<S>; };
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

// One vector of a row of which `left` entries remain; lanes beyond them are zero, and are not stored.
#if defined(__AVX512BW__) && !defined(__SANITIZE_ADDRESS__)           // which does not see masked loads
INLINE uint64_t first(long count) { return ~uint64_t(0) >> (64 - count); }
template <class R> INLINE R load_end(const void* p, long size) {
    if constexpr (sizeof(R) == 64) return (R)_mm512_maskz_loadu_epi8(first(size), p);
    else return (R)_mm256_maskz_loadu_epi8(first(size), p);
}
template <class R> INLINE void store_end(void* p, R raw, long size) {
    if constexpr (sizeof(R) == 64) _mm512_mask_storeu_epi8(p, first(size), (__m512i)raw);
    else _mm256_mask_storeu_epi8(p, first(size), (__m256i)raw);
}
#else
template <class R> __attribute__((noinline)) R load_end(const void* p, long size) {
    R raw{};
    memcpy(&raw, p, size);
    return raw;
}
template <class R> __attribute__((noinline)) void store_end(void* p, R raw, long size) { memcpy(p, &raw, size); }
#endif
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

// ------------------------------------------------------------------------------------------------- rows

struct Job {                                                          // every pointer is to a first row
    long op, dtype, rows, n;
    const char* x; long x_stride;                                     // strides in elements
    const uint8_t* mask; long mask_step; const int64_t* mask_row;      // where the mask of each row begins
    const double* param; long param_step;
    char* p;                                                          // output of forward, input of backward
    double* state;                                                    // one State per row, or none
    const char* g; char* dx; double* dparam; long detach;             // backward only
    long threads;
    std::atomic<long> next{0}, failed{0};
};
enum Op { T_SOFTMAX, R_SOFTMAX, SPARSEMAX, ENTMAX15 };

struct State { double m, lo, hi, z, n, f; };                          // what backward needs to know of a row

template <class T> struct Two { T lo, hi; };

template <class T> INLINE long padded(long n) { return (n + lanes<T> - 1) / lanes<T> * lanes<T>; }

// Integers to wider ones, doubling (GCC 12 takes a longer step lane by lane).
template <class E, class T, class B> INLINE I<T> widen(B v) {
    if constexpr (sizeof(E) == sizeof(T)) return (I<T>)v;
    else {
        using D = std::conditional_t<sizeof(E) == 1, int16_t, std::conditional_t<sizeof(E) == 2, int32_t, int64_t>>;
        return widen<D, T>(__builtin_convertvector(v, typename vec<D, 2 * sizeof(B)>::type));
    }
}

// A row of x: vector i of it, removed entries and padding as -inf.
template <class S, class T = Compute<S>> struct Row {
    const S* x;
    const uint8_t* mask;
    long n, step;
    Row(const Job& job, long row)
        : x((const S*)job.x + row * job.x_stride), mask(job.mask ? job.mask + job.mask_row[row] : nullptr), n(job.n),
          step(job.mask_step) {}
    INLINE V<T> operator()(long i) const {
        V<T> v = load(x + i, n - i);
        if (mask) v = masked(v, i);
        if (n - i < lanes<T>) v = iota<T>() < Int<T>(n - i) ? v : splat(-inf<T>);
        return v;
    }
    using Bytes = typename vec<uint8_t, lanes<T>>::type;
    INLINE V<T> masked(V<T> v, long i) const {
        bool whole = step == 1 && n - i >= lanes<T>;
        using Loose = typename vec<uint8_t, lanes<T>>::loose;
        Bytes b = __builtin_expect(whole, 1) ? *(const Loose*)(mask + i) : scattered(i);
        return widen<uint8_t, T>(b) != 0 ? v : splat(-inf<T>);
    }
    __attribute__((noinline)) Bytes scattered(long i) const {
        Bytes b{};
        for (long k = 0; k < std::min(n - i, lanes<T>); k++) b[k] = mask[(i + k) * step];
        return b;
    }
};

// -------------------------------------------------------------------------------------------- selection

// Counts for each of s[0..m) how many of y[0..n) are less.  What has at most j entries below it is at most the
// entry of rank j (from 0), and what has more is greater; so if s holds that entry it is the largest of the
// first kind, and if not, it lies between the two kinds.  Exact with ties.  m n steps: for few entries.
template <class T> struct Ranked {
    V<T> low = splat(-inf<T>), mid = splat(-inf<T>), high = splat(inf<T>);
    INLINE void add(V<T> v, const T* y, long n, long j, long k) {
        I<T> less{};
#pragma GCC unroll 8
        for (long l = 0; l < n; l++) less -= y[l] < v;
        low = larger(low, less <= Int<T>(j) ? v : splat(-inf<T>));
        mid = larger(mid, less <= Int<T>(k) ? v : splat(-inf<T>));
        high = smaller(high, less > Int<T>(k) ? v : splat(inf<T>));
    }
};

// One vector of entries of y[0..n), evenly spaced so that sorted rows are sampled well too.
template <class T, size_t... k> INLINE V<T> sample(const T* y, long n, std::index_sequence<k...>) {
    long stride = n / lanes<T>;
    return V<T>{y[k * stride + stride / 2]...};
}

struct Split { long le, in; };
// Packs the entries of y strictly between a and b into to, and counts those <= a.
template <class T> INLINE Split split(const T* y, long n, T a, T b, T* to) {
    I<T> above{};
    long in = 0;
    for (long i = 0; i < n; i += lanes<T>) {
        V<T> v = at(y + i);
        I<T> gt = v > a;
        above -= gt;
        in += pack(to + in, v, gt & (v < b));
    }
    return {n - fold(above, plus), in};
}

template <class T> T least(const T* y, long n, T above, T otherwise) {   // smallest entry > above
    V<T> best = splat(otherwise);
    for (long i = 0; i < n; i += lanes<T>) {
        V<T> v = at(y + i);
        best = smaller(best, v > above ? v : splat(otherwise));
    }
    return fold(best, smaller);
}

// Rank j by radix: the bits of a float, the negative ones reversed, order as the numbers do.  One byte is
// fixed per pass, whatever the values: linear always.
template <class T> T radix(const T* y, long n, long j) {
    using B = std::make_unsigned_t<Int<T>>;
    constexpr B sign = B(1) << (8 * sizeof(T) - 1);
    B prefix = 0, known = 0;
    for (int shift = 8 * sizeof(T) - 8; shift >= 0; shift -= 8) {
        long count[256] = {}, digit = 0;
        for (long i = 0; i < n; i++) {
            B b = bits(y[i]), key = b & sign ? ~b : b | sign;
            if ((key & known) == prefix) count[(key >> shift) & 255]++;
        }
        while (digit < 255 && j >= count[digit]) j -= count[digit++];
        prefix |= B(digit) << shift, known |= B(255) << shift;
    }
    return number<T>(prefix & sign ? prefix ^ sign : ~prefix);
}

// The entries of rank j and j + 1 of y[0..n), which is followed by -inf to the end of a vector; `next` stands
// for rank n.  A few of the entries propose two of them, a < b, that should enclose rank j; counting the
// entries <= a and between tells for certain where rank j is, and only the open interval that holds it is
// searched further.  What follows the last entry of (a, b) is b itself, for b is an entry.  The two buffers
// take turns.  Bad proposals cost passes, and after six rows' worth of them the radix takes over.
template <class T> Two<T> select(const T* y, long n, long j, T next, T* to, T* other) {
    constexpr long few = 32;
    for (long work = 0, limit = 6 * n;; work += n) {
        Ranked<T> r;
        if (n <= few) {
            for (long i = 0; i < n; i += lanes<T>) r.add(at(y + i), y, n, j, j + 1);
            return {fold(r.low, larger), j + 1 < n ? fold(r.mid, larger) : next};
        }
        if (work > limit) {                                           // the samples mislead: give up guessing
            T lo = radix(y, n, j);
            return {lo, j + 1 < split(y, n, lo, inf<T>, to).le ? lo : least(y, n, lo, next)};
        }
        T s[lanes<T>];                                                // ranks within a sample, with a margin
        put(s, sample(y, n, std::make_index_sequence<lanes<T>>()));
        float f = (j + .5f) / n, rank = f * lanes<T> - .5f, margin = .6f * std::sqrt(lanes<T> * f * (1 - f)) + .5f;
        r.add(at(s), s, lanes<T>, std::floor(rank - margin), std::ceil(rank + margin) - 1);
        T a = fold(r.low, larger), b = fold(r.high, smaller);
        if (a == -inf<T> && b == inf<T>) a = fold(at(s), larger);     // the sample is mostly ties: take those apart
        Split c = split(y, n, a, b, to);
        if (j < c.le) {                                               // at a, or below
            T above = j + 1 < c.le ? a : least(y, n, a, next);
            c = split(y, n, -inf<T>, a, to);
            if (j >= c.le + c.in) return {a, above};
            next = a;
        } else if (j < c.le + c.in) {
            if (b < inf<T>) next = b;
        } else {                                                      // at b, or above
            c = split(y, n, b, inf<T>, to);
            if (j < c.le) return {b, j + 1 < c.le ? b : least(y, n, b, next)};
        }
        put(to + c.in, splat(-inf<T>));
        y = to, n = c.in, j -= c.le;
        std::swap(to, other);
    }
}

// ---------------------------------------------------------------------------------------------- weights

// p = w e^(x-m) / sum.  Each of these gives w for a vector, where it is not zero, and its derivative there.
// Weights may carry any common factor: a power of two near 1/span keeps them in range and costs no rounding.
template <class T> T scale(T span) {
    constexpr int mantissa = Exp<T>::mantissa, bias = std::numeric_limits<T>::max_exponent - 1;
    return number<T>(std::max<Int<T>>(1, 2 * bias - Int<T>(bits(span) >> mantissa)) << mantissa);
}
template <class T> struct Dense {                                     // softmax
    static constexpr T slope = 0;
    INLINE I<T> on(V<T> x, V<T>) const { return x > -inf<T>; }
    INLINE V<T> operator()(V<T>, V<T>) const { return splat<T>(1); }
};
template <class T> struct Peak {                                      // the limit of a vanishing span
    static constexpr T slope = 0;
    INLINE I<T> on(V<T>, V<T> d) const { return d == 0; }
    INLINE V<T> operator()(V<T>, V<T> d) const { return d == 0 ? splat<T>(1) : V<T>{}; }
};
template <class T> struct Hinge {                                     // d + t > 0 exactly where d > -t
    T t, slope = scale(t);
    INLINE I<T> on(V<T>, V<T> d) const { return d > -t; }
    INLINE V<T> operator()(V<T> x, V<T> d) const { return on(x, d) ? (d + t) * slope : V<T>{}; }
};
template <class T> struct Quantile {                                  // x - theta as (x - hi) + (hi - theta):
    T lo, hi, slope, rest;                                            // both >= 0, not both 0, where x > lo
    Quantile(T lo, T hi, T m, double f)
        : lo(lo), hi(hi), slope(scale<T>(m - lo)), rest(T((1 - f) * (double(hi * slope) - double(lo * slope)))) {}
    INLINE I<T> on(V<T> x, V<T>) const { return x > lo; }
    INLINE V<T> operator()(V<T> x, V<T> d) const { return on(x, d) ? (x * slope - hi * slope) + rest : V<T>{}; }
};

// Calls f with the weights that a row's parameter asks for.
template <class T, class F> INLINE void with_weights(const Job& job, double param, const State& s, F f) {
    T m = s.m, lo = s.lo, hi = s.hi;
    if (job.op == T_SOFTMAX) {
        if (T(param) == inf<T>) f(Dense<T>());
        else if (T(param) > 0) f(Hinge<T>{T(param)});
        else f(Peak<T>());
    } else if (param == 0) f(Dense<T>());
    else if (lo == m) f(Peak<T>());
    else f(Quantile<T>(lo, hi, m, s.f));
}

// The root tau of sum [z - tau]_+^q = 1, z = d / q, for q = 1 (sparsemax) and 2 (entmax15), by Newton's method
// on the norm h(tau) = (sum [z - tau]_+^q)^(1/q), which is convex and falling: from the left the steps never
// pass the root, so entries once left behind are out for good, and every step halves the excess h - 1 or the
// slope, so there are few.  Entries with z <= -1 cannot be in the support: the largest, 0, would exceed 1.
template <int q, class T, class X> T simplex(const X& x, long n, T m, T* z) {
    struct Norm {                                                     // what one step needs
        Sum<T> one, two;
        I<T> in{};
        INLINE I<T> add(V<T> v, T tau, long i) {
            I<T> on = v > tau;
            in -= on, v = on ? v - tau : V<T>{};
            one.add(v, i);
            if (q == 2) two.add(v * v, i);
            return on;
        }
    } norm;
    T tau = -1;
    long c = 0, before = n + 1;
    for (long i = 0; i < n; i += lanes<T>) {
        V<T> v = (x(i) - m) * T(1. / q);
        c += pack(z + c, v, norm.add(v, tau, i));
    }
    put(z + c, splat(-inf<T>));
    for (;;) {
        long k = fold(norm.in, plus);
        double h = q == 1 ? norm.one.get() : std::sqrt(norm.two.get());
        T up = q == 1 ? tau + (h - 1) / k : tau + h * (h - 1) / norm.one.get();
        if (q == 1 ? k >= before : !(up > tau)) return up;            // the support, or tau, stands still
        tau = up, before = k, norm = Norm();
        for (long i = 0; i < c; i += lanes<T>) norm.add(at(z + i), tau, i);
    }
}

// ---------------------------------------------------------------------------------- forward and backward

// A row with one value throughout: 0 if nothing is kept, NaN if nothing can be said.
template <class S, class T> void settle(S* p, long n, T value, const Job& job, long row, State s) {
    for (long i = 0; i < n; i += lanes<T>) store(p + i, splat(value), n - i);
    s.n = 0;
    if (job.state) ((State*)job.state)[row] = s;
}

template <class S, class T = Compute<S>> void forward(const Job& job, long row, T* y) {
    Row<S> x(job, row);
    long N = job.n, whole = padded<T>(N);
    auto p = (S*)job.p + row * N;
    double param = job.param[row * job.param_step];
    T* v = std::is_same_v<S, T> ? (T*)p : y;                          // where unnormalised values go

    V<T> top = splat(-inf<T>);
    I<T> gone{}, odd{};
    for (long i = 0; i < N; i += lanes<T>) {
        V<T> a = x(i);
        top = larger(top, a);
        if (job.op == R_SOFTMAX) put(y + i, a), gone -= a == -inf<T>;
        else if (job.op > R_SOFTMAX) odd |= ~(a < inf<T>);
    }
    T m = fold(top, larger);
    State s{m, 0, 0, 0, double(whole - fold(gone, plus)), 0};
    bool valid = job.op == T_SOFTMAX ? param >= 0 : job.op == R_SOFTMAX ? param >= 0 && param <= 1 : true;
    if (valid && m == -inf<T>) {                                      // nothing kept, or nothing but NaN
        for (long i = 0; i < N; i += lanes<T>) odd |= ~(x(i) < inf<T>);
        if (fold(odd, plus) == 0) return settle(p, N, T(0), job, row, s);
    }
    if (!valid || fold(odd, plus) != 0) return settle(p, N, T(NAN), job, row, s);

    if (job.op == SPARSEMAX) {
        T tau = simplex<1>(x, N, m, y);
        for (long i = 0; i < N; i += lanes<T>) store(p + i, larger((x(i) - m) - tau, V<T>{}), N - i);
    } else if (job.op == ENTMAX15) {
        T tau = simplex<2>(x, N, m, y);
        for (long i = 0; i < N; i += lanes<T>) {
            V<T> a = larger((x(i) - m) * T(.5) - tau, V<T>{});
            store(p + i, a * a, N - i);
        }
    } else {
        if (job.op == R_SOFTMAX && param > 0) {
            double rank = param * (s.n - 1), j = std::floor(rank);
            T* a = y + whole + lanes<T>;
            Two<T> r = select<T>(y, N, N - long(s.n) + long(j), m, a, a + whole + lanes<T>);
            s.lo = r.lo, s.hi = r.hi, s.f = rank - j;
        }
        with_weights<T>(job, param, s, [&](auto w) {
            Sum<T> z;
            for (long i = 0; i < N; i += lanes<T>) {
                V<T> a = x(i), d = a - m, e = w(a, d) * lifted_exp<T>(d);
                store(v + i, e, N - i);
                z.add(e, i);
            }
            s.z = z.get();
        });
        T total = T(s.z), inverse = 1 / total;                        // a corrected product is as good as a
        for (long i = 0; i < N; i += lanes<T>) {                      // division: a single entry gets exactly 1
            V<T> e = load(v + i, N - i), q = e * inverse;
            store(p + i, q + (e - q * total) * inverse, N - i);
        }
        if (job.state) ((State*)job.state)[row] = s;
    }
}

template <class S, class T = Compute<S>> void backward(const Job& job, long row) {
    long n = job.n;
    auto p = (const S*)job.p + row * n, g = (const S*)job.g + row * n;
    auto dx = (S*)job.dx + row * n;
    Sum<T> dot, norm;
    if (job.op >= SPARSEMAX) {                                        // dx = q (g - mean of g under q)
        auto q = [&](V<T> v) {
            if (job.op == SPARSEMAX) return v > 0 ? splat<T>(1) : v;
            for (int k = 0; k < lanes<T>; k++) v[k] = std::sqrt(v[k]);
            return v;
        };
        for (long i = 0; i < n; i += lanes<T>) {
            V<T> v = q(load(p + i, n - i));
            norm.add(v, i);
            dot.add(v * load(g + i, n - i), i);
        }
        double total = norm.get();
        T mean = total == 0 ? 0 : dot.get() / total;
        for (long i = 0; i < n; i += lanes<T>)
            store(dx + i, q(load(p + i, n - i)) * (load(g + i, n - i) - mean), n - i);
        return;
    }
    Row<S> x(job, row);
    double param = job.param[row * job.param_step], *dparam = job.dparam ? job.dparam + row : nullptr;
    const State& st = ((State*)job.state)[row];
    for (long i = 0; i < n; i += lanes<T>) dot.add(load(p + i, n - i) * load(g + i, n - i), i);
    T s = dot.get(), m = st.m, lo = st.lo, hi = st.hi;
    auto plain = [&] {                                                // constant weights: the gradient of softmax
        for (long i = 0; i < n; i += lanes<T>) store(dx + i, load(p + i, n - i) * (load(g + i, n - i) - s), n - i);
        if (dparam) *dparam = 0;
    };
    if (st.n == 0) return plain();
    with_weights<T>(job, param, st, [&](auto w) {
        if constexpr (std::is_same_v<decltype(w), Dense<T>> || std::is_same_v<decltype(w), Peak<T>>) return plain();
        else {
            constexpr bool quantile = std::is_same_v<decltype(w), Quantile<T>>;
            // The sum of u h, for theta; for t its equal by sum p h = 0 in which a lone maximum counts exactly nothing.
            auto term = [&](V<T> u, V<T> d) {
                if constexpr (quantile) return u;
                else return (d < 0) & (d > -w.t) ? u * (d / -w.t) : V<T>{};
            };
            constexpr T most = std::numeric_limits<T>::max();
            T unit = T(std::min(w.slope / st.z, double(most)));
            I<T> first{}, second{}, tops{}, index = iota<T>();
            for (long i = 0; i < n; i += lanes<T>, index += Int<T>(lanes<T>)) {
                V<T> v = x(i), d = v - m, h = load(g + i, n - i) - s;
                V<T> u = w.on(v, d) ? lifted_exp<T>(d) * unit : V<T>{};
                u = u > most ? splat(most) : u;                       // a denormal span: finite, so 0 times it is 0
                norm.add(term(u, d) * h, i);
                if (quantile) first = v == lo ? index : first, second = v == hi ? index : second;
                else first = v == m ? index : first, tops -= v == m;
                store(dx + i, (load(p + i, n - i) + u) * h, n - i);
            }
            auto add = [&](long i, double a) { store(dx + i, load(dx + i, 1) + T(a), 1); };
            double A = norm.get();
            if (quantile && !job.detach) {
                add(fold(first, larger), -A * (1 - st.f));
                add(fold(second, larger), -A * st.f);
            } else if (!quantile) {
                long k = fold(tops, plus);
                if (k == 1) add(fold(first, larger), -A);
                else for (long i = 0; i < n; i += lanes<T>)
                    store(dx + i, load(dx + i, n - i) - (x(i) == m ? splat(T(A / k)) : V<T>{}), n - i);
            }
            if (dparam) *dparam = !quantile ? A : job.detach ? 0 : -A * (st.n - 1) * (st.hi - st.lo);
        }
    });
}

// ---------------------------------------------------------------------------------------------- threads

// Scratch stays with its thread: three rows, and a vector of room behind each.
struct Scratch {
    void* memory = nullptr;
    size_t size = 0;
    void* get(size_t need) {
        if (need > size) {
            free(memory);
            memory = aligned_alloc(64, size = (need + 63) / 64 * 64);
            if (!memory) size = 0;
        }
        return memory;
    }
    ~Scratch() { free(memory); }
};
thread_local Scratch scratch;

template <class S> void work(Job& job) {
    using T = Compute<S>;
    auto y = (T*)scratch.get((3 * padded<T>(job.n) + 4 * lanes<T>) * sizeof(T));
    if (!y) { job.failed = 1; return; }
    long chunk = 1 + 16384 / (job.n + 1);
    for (long from; (from = job.next.fetch_add(chunk)) < job.rows;)
        for (long row = from; row < std::min(from + chunk, job.rows); row++)
            job.g ? backward<S>(job, row) : forward<S>(job, row, y);
}

void worker(void* data) {
    Job& job = *(Job*)data;
    if (job.dtype == 0) work<float>(job);
    else if (job.dtype == 1) work<double>(job);
    else if (job.dtype == 2) work<half>(job);
    else work<bfloat>(job);
}

// torch's own thread pool if this process has one that speaks GNU OpenMP, else threads of our own.
bool run(Job& job) {
    static auto pool = (void (*)(void (*)(void*), void*, unsigned, unsigned))dlsym(RTLD_DEFAULT, "GOMP_parallel");
    long threads = std::min({job.threads, job.rows, 1 + job.rows * job.n / 16384});
    if (threads <= 1) worker(&job);
    else if (pool) pool(worker, &job, threads, 0);
    else {
        std::vector<std::thread> others;
        try {
            for (long i = 1; i < threads; i++) others.emplace_back(worker, &job);
        } catch (...) {}                                              // fewer then: rows go to whoever asks for them
        worker(&job);
        for (auto& t : others) t.join();
    }
    return !job.failed;
}

// ----------------------------------------------------------------------------------------------- Python

PyObject* call(PyObject*, PyObject* const* args, Py_ssize_t count) {
    if (count != 18) return PyErr_Format(PyExc_TypeError, "18 arguments expected");
    double number = 0;
    long long v[18];
    for (int i = 0; i < 18; i++) {
        if (i == 9) number = PyFloat_AsDouble(args[i]), v[i] = 0;
        else v[i] = PyLong_AsLongLong(args[i]);
    }
    if (PyErr_Occurred()) return nullptr;
    Job job;
    job.op = v[0], job.dtype = v[1], job.rows = v[2], job.n = v[3];
    job.x = (const char*)v[4], job.x_stride = v[5];
    job.mask = (const uint8_t*)v[6], job.mask_step = v[7], job.mask_row = (const int64_t*)v[8];
    job.param = v[10] ? (const double*)v[10] : &number, job.param_step = v[10] != 0;
    job.p = (char*)v[11], job.state = (double*)v[12];
    job.g = (const char*)v[13], job.dx = (char*)v[14], job.dparam = (double*)v[15], job.detach = v[16];
    job.threads = v[17];
    bool done;
    Py_BEGIN_ALLOW_THREADS
    done = run(job);
    Py_END_ALLOW_THREADS
    if (!done) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

PyMethodDef methods[] = {{"run", (PyCFunction)(void (*)(void))call, METH_FASTCALL, nullptr}, {}};
PyModuleDef module = {PyModuleDef_HEAD_INIT, "rows", nullptr, 0, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace

// One module for each instruction set: _rows_baseline, _rows_avx2, ...
#define INIT_(level) PyInit__rows_##level
#define INIT(level) INIT_(level)
PyMODINIT_FUNC INIT(LEVEL)() {
    PyObject* made = PyModule_Create(&module);
    if (made) PyModule_AddIntConstant(made, "STATE", sizeof(State) / sizeof(double));
    return made;
}
