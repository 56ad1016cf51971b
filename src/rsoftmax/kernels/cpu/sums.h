// A sum that stays accurate for a million terms.
#pragma once

#include "vectors.h"

namespace {

// Short runs in lanes, their totals in double, and what those round off kept too (Knuth's two-sum).
template <class T> struct Sum {
    V<T> run{};
    double total = 0, rest = 0;
    INLINE void add(V<T> v, long i) {                                 // i: where v lies in the row
        run += v;
        if ((i + lanes<T>) % ((sizeof(T) == 4 ? 32 : 8) * lanes<T>) == 0) {
            double r = fold(run, plus), t = total + r, b = t - total;
            rest += (total - (t - b)) + (r - b), total = t, run = V<T>{};
        }
    }
    INLINE double get() const { return total + (rest + double(fold(run, plus))); }
};

}  // namespace
