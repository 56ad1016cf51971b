// Short rows, as many at once as a vector has lanes.  The mathematics is that of the same names in operations.h.
#pragma once

#include "operations.h"
#include "ranks.h"

namespace {

// One double for each lane.
template <class T> using Doubles = typename vec<double, lanes<T> * sizeof(double)>::type;

template <class T> INLINE I<T> within(const Doubles<T>& v, double most) {
    return __builtin_convertvector((v >= 0) & (v <= most), I<T>);
}

template <class T> INLINE V<T> scales(V<T> span) {                     // as `scale` does
    constexpr int mantissa = Exp<T>::mantissa;
    constexpr Int<T> bias = std::numeric_limits<T>::max_exponent - 1;
    I<T> exponent = 2 * bias - (((I<T>)span >> mantissa) & (2 * bias + 1));
    return (V<T>)(larger(exponent, I<T>{} + 1) << mantissa);
}

// The weights of a row in each lane: (x slope - start) + rest from the least entry with weight on.  See Quantile.
template <class T> struct Quantiles {
    V<T> least, slope, start, rest;
    // even: where all entries from the least one on weigh the same.
    INLINE Quantiles(V<T> m, const Neighbours<T>& at, const Doubles<T>& f, I<T> even) : least(at.least) {
        V<T> power = scales<T>(m - at.lo), hi = at.hi * power, lo = at.lo * power;
        Doubles<T> gap = __builtin_convertvector(hi, Doubles<T>) - __builtin_convertvector(lo, Doubles<T>);
        V<T> left = __builtin_convertvector((1 - f) * gap, V<T>);
        slope = even ? V<T>{} : power, start = even ? V<T>{} : hi, rest = even ? splat<T>(1) : left;
    }
    INLINE V<T> operator()(V<T> x, V<T>) const { return x >= least ? (x * slope - start) + rest : V<T>{}; }
};

// The same for (d + t) slope where d > -t.  See Hinge, and Dense and Peak for its limits.
template <class T> struct Hinges {
    V<T> t, least, slope, rest;
    INLINE Hinges(V<T> t, I<T> none) : t(t) {
        I<T> even = (t == 0) | (t == inf<T>), next = (I<T>)-t - 1;    // the bits of the next number above -t
        least = none ? splat(inf<T>) : t == 0 ? V<T>{} : (V<T>)next;
        slope = even ? V<T>{} : scales<T>(t), rest = even ? splat<T>(1) : V<T>{}, this->t = even ? V<T>{} : t;
    }
    INLINE V<T> operator()(V<T>, V<T> d) const { return d >= least ? (d + t) * slope + rest : V<T>{}; }
};

// The thresholds of a projection in each lane, from the columns of z = (x - m) / q.  See simplex.
template <int q, class T> INLINE V<T> thresholds(const Columns<T>& z) {
    V<T> tau = splat<T>(-1);
    I<T> before = I<T>{} + Int<T>(z.n + 1), done{};
    for (;;) {
        V<T> one[2] = {}, two[2] = {};                                // two sums each: shorter waits, smaller errors
        I<T> in{};
        auto add = [&](long i, int k) {
            V<T> v = larger(z(i) - tau, V<T>{});
            one[k] += v;
            if (q == 1) in -= v > 0;
            else two[k] += v * v;
        };
        for (long i = 0; i + 2 <= z.n; i += 2) add(i, 0), add(i + 1, 1);
        if (z.n % 2) add(z.n - 1, 0);
        V<T> sum = one[0] + one[1], h = q == 1 ? sum : roots<T>(two[0] + two[1]);
        V<T> up = tau + (q == 1 ? (h - 1) / real<T>(in) : h * (h - 1) / sum);
        I<T> still = q == 1 ? in >= before : ~(up > tau);
        tau = done ? tau : up, done |= still, before = in;
        if (everywhere<T>(done)) return tau;
    }
}

// Up to which length rows side by side are faster than one by one; 0: never.  Measured, with AVX2.
template <class Op> constexpr long longest = 0;
template <> constexpr long longest<TSoftmax> = 80;
template <> constexpr long longest<RSoftmax> = 256;
template <> constexpr long longest<Sparsemax> = 80;
template <> constexpr long longest<Entmax15> = 128;

// The rows of a call from `first` on, one in each lane; lanes without a row repeat the last one.
template <class Op, class S, class T = Compute<S>> struct ShortRows {
    static constexpr long L = lanes<T>;
    using D = Doubles<T>;
    const Call& call;
    long first, rows;
    Columns<T> x, keys;                                               // the scores, and the same as `key` orders them

    ShortRows(const Call& call, long first, T* memory)
        : call(call), first(first), rows(std::min<long>(L, call.rows - first)), x{memory, call.n},
          keys{memory + x.size(call.n) / sizeof(T), call.n} {}
    static size_t memory_size(long n) { return (Op::selects ? 2 : 1) * Columns<T>::size(n); }

    void forward() const {
        Seen seen(read());
        D value;
        for (long k = 0; k < L; k++) value[k] = call.value(row(k));
        map(Op(), seen, value);
    }

private:
    // What was read: the rows that are NaN are lost, and those where nothing is kept are lost or zero.
    struct Seen : Summary<T> {
        I<T> lost{}, none;
        INLINE explicit Seen(const Summary<T>& all) : Summary<T>(all), none(all.kept == 0) { lose(all.bad); }
        INLINE void lose(I<T> which) { lost |= which, none |= which; }
        INLINE V<T> maximum() const { return none ? V<T>{} : this->top; }
    };

    long row(long k) const { return first + std::min(k, rows - 1); }

    INLINE Summary<T> read() const {
        Summary<T> all;
        auto keep = [&](long i, V<T> v) {
            all.add(v), x.set(i, v);
            if (Op::selects) keys.set(i, (V<T>)key<T>(v));
        };
        const S* from[L];
        for (long k = 0; k < L; k++) from[k] = (const S*)call.x + row(k) * call.x_stride;
        if (x.n < L) x.read([&](long k, long i) { return Row<S>(call, row(k))(i); }, keep);
        else if (call.mask) x.read([&](long k, long i) { return Row<S>(call, row(k))(i, L); }, keep);
        else x.read([&](long k, long i) { return load(from[k] + i, L); }, keep);
        if (all.is_finite()) all.kept += Int<T>(x.n);
        else all.add_all(x);
        return all;
    }

    INLINE void map(TSoftmax, Seen& seen, const D& t) const {
        seen.lose(~within<T>(t, inf<double>));
        normalise(seen, Hinges<T>(__builtin_convertvector(t, V<T>), seen.none), Neighbours<T>{}, D{});
    }

    INLINE void map(RSoftmax, Seen& seen, const D& r) const {
        seen.lose(~within<T>(r, 1));
        I<T> dense = seen.none | __builtin_convertvector(r == 0, I<T>);
        D rank = r * __builtin_convertvector(seen.kept - 1, D);
        I<T> j = __builtin_convertvector(rank, I<T>);
        D f = rank - __builtin_convertvector(j, D);
        Neighbours<T> at = neighbours(keys, seen, dense ? I<T>{} : seen.kept - 1 - j);
        at.least = seen.none ? splat(inf<T>) : dense ? seen.bottom : at.least;
        V<T> m = seen.maximum();
        normalise(seen, Quantiles<T>(m, at, f, dense | (at.lo == m)), at, f);
    }

    template <int q> INLINE void map(Projection<q>, const Seen& seen, const D&) const {
        V<T> m = seen.maximum(), unit = seen.lost ? splat<T>(NAN) : splat<T>(1);
        for (long i = 0; i < x.n; i++) x.set(i, (x(i) - m) * T(1. / q));
        V<T> tau = thresholds<q>(x);
        write([=](V<T> z) {
            V<T> a = larger(z - tau, V<T>{});
            return (q == 1 ? a : a * a) * unit;
        });
    }

    template <class W> INLINE void normalise(const Seen& seen, const W& weights, const Neighbours<T>& at, const D& f) const {
        V<T> m = seen.maximum(), sum = masses(m, weights);
        if (call.states) for (long k = 0; k < rows; k++)
            call.states[first + k] = {m[k], at.lo[k], at.hi[k], f[k], sum[k], seen.none[k] ? 0. : double(seen.kept[k])};
        V<T> total = seen.lost ? splat<T>(NAN) : seen.none ? splat<T>(1) : sum, inverse = 1 / total;
        write([=](V<T> v) { V<T> q = v * inverse; return q + (v - q * total) * inverse; });
    }

    // Leaves w e^(x - m) in the columns, and returns the sums of the rows.
    template <class W> INLINE V<T> masses(V<T> m, const W& weights) const {
        auto mass = [&](long i) {
            V<T> a = x(i), d = a - m, v = weights(a, d) * lifted_exp_of_numbers<T>(d);
            x.set(i, v);
            return v;
        };
        V<T> sum{};
        long i = 0;
        for (; i + 4 <= x.n; i += 4) {                                // four at a time: fewer steps, smaller errors
            prefetch_next(i);
            V<T> a = mass(i) + mass(i + 1), b = mass(i + 2) + mass(i + 3);
            sum += a + b;
        }
        for (; i < x.n; i++) sum += mass(i);
        return sum;
    }

    // Brings what lies behind these rows, at columns i to i + 3, into the cache: the next rows, for reading and writing.
    INLINE void prefetch_next(long i) const {
        auto in = (const char*)((const S*)call.x + (first + L) * call.x_stride + i * L);
        auto out = (const char*)((const S*)call.p + (first + L) * x.n + i * L);
        for (long k = 0; k < 4 * L * long(sizeof(S)); k += 64) __builtin_prefetch(in + k), __builtin_prefetch(out + k, 1);
    }

    template <class F> INLINE void write(F share) const {
        S* to[L];
        for (long k = 0; k < L; k++) to[k] = (S*)call.p + row(k) * x.n;
        if (x.n < L) x.write(share, [&](long k, long i, V<T> v) { store(to[k] + i, v, x.n); });
        else x.write(share, [&](long k, long i, V<T> v) { store(to[k] + i, v, L); });
    }
};

}  // namespace
