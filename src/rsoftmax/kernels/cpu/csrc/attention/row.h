// One row of attention: its scores with mask and bias, and what a mapping does with them.
#pragma once

#include "call.h"
#include "../rows/quantile_hint.h"

namespace rsoftmax {

// Queries of a block, at most; a multiple of `tile_rows`.
constexpr long block_rows = 48;
// Few keys and a causal mask: smaller blocks have fewer scores of keys that a query does not see.  Measured.
constexpr long short_length = 256, short_block_rows = block_rows / 2;
inline long rows_of_block(const AttentionCall& call) {
    return call.causal && call.length <= short_length ? short_block_rows : block_rows;
}

// The weights of a block that are not zero, row after row, and where each row's part in a tile of keys ends: the parts
// of one tile are used for all rows before those of the next, so that what belongs to these keys stays in the cache.
struct Lists {
    float* values;
    int32_t* keys;
    // The ends, the number of keys in a tile, and the number of tiles in the block.
    long *ends, tile, tiles = 0;
    long start[block_rows], count[block_rows];

    static long max_tiles(long length, long tile) { return (length + tile - 1) / tile; }
    void begin(long keys_of_a_row) { tiles = max_tiles(keys_of_a_row, tile); }

    // Calls f(row, from, to) with the parts of all rows in tile t.
    template <class F> inline void parts(long rows, long t, F f) const {
        for (long i = 0; i < rows; i++) {
            long from = t ? ends[i * tiles + t - 1] : start[i], to = ends[i * tiles + t];
            if (from < to) f(i, from, to);
        }
    }
};

// The scores of a row, followed by -inf to the end of a vector.
struct ScoreRow {
    const float* x;
    // first_key: the key of x[0].
    long n, first_key;
    Parameter parameter;
    // The number of further scores, which are unmasked and less than all that have weight or decide about a threshold.
    long further = 0;
};

// The coefficients of the gradient in a row: ds = c (dp - mean), and `term`, whose sum times (dp - mean) is the
// gradient in the threshold.  p: the weights again.
struct Coefficients { float *p, *c, *term; };

struct GradientReceiver {
    // Adds to the gradient in a score.
    virtual void add(long index, double gradient) = 0;
};

// What a mapping does with a row of scores, for each operation; see row_functions.cpp.
struct AttentionFunctions {
    // Whether the mean in Coefficients is that under c; otherwise under p.
    bool is_projection;
    // No lower score has weight or decides about a threshold, whatever the scores are of which x has lower bounds; -inf
    // if that excludes none.  scratch holds two rows.
    float (*least_score)(const ScoreRow& x, float* scratch);
    // The maximum and the threshold.  scratch holds three rows.
    void (*find_threshold)(const ScoreRow&, QuantileHint&, float* scratch, RowState& to);
    // How many weights are not zero, apart from ties at the threshold.  listed: the length of the row's list, or -1.
    long (*support_size)(const ScoreRow&, const RowState&, long listed);
    // From scores to weights, in place.
    void (*compute_weights)(const ScoreRow&, RowState&, float* x);
    // To weights of at most 2^25, in place, whose divisor is returned.
    float (*compute_undivided)(const ScoreRow&, RowState&, float* x);
    // Row i of the lists, from `from` on: the keys with weight, and their scores.
    void (*build_list)(const ScoreRow&, const RowState&, Lists&, long i, long from);
    // The weights and coefficients of all scores, or of those with weight, as a list.
    void (*recompute_weights)(const ScoreRow&, const RowState&, Coefficients);
    void (*rebuild_list)(const ScoreRow&, const RowState&, Lists&, long i, long from, Coefficients);
    // Adds the gradient of the threshold to those of scores; returns the gradient in the parameter.
    double (*propagate_threshold)(const ScoreRow&, const RowState&, double total, GradientReceiver&);
};
// One entry for each operation, in the order of operation_names.
extern const AttentionFunctions* const attention_functions;

namespace {

// unmasked = 0 marks a row without weights, m = NaN one that is NaN throughout.
inline bool is_nan(const RowState& s) { return s.unmasked == 0 && s.m != s.m; }
inline bool is_empty(const RowState& s) { return s.unmasked == 0 && s.m == s.m; }

}  // namespace
}  // namespace rsoftmax
