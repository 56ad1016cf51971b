// The row functions of every operation for one type to compute in.
#pragma once

#include "rows.h"
#include "short_rows.h"

namespace rsoftmax {
namespace {

template <class Op, class T> void map_rows(const RowsCall& call, long from, long to, T* memory) {
    if (call.g) {
        for (; from < to; from++) backward<Op, T>(call, from);
        return;
    }
    // Short rows of these two have a faster path.
    if constexpr (std::is_same_v<Op, Entmax>)
        if (!call.values) {
            if (call.number == 1.5) return map_rows<Entmax15, T>(call, from, to, memory);
            if (call.number == 2) return map_rows<Sparsemax, T>(call, from, to, memory);
        }
    if constexpr (longest<Op> > 0)
        if (call.n <= longest<Op>) {
            for (; from < to; from += lanes<T>) ShortRows<Op, T>(call, from, memory).forward();
            return;
        }
    QuantileHint hint;
    for (long row = from; row < to; row++) {
        // A hint serves one rate.
        if (row > from && call.value(row) != call.value(row - 1)) hint = {};
        forward<Op, T>(call, row, hint, memory);
    }
}

template <class Op, class T> long memory_entries(long n) {
    if constexpr (std::is_same_v<Op, Entmax>)
        return std::max(memory_entries<Entmax15, T>(n), memory_entries<Sparsemax, T>(n));
    return std::max(n <= longest<Op> ? ShortRows<Op, T>::entries(n) : 0, scratch_entries<T>(n));
}

template <class Op, class T> constexpr RowFunctions<T> functions = {map_rows<Op, T>, memory_entries<Op, T>};

// In the order of operation_names.
template <class T> constexpr RowFunctions<T> row_functions[] = {
    functions<Softmax, T>, functions<TSoftmax, T>, functions<RSoftmax, T>, functions<RSoftmax, T>,
    functions<Sparsemax, T>, functions<Entmax15, T>, functions<Entmax, T>};
static_assert(sizeof row_functions<float> == operation_count * sizeof(RowFunctions<float>), "one for each operation");

}  // namespace
}  // namespace rsoftmax
