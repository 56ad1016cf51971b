// Sparse probability mappings over the rows of a matrix, forward and backward.
//
// Written once with GCC/Clang vector extensions and compiled once per instruction set (see build.sh);
// Python loads the library that fits the CPU, so there is no dispatch in here.
//
// A row is first copied into scratch: converted to the type it is computed in, its removed entries
// replaced by -inf, its end padded with -inf to whole vectors.  Removed entries and padding are the same
// thing from then on: they are smaller than every kept entry, weigh nothing, and only shift ranks.

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

// A sum that stays accurate for a million terms: short runs in lanes, their totals in double.
template <class T> struct Sum {
    V<T> run{};
    double total = 0;
    INLINE void add(V<T> v, long i) {
        run += v;
        if (i % (32 * lanes<T>) == 0) flush();
    }
    INLINE void flush() { total += fold(run, plus), run = V<T>{}; }
    INLINE double get() { flush(); return total; }
};

// exp(d) for d <= 0 within 2 ulp, underflowing gradually to 0: d = k ln 2 + r, |r| <= ln 2 / 2.
template <class T> struct Exp;
template <> struct Exp<float> {
    static constexpr int mantissa = 23, lift = 64;
    static constexpr float low = -104.f, tiny = -80.f, magic = 12582912.f + 127.f, hi = 0.693359375f,
        lo = -2.12194440e-4f, c[] = {1.38145964699801597e-3f, 8.36871685026245498e-3f, 4.16683880721639183e-2f,
                                     1.66665206321606605e-1f, 4.99999934477993070e-1f, 1.f, 1.f};
};
template <> struct Exp<double> {
    static constexpr int mantissa = 52, lift = 128;
    static constexpr double low = -746., tiny = -660., magic = 6755399441055744. + 1023., hi = 6.93145751953125e-1,
        lo = 1.42860682030941723212e-6, c[] = {2.46109072753049769e-8, 2.76208570640526757e-7, 2.75587254703334172e-6,
            2.48015205662007863e-5, 1.98412683909614882e-4, 1.38888889169161141e-3, 8.33333333390043603e-3,
            4.16666666666255134e-2, 1.66666666666659938e-1, 5.00000000000000117e-1, 1., 1.};
};
template <class T> INLINE V<T> exp(V<T> d) {
    using C = Exp<T>;
    d = d < C::low ? splat<T>(C::low) : d;
    V<T> z = d * T(1.4426950408889634) + C::magic;                    // its low bits hold k + bias
    V<T> k = z - C::magic, r = d - k * C::hi - k * C::lo, q = splat(C::c[0]);
    for (size_t i = 1; i < std::size(C::c); i++) q = q * r + C::c[i];
    I<T> tiny = d < C::tiny;                                          // 2^k alone would leave the normal range
    V<T> power = (V<T>)(((I<T>)z + (tiny & C::lift)) << C::mantissa);
    return q * power * (tiny ? splat<T>(T(1) / T(std::pow(2., C::lift))) : splat<T>(1));
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
template <> struct Raw<uint8_t> { using type = vec<uint8_t, bytes>::type; };

INLINE V<float> decode(V<float> v, float) { return v; }
INLINE V<double> decode(V<double> v, double) { return v; }
INLINE F decode(H v, bfloat) { return (F)(__builtin_convertvector(v, U) << 16); }
INLINE F decode(H v, half) {                                          // rebias by a multiplication: exact, denormals too
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
template <class S, class T = Compute<S>> INLINE V<T> load(const S* p, long left) {
    typename Raw<S>::type raw{};
    if (left >= lanes<T>) memcpy(&raw, p, sizeof raw);
    else memcpy(&raw, p, left * sizeof(S));
    return decode(raw, S());
}
template <class S, class T = Compute<S>> INLINE void store(S* p, V<T> v, long left) {
    auto raw = encode(v, S());
    if (left >= lanes<T>) memcpy(p, &raw, sizeof raw);
    else memcpy(p, &raw, left * sizeof(S));
}

// ------------------------------------------------------------------------------------------------- rows

struct Job {                                                          // every pointer is to a first row
    long op, dtype, rows, n;
    const char* x; long x_stride;                                     // strides in elements
    const uint8_t* mask; long mask_step; const int64_t* mask_row;      // where the mask of each row begins
    const double* param; long param_step;
    char* p;                                                          // output of forward, input of backward
    double* state;                                                    // 5 numbers per row, or none
    const char* g; char* dx; double* dparam; long detach;             // backward only
    long threads;
    std::atomic<long> next{0}, failed{0};
};
enum Op { T_SOFTMAX, R_SOFTMAX, SPARSEMAX, ENTMAX15 };

struct State { double m, lo, hi, z, n; };                             // what backward needs to know of a row

template <class T> INLINE long padded(long n) { return (n + lanes<T> - 1) / lanes<T> * lanes<T>; }

template <class S, class T = Compute<S>> INLINE V<T> kept(const Job& job, const S* x, const uint8_t* mask, long i) {
    V<T> v = load(x + i, job.n - i);
    I<T> keep = iota<T>() < Int<T>(job.n - i < lanes<T> ? job.n - i : lanes<T>);
    if (mask) {
        typename vec<uint8_t, lanes<T>>::type b{};
        long left = job.n - i < lanes<T> ? job.n - i : lanes<T>;
        if (job.mask_step == 1 && left == lanes<T>) memcpy(&b, mask + i, sizeof b);
        else for (long k = 0; k < left; k++) b[k] = mask[(i + k) * job.mask_step];
        keep &= __builtin_convertvector(b, I<T>) != 0;
    } else if (job.n - i >= lanes<T>) return v;
    return keep ? v : splat(-inf<T>);
}

// Copies a row into y; false if it holds NaN or +inf, which no mapping survives.
template <class S, class T = Compute<S>> bool fetch(const Job& job, long row, T* y, T& m, long& n) {
    auto x = (const S*)job.x + row * job.x_stride;
    auto mask = job.mask ? job.mask + job.mask_row[row] : nullptr;
    V<T> top = splat(-inf<T>);
    I<T> good{}, gone{};
    for (long i = 0; i < job.n; i += lanes<T>) {
        V<T> v = kept(job, x, mask, i);
        put(y + i, v);
        top = larger(top, v);
        good -= v < inf<T>;
        gone -= v == -inf<T>;
    }
    m = fold(top, larger);
    n = padded<T>(job.n) - fold(gone, plus);
    return fold(good, plus) == padded<T>(job.n);
}

// -------------------------------------------------------------------------------------------- selection

template <class T> struct Two { T lo, hi; };

// The entries of rank j and k (from 0) among y[0..n), by counting for each entry how many are less:
// what has at most j entries below it is at most the entry of rank j, which itself has at most j below it,
// so that entry is the largest of them.  Exact with ties; quadratic, so for a few entries only.
template <class T> INLINE Two<T> ranked(const T* y, long n, long j, long k) {
    V<T> lo = splat(-inf<T>), hi = lo;
    for (long i = 0; i < n; i += lanes<T>) {
        V<T> v = at(y + i);
        I<T> less{};
        for (long l = 0; l < n; l++) less -= y[l] < v;
        lo = larger(lo, less <= Int<T>(j) ? v : splat(-inf<T>));
        hi = larger(hi, less <= Int<T>(k) ? v : splat(-inf<T>));
    }
    return {fold(lo, larger), fold(hi, larger)};
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
    constexpr int width = 8 * sizeof(T);
    auto key = [](T v) { B b; memcpy(&b, &v, sizeof b); return b >> (width - 1) ? ~b : B(b | B(1) << (width - 1)); };
    B prefix = 0;
    for (int shift = width - 8; shift >= 0; shift -= 8) {
        long count[256] = {}, digit = 0;
        for (long i = 0; i < n; i++) {
            B k = key(y[i]) ^ prefix;
            if (shift + 8 == width || !(k >> (shift + 7) >> 1)) count[(k >> shift) & 255]++;
        }
        while (j >= count[digit]) j -= count[digit++];
        prefix |= B(digit) << shift;
    }
    B b = prefix >> (width - 1) ? B(prefix ^ B(1) << (width - 1)) : ~prefix;
    T v;
    memcpy(&v, &b, sizeof v);
    return v;
}

// The entries of rank j and j + 1 of y[0..n); `next` stands for rank n.  A sample of the entries proposes
// two of them, a < b, that probably enclose rank j; counting the entries <= a and between tells for certain
// where rank j is, and only the open interval that holds it is searched further.  What follows the last
// entry of (a, b) is b itself, for b is an entry.  The two buffers take turns.
template <class T> Two<T> select(const T* y, long n, long j, T next, T* to, T* other) {
    constexpr long few = 48, sample = 32;
    for (long work = 0, limit = 6 * n;; work += n) {
        if (n <= few) {
            Two<T> r = ranked(y, n, j, j + 1);
            return {r.lo, j + 1 < n ? r.hi : next};
        }
        if (work > limit) {                                           // the samples mislead: give up guessing
            T lo = radix(y, n, j);
            long le = split(y, n, lo, inf<T>, to).le;
            return {lo, j + 1 < le ? lo : least(y, n, lo, next)};
        }
        alignas(bytes) T s[sample];
        for (long i = 0; i < sample; i++) s[i] = y[(2 * i + 1) * n / (2 * sample)];
        double r = (j + .5) / n, at = r * sample - .5, spread = 1.3 * std::sqrt(sample * r * (1 - r)) + .5;
        long ja = std::floor(at - spread), jb = std::ceil(at + spread);
        auto [a, b] = ranked(s, sample, ja, jb);
        if (jb >= sample) b = inf<T>;
        Split c = split(y, n, a, b, to);
        if (j < c.le) {                                               // at a, or below
            T high = j + 1 < c.le ? a : least(y, n, a, next);
            Split d = split(y, n, -inf<T>, a, to);
            if (j >= d.le + d.in) return {a, high};
            j -= d.le, n = d.in, next = a;
        } else if (j < c.le + c.in) {
            j -= c.le, n = c.in;
            if (b < inf<T>) next = b;
        } else {                                                      // at b, or above
            Split d = split(y, n, b, inf<T>, to);
            if (j < d.le) return {b, j + 1 < d.le ? b : least(y, n, b, next)};
            j -= d.le, n = d.in;
        }
        long whole = padded<T>(n);
        put(to + n, splat(-inf<T>));
        y = to, j += whole - n, n = whole;
        std::swap(to, other);
    }
}

// ---------------------------------------------------------------------------------------------- weights

// p = w e^(x-m) / sum.  Each of these gives w for a vector, and its derivative `slope` on the support.
// Weights may carry any common factor: a power of two near 1/span keeps them in range and costs no rounding.
template <class T> struct Dense {                                     // softmax
    static constexpr T slope = 0;
    INLINE V<T> operator()(V<T>, V<T>) const { return splat<T>(1); }
};
template <class T> struct Peak {                                      // the limit of a vanishing span
    static constexpr T slope = 0;
    INLINE V<T> operator()(V<T>, V<T> d) const { return d == 0 ? splat<T>(1) : V<T>{}; }
};
template <class T> T scale(T span) {
    constexpr int most = std::numeric_limits<T>::max_exponent;
    return std::ldexp(T(1), span < inf<T> ? -std::max(std::ilogb(span), 2 - most) : -most);
}
template <class T> struct Hinge {                                     // d + t > 0 exactly where d > -t
    T t, slope = scale(t);
    INLINE V<T> operator()(V<T>, V<T> d) const { return d > -t ? (d + t) * slope : V<T>{}; }
};
template <class T> struct Quantile {                                  // x - theta as (x - hi) + (hi - theta):
    T lo, hi, slope, rest;                                            // both >= 0, not both 0, where x > lo
    Quantile(T lo, T hi, T m, double f)
        : lo(lo), hi(hi), slope(scale<T>(m - lo)), rest(T((1 - f) * (double(hi * slope) - double(lo * slope)))) {}
    INLINE V<T> operator()(V<T> x, V<T>) const { return x > lo ? (x * slope - hi * slope) + rest : V<T>{}; }
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
    else {
        double at = param * (s.n - 1);
        f(Quantile<T>(lo, hi, m, at - std::floor(at)));
    }
}

// The root tau of sum [z - tau]_+^q = 1, z = d / q, for q = 1 (sparsemax) and 2 (entmax15), by Newton's method
// on the norm h(tau) = (sum [z - tau]_+^q)^(1/q), which is convex and falling: from the left the steps never
// pass the root, so entries once left behind are out for good, and every step halves the excess h - 1 or the
// slope, so there are few.  Entries with z <= -1 cannot be in the support: the largest, 0, would exceed 1.
template <int q, class T> double simplex(const T* y, long n, T m, T* z) {
    long c = 0;
    for (long i = 0; i < n; i += lanes<T>) {
        V<T> v = (at(y + i) - m) / T(q);
        c += pack(z + c, v, v > T(-1));
    }
    put(z + c, splat(-inf<T>));
    double tau = -1, before = 0;
    for (long count = c + 1;;) {
        Sum<T> s1, s2;
        I<T> in{};
        T low = tau;
        for (long i = 0; i < c; i += lanes<T>) {
            V<T> v = at(z + i);
            I<T> on = v > low;
            in -= on;
            if (q == 1) s1.add(on ? v : V<T>{}, i);
            else v = on ? v - low : V<T>{}, s1.add(v, i), s2.add(v * v, i);
        }
        long k = fold(in, plus);
        if (q == 1) {
            if (k >= count) return tau;                               // the support stands still
            tau = (s1.get() - 1) / k, count = k;
        } else {
            double h = std::sqrt(s2.get());
            before = low, tau = before + h * (h - 1) / s1.get();
            if (!(T(tau) > T(before))) return tau;
        }
    }
}

// ---------------------------------------------------------------------------------- forward and backward

template <class S, class T = Compute<S>> void forward(const Job& job, long row, T* y) {
    long whole = padded<T>(job.n);
    auto p = (S*)job.p + row * job.n;
    double param = job.param ? job.param[row * job.param_step] : 0;
    T m, factor = 1, *a = y + whole, *b = a + whole + lanes<T>;
    long n;
    State s{};
    bool good = fetch<S>(job, row, y, m, n) && (job.op > R_SOFTMAX || param >= 0) && (job.op != R_SOFTMAX || param <= 1);
    s.m = m, s.n = n;
    if (!good || n == 0) {
        s.m = good ? 0 : NAN;
        for (long i = 0; i < whole; i += lanes<T>) put(y + i, splat<T>(s.m));
    } else if (job.op >= SPARSEMAX) {
        T tau = job.op == SPARSEMAX ? simplex<1>(y, whole, m, a) : simplex<2>(y, whole, m, a);
        T unit = job.op == SPARSEMAX ? 1 : T(.5);
        for (long i = 0; i < whole; i += lanes<T>) {
            V<T> v = (at(y + i) - m) * unit - tau;
            v = v > 0 ? v : V<T>{};
            put(y + i, job.op == SPARSEMAX ? v : v * v);
        }
    } else {
        if (job.op == R_SOFTMAX && param > 0) {
            Two<T> r = select<T>(y, whole, whole - n + long(param * (n - 1)), m, a, b);
            s.lo = r.lo, s.hi = r.hi;
        }
        with_weights<T>(job, param, s, [&](auto w) {
            Sum<T> z;
            for (long i = 0; i < whole; i += lanes<T>) {
                V<T> x = at(y + i), d = x - m, v = w(x, d) * exp<T>(d);
                put(y + i, v);
                z.add(v, i);
            }
            s.z = z.get();
        });
        factor = T(1 / s.z);
    }
    for (long i = 0; i < whole; i += lanes<T>) store(p + i, at(y + i) * factor, job.n - i);
    if (job.state) memcpy(job.state + row * 5, &s, sizeof s);
}

template <class S, class T = Compute<S>> void backward(const Job& job, long row, T* y) {
    long n = job.n;
    auto p = (const S*)job.p + row * n, g = (const S*)job.g + row * n;
    auto dx = (S*)job.dx + row * n;
    Sum<T> dot, norm;
    if (job.op >= SPARSEMAX) {                                        // dx = q (g - mean of g under q)
        auto q = [&](V<T> v) {
            if (job.op == SPARSEMAX) return v > 0 ? splat<T>(1) : v * 0;
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
    auto x = (const S*)job.x + row * job.x_stride;
    auto mask = job.mask ? job.mask + job.mask_row[row] : nullptr;
    double param = job.param[row * job.param_step];
    State st;
    memcpy(&st, job.state + row * 5, sizeof st);
    for (long i = 0; i < n; i += lanes<T>) dot.add(load(p + i, n - i) * load(g + i, n - i), i);
    T s = dot.get(), m = st.m, lo = st.lo, hi = st.hi;
    with_weights<T>(job, param, st, [&](auto w) {
        T unit = w.slope / T(st.z);
        I<T> at_lo = I<T>{} - 1, at_hi = at_lo, at_m = at_lo, tops{}, index = iota<T>();
        for (long i = 0; i < n; i += lanes<T>, index += Int<T>(lanes<T>)) {
            V<T> v = kept(job, x, mask, i), c = load(p + i, n - i), h = load(g + i, n - i) - s;
            if (w.slope != 0) {
                V<T> d = v - m, u = w(v, d) > 0 ? exp<T>(d) * unit : V<T>{};
                c += u;
                norm.add(u * h, i);
                if (job.op == R_SOFTMAX) at_lo = v == lo ? index : at_lo, at_hi = v == hi ? index : at_hi;
                else at_m = v == m ? index : at_m, tops -= v == m;
            }
            put(y + i, c * h);
        }
        if (w.slope != 0 && m == m) {
            double A = norm.get(), rank = param * (st.n - 1), f = rank - std::floor(rank);
            if (job.op == R_SOFTMAX && !job.detach) {
                y[fold(at_lo, larger)] -= T(A * (1 - f));
                y[fold(at_hi, larger)] -= T(A * f);
                if (job.dparam) job.dparam[row] = -A * (st.n - 1) * (st.hi - st.lo);
            } else if (job.op == T_SOFTMAX) {
                long k = fold(tops, plus);
                T share = T(A / k);
                if (k == 1) y[fold(at_m, larger)] -= share;
                else for (long i = 0; i < n; i += lanes<T>)
                    put(y + i, at(y + i) - (kept(job, x, mask, i) == m ? splat(share) : V<T>{}));
                if (job.dparam) job.dparam[row] = A;
            }
        } else if (job.dparam) job.dparam[row] = 0 * s;
    });
    for (long i = 0; i < n; i += lanes<T>) store(dx + i, at(y + i), n - i);
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
            job.g ? backward<S>(job, row, y) : forward<S>(job, row, y);
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
    else try {
        std::vector<std::thread> others;
        for (long i = 1; i < threads; i++) others.emplace_back(worker, &job);
        worker(&job);
        for (auto& t : others) t.join();
    } catch (...) { worker(&job); }
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

#define INIT_(level) PyInit__rows_##level
#define INIT(level) INIT_(level)
PyMODINIT_FUNC INIT(LEVEL)() { return PyModule_Create(&module); }
