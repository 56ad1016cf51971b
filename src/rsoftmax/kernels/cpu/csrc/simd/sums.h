// A sum that stays accurate for a million terms.
#pragma once

#include "vectors.h"

namespace rsoftmax {
namespace {

// Short runs in lanes, their totals in double, with compensation for what those round off (Knuth's two-sum).
template <class T> struct Sum {
    Vec<T> run{};
    double total = 0, rest = 0;
    // i: the position of v in the row.
    INLINE void add(Vec<T> v, long i) {
        run += v;
        if ((i + lanes<T>) % ((sizeof(T) == 4 ? 32 : 8) * lanes<T>) == 0) {
            double r = reduce(run, plus), t = total + r, b = t - total;
            rest += (total - (t - b)) + (r - b);
            total = t;
            run = Vec<T>{};
        }
    }
    INLINE double get() const { return total + (rest + double(reduce(run, plus))); }
};

}  // namespace
}  // namespace rsoftmax
