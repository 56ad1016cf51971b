// The queries of a call, and the keys that each of them sees.
#pragma once

#include "../simd/formats.h"
#include "call.h"

namespace rsoftmax {
namespace {

// Calls f with a number of the call's dtype.
template <class F> INLINE void with_dtype(const AttentionCall& call, F f) {
    if (call.dtype == dtype_float16) f(float16());
    else if (call.dtype == dtype_bfloat16) f(bfloat16());
    else f(float());
}

// One key head of one batch element.  The queries that share its keys are its rows 0 .. groups * rows - 1.
struct Head {
    const AttentionCall& call;
    long batch, head;
    long rows() const { return call.groups * call.rows; }
    long offset(const Strides& strides) const { return batch * strides[0] + head * strides[1]; }
};

struct Range {
    // first <= j < last
    long first, last;
    long size() const { return last - first; }
};

// The keys from the first to the last that a query sees, and whether it sees all of them.
struct KeyRange : Range { bool all; };

// One query of a head.
struct Query {
    long batch, head, group, row;
    // Without groups, without the division.
    Query(const Head& h, long n)
        : batch(h.batch), head(h.head), group(h.call.groups == 1 ? 0 : n / h.call.rows), row(n - group * h.call.rows) {}
    long offset(const Strides& s) const { return batch * s[0] + head * s[1] + group * s[2] + row * s[3]; }
    long number(const AttentionCall& c) const { return ((batch * c.heads + head) * c.groups + group) * c.rows + row; }
    Parameter parameter(const AttentionCall& c) const {
        return {c.values ? c.values[offset(c.values_strides)] : c.number, c.edge, c.op == k_softmax};
    }
};

// The position of the first byte in [from, to) that is not zero, or `to`.
inline long first_unmasked(const uint8_t* mask, long from, long to) {
    uint64_t word[4] = {};
    for (; from + 32 <= to; from += 32) {
        memcpy(word, mask + from, 32);
        if (word[0] | word[1] | word[2] | word[3]) break;
    }
    while (from < to && !mask[from]) from++;
    return from;
}
// The position after the last such byte, or `from`.
inline long last_unmasked(const uint8_t* mask, long from, long to) {
    uint64_t word[4] = {};
    for (; to - 32 >= from; to -= 32) {
        memcpy(word, mask + to - 32, 32);
        if (word[0] | word[1] | word[2] | word[3]) break;
    }
    while (to > from && !mask[to - 1]) to--;
    return to;
}

// The keys that each query sees.  A mask that all heads share is read once for each of its rows.
struct VisibleKeys {
    static bool shares_mask(const AttentionCall& c) { return c.mask && !c.mask_strides[1] && !c.mask_strides[2]; }
    static long cache_size(const AttentionCall& c) { return shares_mask(c) ? c.rows : 0; }

    const AttentionCall& call;
    // The ranges of a batch element, one for each row of the mask: cache_size of them, -1 where not read yet.
    KeyRange* cached;
    long batch = -1;

    KeyRange operator()(const Query& query) {
        if (!shares_mask(call)) return read(query);
        long own = call.mask_strides[0] ? query.batch : 0;
        if (batch != own) std::fill(cached, cached + call.rows, KeyRange{{-1, -1}, false});
        batch = own;
        KeyRange& keys = cached[query.row];
        return keys.first < 0 ? keys = read(query) : keys;
    }

private:
    KeyRange read(const Query& query) const {
        long first = 0, last = call.causal ? std::min<long>(query.row + 1, call.length) : call.length;
        if (!call.mask) return {{first, last}, true};
        const uint8_t* mask = call.mask + query.offset(call.mask_strides);
        if (call.mask_strides[4] == 0) return {{first, *mask ? last : first}, true};
        if (call.mask_strides[4] != 1) return {{first, last}, false};
        last = last_unmasked(mask, first, last);
        first = first_unmasked(mask, first, last);
        return {{first, last}, !std::memchr(mask + first, 0, last - first)};
    }
};

}  // namespace
}  // namespace rsoftmax
