// Order statistics of rows side by side, exact with ties.
#pragma once

#include "columns.h"
#include "../simd/logarithm.h"

namespace rsoftmax {
namespace {

// Integers in the order of the numbers: their bits, those of negative numbers reversed.  The sum makes -0 a tie of 0.
template <class T> INLINE IntVec<T> reversed_if_negative(IntVec<T> b) {
    return b ^ ((b >> (8 * sizeof(T) - 1)) & std::numeric_limits<Int<T>>::max());
}
template <class T> INLINE IntVec<T> ordered_bits(Vec<T> v) { return reversed_if_negative<T>((IntVec<T>)(v + T(0))); }
template <class T> INLINE Vec<T> from_ordered_bits(IntVec<T> b) { return (Vec<T>)reversed_if_negative<T>(b); }

// The entries next to a pivot: how many are greater, the largest that is not, and the least that is.
template <class T> struct Cut {
    using UintVec = typename vec<std::make_unsigned_t<Int<T>>, bytes>::type;
    IntVec<T> greater{}, under, over;
    // All keys differ by less than the range of an unsigned integer: downwards from the pivot and round to the other
    // end, the nearest below comes first and the nearest above last.
    INLINE Cut(const Columns<T>& keys, IntVec<T> pivot) {
        UintVec first = UintVec{} - 1, last{};
        for (long i = 0; i < keys.n; i++) {
            IntVec<T> k = (IntVec<T>)keys(i);
            UintVec down = (UintVec)pivot - (UintVec)k;
            greater -= k > pivot;
            first = minimum(first, down);
            last = maximum(last, down);
        }
        under = (IntVec<T>)((UintVec)pivot - first);
        over = (IntVec<T>)((UintVec)pivot - last);
    }
};

// Location and spread of the entries of each row, for a first guess: mean and standard deviation or, where outliers
// stretch these far beyond the span of a sample of eight, the median of the sample and the deviation that it suggests.
template <class T> struct Location {
    Vec<T> centre, spread;
    INLINE Location(const Columns<T>& keys, const LaneStats<T>& row) : centre(row.mean()), spread(row.deviation()) {
        constexpr long few = 8;
        // A guess saves too little there.
        if (keys.n < 4 * few) return;
        Vec<T> s[few];
        for (long k = 0; k < few; k++) s[k] = from_ordered_bits<T>((IntVec<T>)keys((2 * k + 1) * keys.n / (2 * few)));
        sort(s, few);
        // The deviation, if the entries are normal.
        Vec<T> width = (s[few - 2] - s[1]) * T(.59);
        IntVec<T> outliers = spread > 3 * width;
        centre = outliers ? (s[few / 2 - 1] + s[few / 2]) / 2 : centre;
        spread = outliers ? width : spread;
    }

private:
    // Sorts by exchanges, which are the same for all lanes.
    static INLINE void sort(Vec<T>* s, long count) {
#pragma GCC unroll 8
        for (long last = count - 1; last > 0; last--)
#pragma GCC unroll 8
            for (long k = 0; k < last; k++) {
                Vec<T> less = minimum(s[k], s[k + 1]);
                s[k + 1] = maximum(s[k], s[k + 1]);
                s[k] = less;
            }
    }
};

template <class T> struct Neighbours { Vec<T> lo, hi, least; };

// In each lane, the entry `lo` that has `rank` entries above it in order, the one that follows it, `hi`, and the least
// that is greater than lo; the maximum stands for what does not exist.  lo lies between two entries, a <= lo <= b, and
// `from` entries are not below a, `above` are greater than b.  Each pass cuts the row at a pivot p, a <= p < b, and
// one of the entries next to the cut replaces a or b: a pass excludes at least one value with all its ties.  The first
// two pivots are the quantile of a logistic distribution; all others interpolate between the counts at a and b, and an
// end that stays gets less and less weight, or a far outlier would stall the search.
template <class T> INLINE Neighbours<T> neighbours(const Columns<T>& keys, const LaneStats<T>& row, IntVec<T> rank) {
    IntVec<T> a = ordered_bits<T>(row.bottom), b = ordered_bits<T>(row.top), next = b, from = row.unmasked, above{};
    Vec<T> wa = splat<T>(1), wb = wa;
    Vec<T> below = to_float<T>(row.unmasked - rank), beyond = to_float<T>(rank);
    Location<T> where(keys, row);
    Vec<T> scale = where.spread * T(.5875), guess = where.centre + scale * log<T>(below / beyond);
    // The gap between entries there, for the second pivot.
    Vec<T> gap = scale * (1 / below + 1 / beyond);
    for (;; gap = Vec<T>{}) {
        IntVec<T> last = above == rank, at_b = last | (a == b), done = at_b | (from - above == 2);
        if (all<T>(done))
            return {from_ordered_bits<T>(at_b ? b : a), from_ordered_bits<T>(last ? next : b),
                from_ordered_bits<T>(at_b ? next : b)};
        IntVec<T> p = ordered_bits<T>(guess);
        p = ((p >= a) & (p < b)) ? p : a;
        Cut<T> cut(keys, p);
        // lo is greater than p.
        IntVec<T> up = cut.greater > rank;
        a = up ? cut.over : a;
        from = up ? cut.greater : from;
        wa = up ? splat<T>(1) : wa * T(.75);
        b = up ? b : cut.under;
        above = up ? above : cut.greater;
        // Where greater is 0, lo is the maximum, and other lanes continue.
        next = (up | (cut.greater == 0)) ? next : cut.over;
        wb = up ? wb * T(.75) : splat<T>(1);
        Vec<T> fa = (to_float<T>(from - rank) - T(.5)) * wa, fb = (to_float<T>(rank - above) - T(.5)) * wb,
            t = fb / (fa + fb);
        Vec<T> step = guess + gap * to_float<T>(cut.greater - rank), va = from_ordered_bits<T>(a),
            vb = from_ordered_bits<T>(b);
        guess = ((step > va) & (step < vb)) ? step : vb * (1 - t) + va * t;
    }
}

}  // namespace
}  // namespace rsoftmax
