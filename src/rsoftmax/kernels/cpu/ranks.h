// Order statistics of rows side by side, exact with ties.
#pragma once

#include "columns.h"
#include "logarithm.h"

namespace {

// Integers that are ordered as the numbers are: the bits, the negative ones reversed.  The same way back.
template <class T> INLINE I<T> key(V<T> v) {
    I<T> b = (I<T>)v;
    return b ^ ((b >> (8 * sizeof(T) - 1)) & std::numeric_limits<Int<T>>::max());
}
template <class T> INLINE V<T> number_of(I<T> key_) { return (V<T>)key<T>((V<T>)key_); }

// The entries next to a pivot: how many are greater than it, the largest that is not, and the least that is.
template <class T> struct Cut {
    using U = typename vec<std::make_unsigned_t<Int<T>>, bytes>::type;
    I<T> greater{}, under, over;
    // All keys differ by less than the range of an unsigned integer: downwards from the pivot and round to the other end,
    // the nearest below comes first and the nearest above last.
    Cut(const Columns<T>& keys, I<T> pivot) {
        U first = U{} - 1, last{};
        for (long i = 0; i < keys.n; i++) {
            I<T> k = (I<T>)keys(i);
            U down = (U)pivot - (U)k;
            greater -= k > pivot;
            first = smaller(first, down), last = larger(last, down);
        }
        under = (I<T>)((U)pivot - first), over = (I<T>)((U)pivot - last);
    }
};

template <class T> struct Neighbours { V<T> lo, hi, least; };

// In each lane, the entry `lo` that has `rank` entries above it in order, the one that follows it, `hi`, and the least that
// is greater than lo; the maximum stands for what does not exist.  lo lies between two entries, a <= lo <= b, and `from`
// entries are not below a, `above` are greater than b.  Each pass cuts the row at a pivot p, a <= p < b, and one of the
// entries next to the cut replaces a or b: a pass leaves out at least one value, ties at once.  Pivots interpolate between
// the counts at a and b; an end that stays gets less and less weight, or a far outlier would hold them up.
template <class T> Neighbours<T> neighbours(const Columns<T>& keys, const Summary<T>& row, I<T> rank) {
    I<T> a = key<T>(row.bottom), b = key<T>(row.top), next = b, from = row.kept, above{};
    V<T> wa = splat<T>(1), wb = wa;
    V<T> odds = real<T>(row.kept - rank) / real<T>(rank);             // as if the distribution were logistic
    V<T> guess = row.mean() + row.spread() * T(.5875) * log<T>(odds);
    for (;;) {
        I<T> last = above == rank, at_b = last | (a == b), done = at_b | (from - above == 2);
        if (everywhere<T>(done))
            return {number_of<T>(at_b ? b : a), number_of<T>(last ? next : b), number_of<T>(at_b ? next : b)};
        I<T> p = key<T>(guess);
        p = ((p >= a) & (p < b)) ? p : a;
        Cut<T> cut(keys, p);
        I<T> up = cut.greater > rank;                                 // lo is greater than p
        a = up ? cut.over : a, from = up ? cut.greater : from, wa = up ? splat<T>(1) : wa * T(.75);
        b = up ? b : cut.under, above = up ? above : cut.greater;
        next = (up | (cut.greater == 0)) ? next : cut.over;           // 0: lo is the maximum, and other lanes go on
        wb = up ? wb * T(.75) : splat<T>(1);
        V<T> fa = (real<T>(from - rank) - T(.5)) * wa, fb = (real<T>(rank - above) - T(.5)) * wb, t = fb / (fa + fb);
        guess = number_of<T>(b) * (1 - t) + number_of<T>(a) * t;
    }
}

}  // namespace
