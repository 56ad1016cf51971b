// Short rows of r-softmax, as many at once as a vector has lanes.  The mathematics is that of RSoftmax in operations.h.
#pragma once

#include "operations.h"
#include "ranks.h"

namespace {

// One double for each lane.
template <class T> using Doubles = typename vec<double, lanes<T> * sizeof(double)>::type;

// The weights of a row in each lane: (x slope - start) + rest from the least entry with weight on.  See Quantile.
template <class T> struct Quantiles {
    V<T> least, slope, start, rest;
    // even: where all entries from the least one on weigh the same.
    INLINE Quantiles(V<T> m, const Neighbours<T>& at, const Doubles<T>& f, I<T> even) : least(at.least) {
        V<T> power = scales(m - at.lo), hi = at.hi * power, lo = at.lo * power;
        Doubles<T> gap = __builtin_convertvector(hi, Doubles<T>) - __builtin_convertvector(lo, Doubles<T>);
        V<T> left = __builtin_convertvector((1 - f) * gap, V<T>);
        slope = even ? V<T>{} : power, start = even ? V<T>{} : hi, rest = even ? splat<T>(1) : left;
    }
    INLINE V<T> operator()(V<T> x) const { return x >= least ? (x * slope - start) + rest : V<T>{}; }

private:
    static INLINE V<T> scales(V<T> span) {                            // as `scale` does
        constexpr int mantissa = Exp<T>::mantissa;
        constexpr Int<T> bias = std::numeric_limits<T>::max_exponent - 1;
        I<T> exponent = 2 * bias - (((I<T>)span >> mantissa) & (2 * bias + 1));
        return (V<T>)(larger(exponent, I<T>{} + 1) << mantissa);
    }
};

// The rows of a call from `first` on, one in each lane; lanes without a row repeat the last one.
template <class S, class T = Compute<S>> struct ShortRows {
    static constexpr long longest = 256, L = lanes<T>;                // longer ones with outliers: one by one is faster
    using D = Doubles<T>;
    const Call& call;
    long first, rows;
    Columns<T> x, keys;                                               // the scores, and the same as `key` orders them

    ShortRows(const Call& call, long first, T* memory)
        : call(call), first(first), rows(std::min<long>(L, call.rows - first)), x{memory, call.n},
          keys{memory + x.size(call.n) / sizeof(T), call.n} {}
    static size_t memory_size(long n) { return 2 * Columns<T>::size(n); }
    long row(long k) const { return first + std::min(k, rows - 1); }

    void forward() const {
        Summary<T> all = read();
        D r;
        for (long k = 0; k < L; k++) r[k] = call.value(row(k));
        I<T> lost = all.bad | ~__builtin_convertvector((r >= 0) & (r <= 1), I<T>);  // rows that are NaN
        I<T> none = lost | (all.kept == 0), dense = none | __builtin_convertvector(r == 0, I<T>);
        D rank = r * __builtin_convertvector(all.kept - 1, D);
        I<T> j = __builtin_convertvector(rank, I<T>);
        D f = rank - __builtin_convertvector(j, D);
        Neighbours<T> at = neighbours(keys, all, dense ? I<T>{} : all.kept - 1 - j);
        at.least = none ? splat(inf<T>) : dense ? all.bottom : at.least;
        V<T> m = none ? V<T>{} : all.top, sum = masses(m, {m, at, f, dense | (at.lo == m)});
        if (call.states) for (long k = 0; k < rows; k++)
            call.states[first + k] = {m[k], at.lo[k], at.hi[k], f[k], sum[k], none[k] ? 0. : double(all.kept[k])};
        write(lost ? splat<T>(NAN) : none ? splat<T>(1) : sum);
    }

private:
    INLINE Summary<T> read() const {
        Summary<T> all;
        auto keep = [&](long i, V<T> v) { all.add(v), x.set(i, v), keys.set(i, (V<T>)key<T>(v)); };
        const S* from[L];
        for (long k = 0; k < L; k++) from[k] = (const S*)call.x + row(k) * call.x_stride;
        if (x.n < L) x.read([&](long k, long i) { return Row<S>(call, row(k))(i); }, keep);
        else if (call.mask) x.read([&](long k, long i) { return Row<S>(call, row(k))(i, L); }, keep);
        else x.read([&](long k, long i) { return load(from[k] + i, L); }, keep);
        if (all.is_finite()) all.kept += Int<T>(x.n);
        else all.add_all(x);
        return all;
    }

    // Leaves w e^(x - m) in the columns, and returns the sums of the rows.
    INLINE V<T> masses(V<T> m, const Quantiles<T>& weights) const {
        auto mass = [&](long i) {
            V<T> a = x(i), v = weights(a) * lifted_exp_of_numbers<T>(a - m);
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

    INLINE void write(V<T> total) const {
        V<T> inverse = 1 / total;
        auto share = [=](V<T> v) { V<T> q = v * inverse; return q + (v - q * total) * inverse; };
        S* to[L];
        for (long k = 0; k < L; k++) to[k] = (S*)call.p + row(k) * x.n;
        if (x.n < L) x.write(share, [&](long k, long i, V<T> v) { store(to[k] + i, v, x.n); });
        else x.write(share, [&](long k, long i, V<T> v) { store(to[k] + i, v, L); });
    }
};

}  // namespace
