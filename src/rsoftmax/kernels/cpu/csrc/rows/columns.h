// Short rows side by side, one in each lane of a vector, so that no sum over lanes is needed.
#pragma once

#include "../simd/transpose.h"

namespace rsoftmax {
namespace {

template <class T> INLINE V<T> to_float(I<T> i) { return __builtin_convertvector(i, V<T>); }

// As many rows of n entries as a vector has lanes: column i holds entry i of each.
template <class T> struct Columns {
    T* memory;                                                        // of entries(n)
    long n;

    static long entries(long n) { return std::max(n, lanes<T>) * lanes<T>; }
    INLINE V<T> operator()(long i) const { return load(memory + i * lanes<T>); }
    INLINE void set(long i, V<T> column) const { store(memory + i * lanes<T>, column); }

    // From rows: row(k, i) is the vector of row k that begins at entry i; f(i, v) keeps column i.
    template <class Row, class F> INLINE void read(Row row, F f) const {
        each_square([&](long i) {
            V<T> r[lanes<T>];
#pragma GCC unroll 16
            for (long k = 0; k < lanes<T>; k++) r[k] = row(k, i);
            transpose<T>(r);
#pragma GCC unroll 16
            for (long k = 0; k < lanes<T>; k++) f(i + k, r[k]);
        });
    }

    // To rows: calls row(k, i, v) with the same vectors, of what f makes of the columns.
    template <class F, class Row> INLINE void write(F f, Row row) const {
        each_square([&](long i) {
            V<T> r[lanes<T>];
#pragma GCC unroll 16
            for (long k = 0; k < lanes<T>; k++) r[k] = f((*this)(i + k));
            transpose<T>(r);
#pragma GCC unroll 16
            for (long k = 0; k < lanes<T>; k++) row(k, i, r[k]);
        });
    }

private:
    // The last square ends where the rows end and may overlap the one before it: no row ends within a vector.
    template <class F> INLINE void each_square(F f) const {
        for (long i = 0; i < n; i += lanes<T>) f(std::max(0l, std::min(i, n - lanes<T>)));
    }
};

// Statistics of the kept entries of each row.
template <class T> struct LaneStats {
    V<T> top = splat(-inf<T>), bottom = splat(inf<T>), sum{}, squares{};
    I<T> kept{}, bad{};                                               // how many are kept; where one is NaN or +inf
    T terms = 0;                                                      // of the sums, in which an entry may count twice

    INLINE void add(V<T> v) {
        top = maximum(v, top);
        bottom = minimum(v, bottom);
        sum += v;
        squares += v * v;
        terms++;
    }
    INLINE bool is_finite() const { return all<T>(sum - sum == 0); }   // no entry is removed, and none is bad

    // The same, if something is not finite.
    void add_all(const Columns<T>& x) {
        *this = LaneStats();
        for (long i = 0; i < x.n; i++) {
            V<T> v = x(i);
            I<T> in = v > -inf<T>, fine = v < inf<T>;
            kept -= in;
            bad |= ~fine;
            in &= fine;
            top = maximum(in ? v : splat(-inf<T>), top);
            bottom = minimum(in ? v : splat(inf<T>), bottom);
            v = in ? v : V<T>{};
            sum += v;
            squares += v * v;
        }
        terms = x.n;
        V<T> share = T(x.n) / to_float<T>(kept);                          // removed entries count for nothing
        sum *= share;
        squares *= share;
    }
    V<T> mean() const { return sum / terms; }
    V<T> deviation() const { return square_root<T>(maximum(squares / terms - mean() * mean(), V<T>{})); }
};

}  // namespace
}  // namespace rsoftmax
