// One row of attention: its scores with mask and bias, and what a mapping does with them.
#pragma once

#include "call.h"
#include "../rows/quantile_hint.h"

namespace rsoftmax {

constexpr long block_rows = 24;                                       // queries of a block: a multiple of `tall`

// The weights of a block that are not zero, row after row, and where each row's part in a tile of keys ends: the parts of
// one tile are used for all rows before those of the next, so that what belongs to these keys stays in the cache.
struct Lists {
    float* values;
    int32_t* keys;
    long *ends, tile, tiles = 0;                                      // tile: keys in one; tiles: so many in the block
    long start[block_rows], count[block_rows];

    static long most_tiles(long length, long tile) { return (length + tile - 1) / tile; }
    void begin(long keys_of_a_row) { tiles = most_tiles(keys_of_a_row, tile); }

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
    long n, first_key;                                                // first_key: that of x[0]
    Parameter by;
};

// The coefficients of the gradient in a row: ds = c (dp - mean), and `term`, whose sum times (dp - mean) is the gradient in
// the threshold.  p: the weights again.
struct Coefficients { float *p, *c, *term; };

struct GradientReceiver {
    virtual void add(long index, double gradient) = 0;                // to the gradient in a score
};

// What a mapping does with a row of scores, for each operation; see row_functions.cpp.
struct AttentionFunctions {
    bool is_projection;                                               // the mean is that under the coefficients
    // The maximum and the threshold.  scratch has room for three rows.
    RowState (*find_threshold)(const ScoreRow&, QuantileHint&, float* scratch);
    long (*support_size)(const ScoreRow&, const RowState&);
    // Scores to weights, in place.
    void (*weigh)(const ScoreRow&, RowState&, float* x);
    // Row i of the lists, from `from` on: the keys with weight, and their scores.
    void (*list)(const ScoreRow&, const RowState&, Lists&, long i, long from);
    // The weights and coefficients of all scores, or of those with weight, as a list.
    void (*weigh_again)(const ScoreRow&, const RowState&, Coefficients);
    void (*list_again)(const ScoreRow&, const RowState&, Lists&, long i, long from, Coefficients);
    // Passes the gradient of the threshold to scores; returns the gradient in the parameter.
    double (*pass_on)(const ScoreRow&, const RowState&, double total, GradientReceiver&);
};
extern const AttentionFunctions attention_functions[operation_count];

namespace {

// kept = 0 marks a row without weights, m = NaN one that is NaN throughout.
inline bool is_nan(const RowState& s) { return s.kept == 0 && s.m != s.m; }
inline bool is_empty(const RowState& s) { return s.kept == 0 && s.m == s.m; }

}  // namespace
}  // namespace rsoftmax
