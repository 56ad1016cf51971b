// Short rows, as many at once as a vector has lanes.  Must match operations.h and weights.h.
#pragma once

#include "operations.h"
#include "ranks.h"

namespace rsoftmax {
namespace {

// One double for each lane.
template <class T> using Doubles = typename vec<double, lanes<T> * sizeof(double)>::type;

template <class T> INLINE IntVec<T> within(const Doubles<T>& v, double least, double most) {
    return __builtin_convertvector((v >= least) & (v <= most), IntVec<T>);
}

// Must match `scale` in weights.h, for each lane.
template <class T> INLINE Vec<T> scales(Vec<T> span) {
    constexpr int mantissa = Exp<T>::mantissa;
    constexpr Int<T> bias = std::numeric_limits<T>::max_exponent - 1;
    IntVec<T> exponent = 2 * bias - (((IntVec<T>)span >> mantissa) & (2 * bias + 1));
    return (Vec<T>)(maximum(exponent, IntVec<T>{} + 1) << mantissa);
}

// Must match `cap_of` in weights.h, for each lane.
template <class T> INLINE Vec<T> caps(double edge, Vec<T> span, Vec<T> slope) {
    return T(edge) < span ? maximum(T(edge) * slope, splat(std::numeric_limits<T>::min())) : splat(inf<T>);
}

// Must match Quantile in weights.h, for each lane: (x slope - start) + rest from the least entry of the support on,
// and at most cap.
template <class T> struct Quantiles {
    Vec<T> least, slope, start, rest, cap;
    // even: the rows in which all entries from the least one on weigh the same.
    INLINE Quantiles(Vec<T> m, const Neighbours<T>& at, const Doubles<T>& f, IntVec<T> even, double edge)
        : least(at.least) {
        Vec<T> power = scales<T>(m - at.lo), hi = at.hi * power, lo = at.lo * power;
        Doubles<T> gap = __builtin_convertvector(hi, Doubles<T>) - __builtin_convertvector(lo, Doubles<T>);
        Vec<T> left = __builtin_convertvector((1 - f) * gap, Vec<T>);
        slope = even ? Vec<T>{} : power;
        start = even ? Vec<T>{} : hi;
        rest = even ? splat<T>(1) : left;
        cap = even ? splat<T>(1) : caps<T>(edge, m - at.lo, power);
    }
    INLINE Vec<T> operator()(Vec<T> x, Vec<T>) const {
        return x >= least ? minimum((x * slope - start) + rest, cap) : Vec<T>{};
    }
};

// Must match Hinge in weights.h, for each lane: (d + t) slope where d > -t, and at most cap; and its limits, Dense and
// Truncated.
template <class T> struct Hinges {
    Vec<T> t, least, slope, rest, cap;
    INLINE Hinges(Vec<T> value, IntVec<T> none, double edge) {
        IntVec<T> even = (value == 0) | (value == inf<T>) | (edge == 0 ? ~IntVec<T>{} : IntVec<T>{});
        // The bits of the next number above -t.
        IntVec<T> next = (IntVec<T>)-value - 1;
        least = none ? splat(inf<T>) : value == 0 ? Vec<T>{} : (Vec<T>)next;
        slope = even ? Vec<T>{} : scales<T>(value);
        rest = even ? splat<T>(1) : Vec<T>{};
        t = even ? Vec<T>{} : value;
        cap = even ? splat<T>(1) : caps<T>(edge, value, slope);
    }
    INLINE Vec<T> operator()(Vec<T>, Vec<T> d) const {
        return d >= least ? minimum((d + t) * slope + rest, cap) : Vec<T>{};
    }
};

// The thresholds of a projection for each lane, from the columns of z = (x - m) / q.  Must match `simplex`.
template <int q, class T> INLINE Vec<T> thresholds(const Columns<T>& z) {
    Vec<T> tau = splat<T>(-1);
    IntVec<T> before = IntVec<T>{} + Int<T>(z.n + 1), done{};
    for (;;) {
        // Two sums each: shorter chains, smaller errors.
        Vec<T> one[2] = {}, two[2] = {};
        IntVec<T> in{};
        auto add = [&](long i, int k) {
            Vec<T> v = maximum(z(i) - tau, Vec<T>{});
            one[k] += v;
            if (q == 1) in -= v > 0;
            else two[k] += v * v;
        };
        for (long i = 0; i + 2 <= z.n; i += 2) {
            add(i, 0);
            add(i + 1, 1);
        }
        if (z.n % 2) add(z.n - 1, 0);
        Vec<T> sum = one[0] + one[1], h = q == 1 ? sum : square_root<T>(two[0] + two[1]);
        Vec<T> up = tau + (q == 1 ? (h - 1) / to_float<T>(in) : h * (h - 1) / sum);
        IntVec<T> still = q == 1 ? in >= before : ~(up > tau);
        tau = done ? tau : up;
        done |= still;
        before = in;
        if (all<T>(done)) return tau;
    }
}

// Up to which length rows side by side are faster than one by one; 0: never.  Measured.
template <class Op> constexpr long longest = 0;
template <> constexpr long longest<TSoftmax> = 80;
template <> constexpr long longest<RSoftmax> = 256;
template <> constexpr long longest<Sparsemax> = bytes == 64 ? 160 : 80;
template <> constexpr long longest<Entmax15> = 192;

// The rows of a call from `first` on, one in each lane; lanes without a row repeat the last one.
template <class Op, class T> struct ShortRows {
    static constexpr long L = lanes<T>;
    const RowsCall& call;
    long first, rows;
    // The logits, and the same as ordered_bits.
    Columns<T> x, keys;

    ShortRows(const RowsCall& call, long first, T* memory)
        : call(call), first(first), rows(std::min<long>(L, call.rows - first)), x{memory, call.n},
          keys{memory + x.entries(call.n), call.n} {}
    static long entries(long n) { return (Op::selects ? 2 : 1) * Columns<T>::entries(n); }

    void forward() const {
        Stats stats(read());
        Doubles<T> value;
        for (long k = 0; k < L; k++) value[k] = call.value(row(k));
        map(Op(), stats, value);
    }

private:
    // Rows that become NaN, and rows without probabilities: those, and fully masked ones.
    struct Stats : LaneStats<T> {
        IntVec<T> is_nan{}, none;
        INLINE explicit Stats(const LaneStats<T>& all) : LaneStats<T>(all), none(all.unmasked == 0) {
            mark_nan(all.bad);
        }
        INLINE void mark_nan(IntVec<T> which) {
            is_nan |= which;
            none |= which;
        }
        INLINE Vec<T> row_maximum() const { return none ? Vec<T>{} : this->top; }
    };

    long row(long k) const { return first + std::min(k, rows - 1); }

    INLINE LaneStats<T> read() const {
        LaneStats<T> stats;
        auto keep = [&](long i, Vec<T> v) {
            stats.add(v);
            x.set(i, v);
            if (Op::selects) keys.set(i, (Vec<T>)ordered_bits<T>(v));
        };
        const T* from[L];
        for (long k = 0; k < L; k++) from[k] = (const T*)call.x + row(k) * call.x_stride;
        if (x.n < L) x.read([&](long k, long i) { return Row<T>(call, row(k))(i); }, keep);
        else if (call.mask) x.read([&](long k, long i) { return Row<T>(call, row(k))(i, L); }, keep);
        else x.read([&](long k, long i) { return load(from[k] + i); }, keep);
        if (stats.is_finite()) stats.unmasked += Int<T>(x.n);
        else stats.add_all(x);
        return stats;
    }

    INLINE void map(TSoftmax, Stats& stats, const Doubles<T>& t) const {
        stats.mark_nan(~within<T>(t, 0, inf<double>));
        normalise(stats, Hinges<T>(__builtin_convertvector(t, Vec<T>), stats.none, call.edge),
            Neighbours<T>{}, Doubles<T>{});
    }

    INLINE void map(RSoftmax, Stats& stats, const Doubles<T>& value) const {
        bool is_count = call.op == k_softmax;
        stats.mark_nan(~within<T>(value, is_count, is_count ? inf<double> : 1));
        // Must match QuantilePosition.
        Doubles<T> unmasked = __builtin_convertvector(stats.unmasked, Doubles<T>), above = unmasked - 1 - value;
        Doubles<T> position = is_count ? (above > 0 ? above : Doubles<T>{}) : value * (unmasked - 1);
        auto is_dense = is_count ? value > unmasked - 1 : value == 0;
        IntVec<T> dense = stats.none | __builtin_convertvector(is_dense, IntVec<T>);
        IntVec<T> j = __builtin_convertvector(position, IntVec<T>);
        Doubles<T> f = position - __builtin_convertvector(j, Doubles<T>);
        Neighbours<T> at = neighbours(keys, stats, dense ? IntVec<T>{} : stats.unmasked - 1 - j);
        at.least = stats.none ? splat(inf<T>) : dense ? stats.bottom : at.least;
        Vec<T> m = stats.row_maximum();
        IntVec<T> even = dense | (at.lo == m) | (call.edge == 0 ? ~IntVec<T>{} : IntVec<T>{});
        normalise(stats, Quantiles<T>(m, at, f, even, call.edge), at, f);
    }

    template <int q> INLINE void map(Projection<q>, const Stats& stats, const Doubles<T>&) const {
        Vec<T> m = stats.row_maximum(), unit = stats.is_nan ? splat<T>(NAN) : splat<T>(1);
        for (long i = 0; i < x.n; i++) x.set(i, (x(i) - m) * T(1. / q));
        Vec<T> tau = thresholds<q>(x);
        write([=](Vec<T> z) {
            Vec<T> a = maximum(z - tau, Vec<T>{});
            return (q == 1 ? a : a * a) * unit;
        });
    }

    template <class W>
    INLINE void normalise(const Stats& stats, const W& weights, const Neighbours<T>& at, const Doubles<T>& f) const {
        Vec<T> m = stats.row_maximum(), sum = masses(m, weights);
        if (call.states) for (long k = 0; k < rows; k++)
            call.states[first + k] = {m[k], at.lo[k], at.hi[k], f[k], sum[k],
                stats.none[k] ? 0. : double(stats.unmasked[k])};
        Quotient<Vec<T>> quotient(stats.is_nan ? splat<T>(NAN) : stats.none ? splat<T>(1) : sum);
        write([=](Vec<T> v) { return quotient(v); });
    }

    // Leaves w e^(x - m) in the columns, and returns the sums of the rows.
    template <class W> INLINE Vec<T> masses(Vec<T> m, const W& weights) const {
        auto mass = [&](long i) {
            Vec<T> a = x(i), d = a - m, v = weights(a, d) * scaled_exp_of_numbers<T>(d);
            x.set(i, v);
            return v;
        };
        Vec<T> sum{};
        long i = 0;
        // Four at a time: fewer steps, smaller errors.
        for (; i + 4 <= x.n; i += 4) {
            prefetch_next(i);
            Vec<T> a = mass(i) + mass(i + 1), b = mass(i + 2) + mass(i + 3);
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
        if (x.n < L) x.write(share, [&](long k, long i, Vec<T> v) { store(to[k] + i, v, x.n); });
        else x.write(share, [&](long k, long i, Vec<T> v) { store(to[k] + i, v); });
    }
};

}  // namespace
}  // namespace rsoftmax
