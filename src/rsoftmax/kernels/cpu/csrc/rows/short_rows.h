// Short rows, as many at once as a vector has lanes.  The mathematics is that of the same names in operations.h.
#pragma once

#include "operations.h"
#include "ranks.h"

namespace rsoftmax {
namespace {

// One double for each lane.
template <class T> using Doubles = typename vec<double, lanes<T> * sizeof(double)>::type;

template <class T> INLINE I<T> within(const Doubles<T>& v, double least, double most) {
    return __builtin_convertvector((v >= least) & (v <= most), I<T>);
}

template <class T> INLINE V<T> scales(V<T> span) {                     // `scale` for each lane
    constexpr int mantissa = Exp<T>::mantissa;
    constexpr Int<T> bias = std::numeric_limits<T>::max_exponent - 1;
    I<T> exponent = 2 * bias - (((I<T>)span >> mantissa) & (2 * bias + 1));
    return (V<T>)(maximum(exponent, I<T>{} + 1) << mantissa);
}

template <class T> INLINE V<T> caps(double edge, V<T> span, V<T> slope) {   // `cap_of` for each lane
    return T(edge) < span ? maximum(T(edge) * slope, splat(std::numeric_limits<T>::min())) : splat(inf<T>);
}

// Quantile for each lane: (x slope - start) + rest from the least entry with weight on, and at most cap.
template <class T> struct Quantiles {
    V<T> least, slope, start, rest, cap;
    // even: the rows in which all entries from the least one on weigh the same.
    INLINE Quantiles(V<T> m, const Neighbours<T>& at, const Doubles<T>& f, I<T> even, double edge) : least(at.least) {
        V<T> power = scales<T>(m - at.lo), hi = at.hi * power, lo = at.lo * power;
        Doubles<T> gap = __builtin_convertvector(hi, Doubles<T>) - __builtin_convertvector(lo, Doubles<T>);
        V<T> left = __builtin_convertvector((1 - f) * gap, V<T>);
        slope = even ? V<T>{} : power;
        start = even ? V<T>{} : hi;
        rest = even ? splat<T>(1) : left;
        cap = even ? splat<T>(1) : caps<T>(edge, m - at.lo, power);
    }
    INLINE V<T> operator()(V<T> x, V<T>) const {
        return x >= least ? minimum((x * slope - start) + rest, cap) : V<T>{};
    }
};

// Hinge for each lane: (d + t) slope where d > -t, and at most cap; and its limits, Dense and Truncated.
template <class T> struct Hinges {
    V<T> t, least, slope, rest, cap;
    INLINE Hinges(V<T> given, I<T> none, double edge) {
        I<T> even = (given == 0) | (given == inf<T>) | (edge == 0 ? ~I<T>{} : I<T>{});
        I<T> next = (I<T>)-given - 1;                                 // the bits of the next number above -t
        least = none ? splat(inf<T>) : given == 0 ? V<T>{} : (V<T>)next;
        slope = even ? V<T>{} : scales<T>(given);
        rest = even ? splat<T>(1) : V<T>{};
        t = even ? V<T>{} : given;
        cap = even ? splat<T>(1) : caps<T>(edge, given, slope);
    }
    INLINE V<T> operator()(V<T>, V<T> d) const { return d >= least ? minimum((d + t) * slope + rest, cap) : V<T>{}; }
};

// The thresholds of a projection for each lane, from the columns of z = (x - m) / q.  See simplex.
template <int q, class T> INLINE V<T> thresholds(const Columns<T>& z) {
    V<T> tau = splat<T>(-1);
    I<T> before = I<T>{} + Int<T>(z.n + 1), done{};
    for (;;) {
        V<T> one[2] = {}, two[2] = {};                                // two sums each: shorter chains, smaller errors
        I<T> in{};
        auto add = [&](long i, int k) {
            V<T> v = maximum(z(i) - tau, V<T>{});
            one[k] += v;
            if (q == 1) in -= v > 0;
            else two[k] += v * v;
        };
        for (long i = 0; i + 2 <= z.n; i += 2) {
            add(i, 0);
            add(i + 1, 1);
        }
        if (z.n % 2) add(z.n - 1, 0);
        V<T> sum = one[0] + one[1], h = q == 1 ? sum : square_root<T>(two[0] + two[1]);
        V<T> up = tau + (q == 1 ? (h - 1) / to_float<T>(in) : h * (h - 1) / sum);
        I<T> still = q == 1 ? in >= before : ~(up > tau);
        tau = done ? tau : up;
        done |= still;
        before = in;
        if (all<T>(done)) return tau;
    }
}

// Up to which length rows side by side are faster than one by one; 0: never.  Measured, with AVX2.
template <class Op> constexpr long longest = 0;
template <> constexpr long longest<TSoftmax> = 80;
template <> constexpr long longest<RSoftmax> = 256;
template <> constexpr long longest<Sparsemax> = 80;
template <> constexpr long longest<Entmax15> = 128;

// The rows of a call from `first` on, one in each lane; lanes without a row repeat the last one.
template <class Op, class T> struct ShortRows {
    static constexpr long L = lanes<T>;
    using D = Doubles<T>;
    const RowsCall& call;
    long first, rows;
    Columns<T> x, keys;                                               // the logits, and the same as ordered_bits

    ShortRows(const RowsCall& call, long first, T* memory)
        : call(call), first(first), rows(std::min<long>(L, call.rows - first)), x{memory, call.n},
          keys{memory + x.entries(call.n), call.n} {}
    static long entries(long n) { return (Op::selects ? 2 : 1) * Columns<T>::entries(n); }

    void forward() const {
        Stats stats(read());
        D value;
        for (long k = 0; k < L; k++) value[k] = call.value(row(k));
        map(Op(), stats, value);
    }

private:
    // Rows that become NaN, and rows without probabilities: those, and the ones in which nothing is kept.
    struct Stats : LaneStats<T> {
        I<T> is_nan{}, none;
        INLINE explicit Stats(const LaneStats<T>& all) : LaneStats<T>(all), none(all.kept == 0) { mark_nan(all.bad); }
        INLINE void mark_nan(I<T> which) {
            is_nan |= which;
            none |= which;
        }
        INLINE V<T> row_maximum() const { return none ? V<T>{} : this->top; }
    };

    long row(long k) const { return first + std::min(k, rows - 1); }

    INLINE LaneStats<T> read() const {
        LaneStats<T> stats;
        auto keep = [&](long i, V<T> v) {
            stats.add(v);
            x.set(i, v);
            if (Op::selects) keys.set(i, (V<T>)ordered_bits<T>(v));
        };
        const T* from[L];
        for (long k = 0; k < L; k++) from[k] = (const T*)call.x + row(k) * call.x_stride;
        if (x.n < L) x.read([&](long k, long i) { return Row<T>(call, row(k))(i); }, keep);
        else if (call.mask) x.read([&](long k, long i) { return Row<T>(call, row(k))(i, L); }, keep);
        else x.read([&](long k, long i) { return load(from[k] + i); }, keep);
        if (stats.is_finite()) stats.kept += Int<T>(x.n);
        else stats.add_all(x);
        return stats;
    }

    INLINE void map(TSoftmax, Stats& stats, const D& t) const {
        stats.mark_nan(~within<T>(t, 0, inf<double>));
        normalise(stats, Hinges<T>(__builtin_convertvector(t, V<T>), stats.none, call.edge), Neighbours<T>{}, D{});
    }

    INLINE void map(RSoftmax, Stats& stats, const D& value) const {
        bool is_count = call.op == k_softmax;
        stats.mark_nan(~within<T>(value, is_count, is_count ? inf<double> : 1));
        D kept = __builtin_convertvector(stats.kept, D), above = kept - 1 - value;   // as in QuantilePosition
        D position = is_count ? (above > 0 ? above : D{}) : value * (kept - 1);
        I<T> dense = stats.none | __builtin_convertvector(is_count ? value > kept - 1 : value == 0, I<T>);
        I<T> j = __builtin_convertvector(position, I<T>);
        D f = position - __builtin_convertvector(j, D);
        Neighbours<T> at = neighbours(keys, stats, dense ? I<T>{} : stats.kept - 1 - j);
        at.least = stats.none ? splat(inf<T>) : dense ? stats.bottom : at.least;
        V<T> m = stats.row_maximum();
        I<T> even = dense | (at.lo == m) | (call.edge == 0 ? ~I<T>{} : I<T>{});
        normalise(stats, Quantiles<T>(m, at, f, even, call.edge), at, f);
    }

    template <int q> INLINE void map(Projection<q>, const Stats& stats, const D&) const {
        V<T> m = stats.row_maximum(), unit = stats.is_nan ? splat<T>(NAN) : splat<T>(1);
        for (long i = 0; i < x.n; i++) x.set(i, (x(i) - m) * T(1. / q));
        V<T> tau = thresholds<q>(x);
        write([=](V<T> z) {
            V<T> a = maximum(z - tau, V<T>{});
            return (q == 1 ? a : a * a) * unit;
        });
    }

    template <class W> INLINE void normalise(const Stats& stats, const W& weights, const Neighbours<T>& at, const D& f) const {
        V<T> m = stats.row_maximum(), sum = masses(m, weights);
        if (call.states) for (long k = 0; k < rows; k++)
            call.states[first + k] = {m[k], at.lo[k], at.hi[k], f[k], sum[k], stats.none[k] ? 0. : double(stats.kept[k])};
        Quotient<V<T>> quotient(stats.is_nan ? splat<T>(NAN) : stats.none ? splat<T>(1) : sum);
        write([=](V<T> v) { return quotient(v); });
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

    // Prefetches the part of the next rows, input and output, that corresponds to columns i to i + 3.
    INLINE void prefetch_next(long i) const {
        auto in = (const char*)((const T*)call.x + (first + L) * call.x_stride + i * L);
        auto out = (const char*)((const T*)call.p + (first + L) * x.n + i * L);
        for (long k = 0; k < 4 * L * long(sizeof(T)); k += 64) {
            __builtin_prefetch(in + k);
            __builtin_prefetch(out + k, 1);
        }
    }

    template <class F> INLINE void write(F share) const {
        T* to[L];
        for (long k = 0; k < L; k++) to[k] = (T*)call.p + row(k) * x.n;
        if (x.n < L) x.write(share, [&](long k, long i, V<T> v) { store(to[k] + i, v, x.n); });
        else x.write(share, [&](long k, long i, V<T> v) { store(to[k] + i, v); });
    }
};

}  // namespace
}  // namespace rsoftmax
