// Division of many numbers by one.
#pragma once

#include "vectors.h"

namespace rsoftmax {
namespace {

// v / total by a product and one correction step, which is as accurate as a division: a single entry gets exactly 1.
// N is a number, or a vector with a total for each lane.
template <class N> struct Quotient {
    N total, inverse;
    INLINE explicit Quotient(N total) : total(total), inverse(1 / total) {}
    template <class A> INLINE A operator()(A v) const {
        A q = v * inverse;
        return q + (v - q * total) * inverse;
    }
};

}  // namespace
}  // namespace rsoftmax
