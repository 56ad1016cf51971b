// A square of numbers, rows to columns, and the sums of its rows.
#pragma once

#include "vectors.h"

namespace rsoftmax {
namespace {

template <class A, size_t... k> INLINE A interleave(A a, A b, long upper, std::index_sequence<k...>) {
    constexpr int n = sizeof...(k);
    return upper ? __builtin_shufflevector(a, b, (n / 2 + k / 2 + (k % 2) * n)...)
                 : __builtin_shufflevector(a, b, (k / 2 + (k % 2) * n)...);
}

// As many vectors as a vector has lanes: as many perfect shuffles as the number of lanes has bits.
template <class T> INLINE void transpose(Vec<T>* r) {
    constexpr long n = lanes<T>;
    constexpr auto every = std::make_index_sequence<n>();
#pragma GCC unroll 4
    for (long step = 1; step < n; step *= 2) {
        Vec<T> t[n];
#pragma GCC unroll 16
        for (long i = 0; i < n; i++) t[i] = interleave(r[i / 2], r[i / 2 + n / 2], i % 2, every);
#pragma GCC unroll 16
        for (long i = 0; i < n; i++) r[i] = t[i];
    }
}

// Both halves of each segment of `size` lanes added, those of a in front of those of b.
template <long size, class A, size_t... k> INLINE A add_halves(A a, A b, std::index_sequence<k...>) {
    constexpr long n = sizeof...(k), half = size / 2;
    return __builtin_shufflevector(a, b, (long(k) % size < half ? long(k) : n + long(k) - half)...) +
           __builtin_shufflevector(a, b, (long(k) % size < half ? long(k) + half : n + long(k))...);
}
template <class T, long size = lanes<T>> INLINE void add_all_halves(Vec<T>* r) {
#pragma GCC unroll 16
    for (long i = 0; i < size / 2; i++)
        r[i] = add_halves<size>(r[i], r[i + size / 2], std::make_index_sequence<lanes<T>>());
    if constexpr (size > 2) add_all_halves<T, size / 2>(r);
}

// The sums of as many vectors as a vector has lanes, one in each lane; overwrites r.
template <class T> INLINE Vec<T> row_sums(Vec<T>* r) {
    add_all_halves<T>(r);
    return r[0];
}

}  // namespace
}  // namespace rsoftmax
