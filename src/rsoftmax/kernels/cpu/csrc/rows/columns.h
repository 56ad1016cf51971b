// Short rows side by side, one in each lane of a vector, so that no sum over lanes is needed.
#pragma once

#include "../simd/transpose.h"

namespace rsoftmax {
namespace {

template <class T> INLINE Vec<T> to_float(IntVec<T> i) { return __builtin_convertvector(i, Vec<T>); }

// As many rows of n entries as a vector has lanes: column i holds entry i of each.
template <class T> struct Columns {
    // memory: entries(n) numbers.
    T* memory;
    long n;

    static long entries(long n) { return std::max(n, lanes<T>) * lanes<T>; }
    INLINE Vec<T> operator()(long i) const { return load(memory + i * lanes<T>); }
    INLINE void set(long i, Vec<T> column) const { store(memory + i * lanes<T>, column); }

    // From rows: row(k, i) is the vector of row k that begins at entry i; f(i, v) keeps column i.
    template <class Row, class F> INLINE void read(Row row, F f) const {
        each_square([&](long i) {
            Vec<T> r[lanes<T>];
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
            Vec<T> r[lanes<T>];
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

// Statistics of the unmasked entries of each row.
template <class T> struct LaneStats {
    Vec<T> top = splat(-inf<T>), bottom = splat(inf<T>), sum{}, squares{};
    // The number of unmasked entries, and where one is NaN or +inf.
    IntVec<T> unmasked{}, bad{};
    // The number of terms of the sums, in which an entry may count twice.
    T terms = 0;

    INLINE void add(Vec<T> v) {
        top = maximum(v, top);
        bottom = minimum(v, bottom);
        sum += v;
        squares += v * v;
        terms++;
    }
    // Whether no entry is masked or bad.
    INLINE bool is_finite() const { return all<T>(sum - sum == 0); }

    // The same, if something is not finite.
    void add_all(const Columns<T>& x) {
        *this = LaneStats();
        for (long i = 0; i < x.n; i++) {
            Vec<T> v = x(i);
            IntVec<T> in = v > -inf<T>, fine = v < inf<T>;
            unmasked -= in;
            bad |= ~fine;
            in &= fine;
            top = maximum(in ? v : splat(-inf<T>), top);
            bottom = minimum(in ? v : splat(inf<T>), bottom);
            v = in ? v : Vec<T>{};
            sum += v;
            squares += v * v;
        }
        terms = x.n;
        // Masked entries count for nothing.
        Vec<T> share = T(x.n) / to_float<T>(unmasked);
        sum *= share;
        squares *= share;
    }
    Vec<T> mean() const { return sum / terms; }
    Vec<T> deviation() const { return square_root<T>(maximum(squares / terms - mean() * mean(), Vec<T>{})); }
};

}  // namespace
}  // namespace rsoftmax
