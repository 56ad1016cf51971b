// Rows of attention by operation: thresholds, weights and the coefficients of the gradient.  Must match
// rows/operations.h, which has the same mathematics for rows in memory.

#include "row.h"

#include "../rows/operations.h"

namespace rsoftmax {
namespace {

// Statistics of the unmasked scores of a row; the moments only if they are asked for.
template <bool with_moments> struct RowStats {
    // Independent sums, for shorter chains.
    static constexpr int chains = 4;
    float top;
    Moments<float> moments{};
    long unmasked;
    // Some score is NaN or +inf.
    bool has_bad = false;

    RowStats(const float* x, long n) : unmasked(n) {
        Vec<float> maxima[chains], sum[chains] = {}, squares[chains] = {};
        std::fill(maxima, maxima + chains, splat(-inf<float>));
        auto add = [&](int k, Vec<float> v, Vec<float> inside) {
            maxima[k] = maximum(maxima[k], v);
            sum[k] += inside;
            if (with_moments) squares[k] += inside * inside;
        };
        long i = 0;
        for (; i + chains * lanes<float> <= n; i += chains * lanes<float>)
#pragma GCC unroll 4
            for (int k = 0; k < chains; k++) add(k, load(x + i + k * lanes<float>), load(x + i + k * lanes<float>));
        for (; i < n; i += lanes<float>)
            add(0, load(x + i), iota<float>() < int32_t(n - i) ? load(x + i) : Vec<float>{});
        top = reduce(maximum(maximum(maxima[0], maxima[1]), maximum(maxima[2], maxima[3])), maximum);
        moments = {sum[0] + sum[1] + sum[2] + sum[3], squares[0] + squares[1] + squares[2] + squares[3], unmasked};
        if (!std::isfinite(moments.mean)) add_unmasked(x, n);
    }

private:
    // The same, if something is masked, or bad.
    void add_unmasked(const float* x, long n) {
        Vec<float> sum{}, squares{};
        IntVec<float> in{}, bad{};
        for (long i = 0; i < n; i += lanes<float>) {
            Vec<float> v = load(x + i), inside = v > -inf<float> ? v : Vec<float>{};
            in -= v > -inf<float>;
            bad |= ~(v < inf<float>);
            sum += inside;
            squares += inside * inside;
        }
        unmasked = reduce(in, plus);
        has_bad = reduce(bad, [](auto a, auto b) { return a | b; });
        moments = {sum, squares, unmasked};
    }
};

// A vector of scores, as the row kernels read one.
struct Scores {
    const float* x;
    INLINE Vec<float> operator()(long i) const { return load(x + i); }
};

// Entmax in attention: a projection of any power, whose parameter has a gradient.
struct AnyEntmax : Entmax { static constexpr int power = -1; };

// lo is tau for alpha = 1.5 and 2; else lo and hi are what distinguishes the rows of one alpha, see with_entmax.
inline void find_entmax(const ScoreRow& row, RowState& s, float* scratch) {
    float m = s.m;
    if (row.parameter.value == 1) {
        Sum<float> sum;
        for (long i = 0; i < row.n; i += lanes<float>) sum.add(scaled_exp<float>(load(row.x + i) - m), i);
        s.hi = 1 / sum.get();
    } else if (row.parameter.value == 1.5) s.lo = simplex<2>(Scores{row.x}, row.n, m, scratch);
    else if (row.parameter.value == 2) s.lo = simplex<1>(Scores{row.x}, row.n, m, scratch);
    else {
        Tsallis<float> p = tsallis(Scores{row.x}, row.n, m, row.parameter.value - 1, scratch);
        s.lo = p.scale;
        s.hi = p.peak;
    }
}

// How far below the maximum a score may lie that has weight, or is summed while tau is searched.
template <class Op> float reach(const Parameter& parameter) {
    if constexpr (std::is_same_v<Op, TSoftmax>) return float(parameter.value);
    if constexpr (Op::power > 0) return Op::power;
    if constexpr (Op::power < 0) return float(1.00001 / (parameter.value - 1));
    return inf<float>;
}

template <class Op> float least_score(const ScoreRow& row, float* scratch) {
    if (!Op::valid(row.parameter)) return -inf<float>;
    if constexpr (Op::selects) {
        QuantilePosition at(row.parameter, row.n);
        // One less, since the position is rounded, and scores may turn out to be masked.
        long j = std::max(long(at.position) - 1, 0l), size = padded<float>(row.n) + lanes<float>;
        return at.is_dense ? -inf<float> : select<float>(row.x, row.n, j, inf<float>, scratch, scratch + size).lo;
    }
    Vec<float> most = splat(-inf<float>);
    for (long i = 0; i < row.n; i += lanes<float>) most = maximum(most, load(row.x + i));
    float top = reduce(most, maximum), distance = reach<Op>(row.parameter);
    return top - distance - (std::abs(top) + distance) * 0x1p-22f;
}

// For the projections, lo is tau.  Must match `forward` in rows/operations.h.
template <class Op> void find_threshold(const ScoreRow& row, QuantileHint& hint, float* scratch, RowState& s) {
    const float* x = row.x;
    long n = row.n;
    RowStats<Op::selects> stats(x, n);
    bool is_nan = stats.has_bad || !Op::valid(row.parameter), has_weights = !is_nan && stats.unmasked;
    s = {is_nan ? NAN : 0, 0, 0, 0, 0, 0};
    if (!has_weights) return;
    s.m = stats.top;
    s.unmasked = stats.unmasked + row.further;
    if constexpr (Op::selects) {
        long size = padded<float>(n) + lanes<float>;
        Op::find_quantile(n, row.parameter, s, [&](long j) {
            return select_near(hint, x, n, j, stats.top, stats.moments, scratch, scratch + size);
        });
    }
    if constexpr (Op::power > 0) s.lo = simplex<Op::power>(Scores{x}, n, stats.top, scratch);
    if constexpr (Op::power < 0) find_entmax(row, s, scratch);
}

// ------------------------------------------------------------------------------------------------ the mass of a score

// w e^(x - m), and the coefficients of the gradient.
template <class W> struct WeightedMass {
    static constexpr bool constant = W::constant;
    W w;
    float m, unit;
    INLINE IntVec<float> in_support(Vec<float> x) const { return w.in_support(x, x - m); }
    INLINE Vec<float> operator()(Vec<float> x) const { return w(x, x - m) * scaled_exp<float>(x - m); }
    // dp/dw where w rises with x; must match the second one in weighted_gradient of rows/operations.h.
    INLINE Vec<float> rise(Vec<float> x) const {
        constexpr float largest = std::numeric_limits<float>::max();
        Vec<float> u = w.rises(x, x - m) ? scaled_exp<float>(x - m) * unit : Vec<float>{};
        return u > largest ? splat(largest) : u;
    }
    INLINE void coefficients(Vec<float> x, Vec<float> p, Vec<float>& c, Vec<float>& term) const {
        if constexpr (constant) {
            c = p;
            term = Vec<float>{};
        } else {
            Vec<float> u = rise(x);
            c = p + u;
            term = w.term(u, x - m);
        }
    }
};

// ([z - tau]+)^q; the coefficient is p^(1 - 1/q), and the mean is that under the coefficients.  Must match Projection
// in rows/operations.h.
template <int q> struct ProjectedMass {
    static constexpr bool constant = true;
    float m, tau;
    INLINE Vec<float> above(Vec<float> x) const { return maximum((x - m) * (1.f / q) - tau, Vec<float>{}); }
    INLINE IntVec<float> in_support(Vec<float> x) const { return above(x) > 0; }
    INLINE Vec<float> operator()(Vec<float> x) const { return q == 1 ? above(x) : above(x) * above(x); }
    INLINE void coefficients(Vec<float> x, Vec<float>, Vec<float>& c, Vec<float>& term) const {
        c = q == 1 ? (in_support(x) ? splat(1.f) : Vec<float>{}) : above(x);
        term = Vec<float>{};
    }
};

// p itself, for alpha = 1 ...
struct SoftmaxMass {
    static constexpr bool constant = true;
    float m, peak;
    INLINE IntVec<float> in_support(Vec<float> x) const { return x > -inf<float>; }
    INLINE Vec<float> operator()(Vec<float> x) const { return scaled_exp<float>(x - m) * peak; }
    INLINE void coefficients(Vec<float>, Vec<float> p, Vec<float>& c, Vec<float>&) const { c = p; }
};

// ... and for any other.
struct TsallisMass {
    static constexpr bool constant = true;
    float m;
    Tsallis<float> row;
    INLINE IntVec<float> in_support(Vec<float> x) const { return row.base(x - m) > 0; }
    INLINE Vec<float> operator()(Vec<float> x) const { return row(x - m, row.base(x - m)); }
    INLINE void coefficients(Vec<float>, Vec<float> p, Vec<float>& c, Vec<float>&) const {
        c = power<float>(p, 1 - row.b);
    }
};

// With the gradient in alpha.
template <class M> struct EntmaxMass : M {
    float b;
    INLINE void coefficients(Vec<float> x, Vec<float> p, Vec<float>& c, Vec<float>& term) const {
        M::coefficients(x, p, c, term);
        term = alpha_gradient<float>(p, c, b);
    }
};

template <class F> INLINE void with_entmax(double alpha, const RowState& s, F f) {
    float m = s.m, lo = s.lo, hi = s.hi, b = float(alpha - 1);
    if (alpha == 1) f(EntmaxMass<SoftmaxMass>{{m, hi}, b});
    else if (alpha == 1.5) f(EntmaxMass<ProjectedMass<2>>{{m, lo}, b});
    else if (alpha == 2) f(EntmaxMass<ProjectedMass<1>>{{m, lo}, b});
    else {
        Tsallis<float> row(b, 0);
        row.scale = lo;
        row.peak = hi;
        f(EntmaxMass<TsallisMass>{{m, row}, b});
    }
}

// Calls f with the mass function of a row.
template <class Op, class F> INLINE void with_mass(const Parameter& parameter, const RowState& s, F f) {
    if constexpr (Op::power > 0) f(ProjectedMass<Op::power>{float(s.m), float(s.lo)});
    else if constexpr (Op::power < 0) with_entmax(parameter.value, s, f);
    else Op::template with_weights<float>(parameter, s, [&](auto w) {
        float unit = 0;
        if constexpr (!w.constant) unit = float(std::min(w.slope / s.sum, double(std::numeric_limits<float>::max())));
        f(WeightedMass<decltype(w)>{w, float(s.m), unit});
    });
}

// ------------------------------------------------------------------------------------------------------------ forward

// These loops copy the mass function from a reference, number by number: by value it would be copied in vectors, which
// wait for the numbers that were just written.

template <class M> NOINLINE long count_support(const M& function, const float* x, long n) {
    M mass = function;
    IntVec<float> support{};
    for (long i = 0; i < n; i += lanes<float>) support -= mass.in_support(load(x + i));
    return reduce(support, plus);
}

template <class Op> long support_size(const ScoreRow& row, const RowState& s, long listed) {
    if (is_nan(s)) return row.n;
    if (is_empty(s)) return 0;
    if constexpr (std::is_same_v<Op, Softmax>) return s.unmasked;
    if constexpr (Op::selects) {
        QuantilePosition at(row.parameter, s.unmasked);
        return at.is_dense ? s.unmasked : s.unmasked - 1 - std::floor(at.position);
    }
    if (listed >= 0) return listed;
    long count = 0;
    with_mass<Op>(row.parameter, s, [&](const auto& mass) { count = count_support(mass, row.x, row.n); });
    return count;
}

// From scores to masses times a factor, in place; returns the sum of the masses.
template <class M> NOINLINE double compute_masses(const M& function, float factor, float* x, long n) {
    M mass = function;
    Sum<float> sum;
    for (long i = 0; i < n; i += lanes<float>) {
        Vec<float> v = mass(load(x + i));
        store(x + i, v * factor);
        sum.add(v, i);
    }
    return sum.get();
}

// Calls f(mass), which changes a row of scores in place, unless all weights are NaN or zero.
template <class Op, class F> void with_mass_or_fill(const ScoreRow& row, const RowState& s, float* x, F f) {
    if (is_nan(s)) std::fill(x, x + row.n, NAN);
    else if (is_empty(s)) std::fill(x, x + row.n, 0.f);
    else with_mass<Op>(row.parameter, s, f);
}

// The masses of a projection are its weights.
template <class Op> constexpr bool is_projection = Op::power != 0;

template <class Op> void compute_weights(const ScoreRow& row, RowState& s, float* x) {
    with_mass_or_fill<Op>(row, s, x, [&](const auto& mass) {
        double total = compute_masses(mass, 1, x, row.n);
        if (is_projection<Op>) return;
        s.sum = total;
        Quotient<float> quotient(total);
        for (long i = 0; i < row.n; i += lanes<float>) store(x + i, quotient(load(x + i)));
    });
}

template <class Op> float compute_undivided(const ScoreRow& row, RowState& s, float* x) {
    float divisor = 1;
    with_mass_or_fill<Op>(row, s, x, [&](const auto& mass) {
        // A power of two: products with moderate values do not overflow, and a mass is a normal number if its weight is
        // not zero, so that underflow is gradual and rounds once.
        float factor = is_projection<Op> ? 1 : scale(mass(splat(float(s.m)))[0]) * 0x1p24f;
        double total = compute_masses(mass, factor, x, row.n);
        if (is_projection<Op>) return;
        s.sum = total;
        divisor = float(total * factor);
    });
    return divisor;
}

// ----------------------------------------------------------------------------------------------------------- as lists

// Row i of the lists, from `from` on: the scores in the support, in order; a vector of -inf follows.
template <class M> NOINLINE void fill(Lists& lists, long i, long from, const ScoreRow& row, const M& function) {
    M mass = function;
    // Most scores are not: vectors to skip at once.
    constexpr long unroll = 4, n = lanes<float>;
    const float* x = row.x;
    float* values = lists.values;
    int32_t* keys = lists.keys;
    IntVec<float> first = iota<float>() + int32_t(row.first_key);
    long c = from;
    auto add = [&](long j) {
        Vec<float> v = load(x + j);
        IntVec<float> keep = mass.in_support(v);
        compress<int32_t>(keys + c, first + int32_t(j), keep);
        c += compress<float>(values + c, v, keep);
    };
    for (long t = 0; t < lists.tiles; t++) {
        long j = t * lists.tile, end = std::min(j + lists.tile, row.n);
        for (; j + unroll * n <= end; j += unroll * n) {
            IntVec<float> some{};
#pragma GCC unroll 4
            for (long k = 0; k < unroll; k++) some |= mass.in_support(load(x + j + k * n));
            if (!all<float>(~some)) for (long k = 0; k < unroll; k++) add(j + k * n);
        }
        for (; j < end; j += n) add(j);
        lists.ends[i * lists.tiles + t] = c;
    }
    store(values + c, splat(-inf<float>));
    lists.start[i] = from;
    lists.count[i] = c - from;
}

struct WholeRow { INLINE IntVec<float> in_support(Vec<float>) const { return ~IntVec<float>{}; } };

// A row that is NaN throughout, or has no weight at all.
void fill_whole(Lists& lists, long i, long from, ScoreRow row, const RowState& s) {
    if (is_empty(s)) row.n = 0;
    long whole = row.n / lanes<float> * lanes<float>;
    fill(lists, i, from, row, WholeRow());
    // The last vector was appended to its end.
    if (row.n > whole) {
        for (long t = 0; t < lists.tiles; t++)
            lists.ends[i * lists.tiles + t] = std::min(lists.ends[i * lists.tiles + t], from + row.n);
        lists.count[i] = row.n;
    }
    std::fill(lists.values + from, lists.values + from + row.n, NAN);
}

template <class Op> void build_list(const ScoreRow& row, const RowState& s, Lists& lists, long i, long from) {
    if (s.unmasked == 0) fill_whole(lists, i, from, row, s);
    else with_mass<Op>(row.parameter, s, [&](const auto& mass) { fill(lists, i, from, row, mass); });
}

// ----------------------------------------------------------------------------------------------------------- backward

// The weights again, with the sum from forward, and the coefficients; to.p may be x.
template <class M>
NOINLINE void recompute_weights_with(const M& function, double total, bool is_projection, const float* x, long n,
    Coefficients to) {
    M mass = function;
    Quotient<float> quotient(total);
    for (long i = 0; i < n; i += lanes<float>) {
        Vec<float> v = load(x + i), p = mass(v), c, term;
        if (!is_projection) p = quotient(p);
        mass.coefficients(v, p, c, term);
        store(to.p + i, p);
        store(to.c + i, c);
        store(to.term + i, term);
    }
}

void fill_nan(long n, Coefficients to) {
    std::fill(to.p, to.p + n, NAN);
    std::fill(to.c, to.c + n, NAN);
    std::fill(to.term, to.term + n, 0.f);
}

template <class Op> void recompute_weights(const ScoreRow& row, const RowState& s, Coefficients to) {
    if (s.unmasked == 0) fill_nan(row.n, to);
    else with_mass<Op>(row.parameter, s, [&](const auto& mass) {
        recompute_weights_with(mass, s.sum, is_projection<Op>, row.x, row.n, to);
    });
}

template <class Op>
void rebuild_list(const ScoreRow& row, const RowState& s, Lists& lists, long i, long from, Coefficients to) {
    build_list<Op>(row, s, lists, i, from);
    recompute_weights<Op>({lists.values + from, lists.count[i], 0, row.parameter}, s, to);
}

template <class Op>
double propagate_threshold(const ScoreRow& row, const RowState& s, double total, GradientReceiver& receiver) {
    double dvalue = Op::power < 0 ? total : 0;
    with_mass<Op>(row.parameter, s, [&](auto mass) {
        if constexpr (!mass.constant) {
            auto w = mass.w;
            IntVec<float> index = iota<float>();
            for (long i = 0; i < row.n; i += lanes<float>) {
                w.find(load(row.x + i), index);
                index += int32_t(lanes<float>);
            }
            auto pass = [&](long i, double a) { receiver.add(row.first_key + i, a); };
            dvalue = w.propagate_threshold(total, Scores{row.x}, row.n, row.parameter, s, false, pass);
        }
    });
    return dvalue;
}

template <class Op> constexpr AttentionFunctions functions = {
    is_projection<Op>, least_score<Op>, find_threshold<Op>, support_size<Op>, compute_weights<Op>,
    compute_undivided<Op>, build_list<Op>, recompute_weights<Op>, rebuild_list<Op>, propagate_threshold<Op>};

// In the order of operation_names.
constexpr AttentionFunctions every[] = {
    functions<Softmax>, functions<TSoftmax>, functions<RSoftmax>, functions<RSoftmax>, functions<Sparsemax>,
        functions<Entmax15>,
    functions<AnyEntmax>};
static_assert(sizeof every / sizeof *every == operation_count, "one entry for each of operation_names");

}  // namespace

const AttentionFunctions* const attention_functions = every;

}  // namespace rsoftmax
