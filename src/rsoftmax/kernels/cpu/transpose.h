// A square of numbers, rows to columns.
#pragma once

#include "vectors.h"

namespace {

template <class A, size_t... k> INLINE A interleaved(A a, A b, long upper, std::index_sequence<k...>) {
    constexpr int n = sizeof...(k);
    return upper ? __builtin_shufflevector(a, b, (n / 2 + k / 2 + (k % 2) * n)...)
                 : __builtin_shufflevector(a, b, (k / 2 + (k % 2) * n)...);
}

// As many vectors as a vector has lanes: as many perfect shuffles as the number of lanes has bits.
template <class T> INLINE void transpose(V<T>* r) {
    constexpr long n = lanes<T>;
    constexpr auto all = std::make_index_sequence<n>();
#pragma GCC unroll 4
    for (long step = 1; step < n; step *= 2) {
        V<T> t[n];
#pragma GCC unroll 16
        for (long i = 0; i < n; i++) t[i] = interleaved(r[i / 2], r[i / 2 + n / 2], i % 2, all);
#pragma GCC unroll 16
        for (long i = 0; i < n; i++) r[i] = t[i];
    }
}

}  // namespace
