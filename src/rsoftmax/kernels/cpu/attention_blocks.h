// A block of queries against the keys of their head: what forward and backward share.
#pragma once

#include "attention_rows.h"
#include "products.h"

namespace {

constexpr long block = 24;                                            // queries of a block: a multiple of `tall`
constexpr long lone = 2;                                              // queries of a head that do not pay for panels; measured
constexpr long key_tile = 128;                                        // keys whose values stay in a near cache; measured
// With a larger share of weights that are not zero, dense products are faster; measured.
constexpr double dense_forward = .55, dense_backward = .42;

// Memory cut into pieces; without memory it only counts.
struct Pieces {
    char* next = nullptr;
    size_t used = 0;
    template <class T> T* take(long count) {
        size_t size = (count * sizeof(T) + 63) / 64 * 64;
        T* piece = next ? (T*)(next + used) : nullptr;
        used += size;
        return piece;
    }
};

// The rows of a matrix that vectors can run over: where they lie, or a copy with filled rows.
struct Rows { const float* at; long row; };

template <class S> bool in_place(long width) { return std::is_same_v<S, float> && width % wide == 0; }

template <class S> Rows rows_of(const char* x, const Strides& at, const Head& h, long count, long width, float* copy) {
    const S* first = (const S*)x + h.batch * at[0] + h.head * at[1];
    if (in_place<S>(width)) return {(const float*)first, at[3]};
    copy_rows(first, at[3], count, width, copy, widened(width));
    return {copy, widened(width)};
}

// The keys of a head as panels, all of them made before, or one after the other where each serves once.
template <class S> struct Panels {
    const S* x;
    long x_row, count, width;
    float* memory;
    bool all;
    void make() const {
        for (long j = 0; j < count; j += wide) make_panel(x + j * x_row, x_row, count - j, width, memory + j * width);
    }
    const float* operator()(long j) const {
        if (all) return memory + j * width;
        make_panel(x + j * x_row, x_row, count - j, width, memory);
        return memory;
    }
};
template <class S> Panels<S> panels_of(const char* x, const Strides& at, const Head& h, long width, float* memory, bool all) {
    return {(const S*)x + h.batch * at[0] + h.head * at[1], at[3], long(h.call.length), width, memory, all};
}

// The numbers of a block of rows.
template <class S> struct Block {
    const Head& head;
    long first, rows, limit = 0;                                      // limit: the keys that any of them sees
    Block(const Head& head, long first) : head(head), first(first), rows(std::min(block, head.rows() - first)) {
        for (long i = 0; i < rows; i++) limit = std::max(limit, place(i).sees(head.call));
    }
    Place place(long i) const { return Place(head, first + i); }

    // Queries times the scale, each in `room` entries.
    void queries(float* to, long room) const {
        const Attention& c = head.call;
        for (long i = 0; i < rows; i++)
            copy_rows((const S*)c.q + place(i).of(c.q_at), 0, 1, c.width, to + i * room, room, float(c.scale));
    }

    // The scores of all rows, with mask and bias.  Backward computes the same bits again.
    void scores(const float* q, long room, const Panels<S>& keys, float* s, long s_row) const {
        long width = head.call.width;
        if (head.rows() > lone)
            for (long j = 0; j < limit; j += wide) strip<false>({q, room, 1}, keys(j), wide, width, s + j, s_row, rows);
        else for (long j = 0; j < limit; j += lanes<float>)
            for (long i = 0; i < rows; i++)
                put(s + i * s_row + j, dots(q + i * room, keys.x + j * keys.x_row, keys.x_row, keys.count - j, width));
        for (long i = 0; i < rows; i++) complete(head.call, place(i), s + i * s_row, place(i).sees(head.call));
    }
};

// Entries in a row of scores: whole tiles, a vector of room, and not a power of two.
inline long score_room(const Attention& call) { return widened(call.length) + wide; }

// The weights of a block that are not zero, row after row, and where each row's part in a tile of keys ends: the parts of
// one tile are used for all rows before those of the next, so that what belongs to these keys stays in the cache.
struct Lists {
    float* values;
    int32_t* places;
    long *ends, tile, tiles = 0;                                      // tile: its keys; tiles: those that the block sees
    long start[block], count[block];

    static long most_tiles(long length, long tile) { return (length + tile - 1) / tile; }
    void begin(long limit) { tiles = most_tiles(limit, tile); }

    // Row i, in memory from `from` on: those of n scores that are on(score, key), in order; a vector of -inf follows.
    template <class On> INLINE void fill(long i, long from, const float* x, long n, On on) {
        long c = from;
        I<float> key = iota<float>();
        for (long t = 0; t < tiles; ends[i * tiles + t++] = c)
            for (long j = t * tile; j < std::min((t + 1) * tile, n); j += lanes<float>, key += int32_t(lanes<float>)) {
                V<float> v = at(x + j);
                I<float> keep = on(v, key);
                pack<int32_t>(places + c, key, keep);
                c += pack<float>(values + c, v, keep);
            }
        put(values + c, splat(-inf<float>));
        start[i] = from, count[i] = c - from;
    }

    // A row that is NaN throughout, or has no weight at all.
    void fill_whole(long i, long from, const float* x, long n, const State& state) {
        fill(i, from, x, is_nan(state) ? n : 0, [n](V<float>, I<float> key) { return key < int32_t(n); });
        std::fill(values + from, values + from + count[i], NAN);
    }

    // Calls f(row, from, to) with the parts of all rows in tile t.
    template <class F> INLINE void parts(long rows, long t, F f) const {
        for (long i = 0; i < rows; i++) {
            long from = t ? ends[i * tiles + t - 1] : start[i], to = ends[i * tiles + t];
            if (from < to) f(i, from, to);
        }
    }
};

}  // namespace
