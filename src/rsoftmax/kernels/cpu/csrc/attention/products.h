// Matrix products of small blocks, in registers.
#pragma once

#include "../simd/formats.h"
#include "../simd/transpose.h"

namespace rsoftmax {
namespace {

// A tile of a product: its sums are in registers, 24 of 32 or 12 of 16.  Measured: with many registers, wide tiles
// are faster, which load less.
constexpr bool has_many_registers = bytes == 64;
#ifdef __aarch64__
constexpr int tile_sums = 24;
#else
constexpr int tile_sums = has_many_registers ? 24 : 12;
#endif
constexpr int tile_vectors = has_many_registers ? 4 : 2;
constexpr long tile_cols = tile_vectors * lanes<float>;
template <int vectors> constexpr int tile_rows = tile_sums / vectors;
// A narrow tile, for the last columns.
constexpr int narrow_vectors = 2;
constexpr long narrow_cols = narrow_vectors * lanes<float>;

// Loads `width` numbers of a row that is read soon into a near cache.
template <class S> INLINE void prefetch_row(const S* x, long width) {
    for (long d = 0; d < width; d += 64 / long(sizeof(S))) __builtin_prefetch(x + d);
}
// Rows that lie far away are prefetched so many rows ahead; measured.
constexpr long rows_ahead = 16;

INLINE long padded_to_tile(long n) { return (n + tile_cols - 1) / tile_cols * tile_cols; }
INLINE long padded_to_narrow(long n) { return (n + narrow_cols - 1) / narrow_cols * narrow_cols; }

// A matrix of contiguous rows, or one of contiguous columns.
struct ByRows {
    const float* data;
    long row;
    INLINE float operator()(long i, long j) const { return data[i * row + j]; }
    INLINE void skip(long rows) { data += rows * row; }
};
struct ByColumns {
    const float* data;
    long column;
    INLINE float operator()(long i, long j) const { return data[i + j * column]; }
    INLINE void skip(long rows) { data += rows; }
};

// c (M x N vectors) = a (M x depth) b (depth x N vectors), or c + a b; rows of b and c are contiguous.  Every sum runs
// over the depth in order, so a number does not depend on which tile computes it.
template <int M, int N, bool add, class A>
INLINE void tile(A a, const float* b, long b_row, long depth, float* c, long c_row) {
    Vec<float> sum[M][N];
#pragma GCC unroll 16
    for (int i = 0; i < M; i++)
#pragma GCC unroll 4
        for (int k = 0; k < N; k++) sum[i][k] = add ? load(c + i * c_row + k * lanes<float>) : Vec<float>{};
    for (long d = 0; d < depth; d++) {
        Vec<float> row[N];
#pragma GCC unroll 4
        for (int k = 0; k < N; k++) row[k] = load(b + d * b_row + k * lanes<float>);
#pragma GCC unroll 16
        for (int i = 0; i < M; i++) {
            float f = a(i, d);
#pragma GCC unroll 4
            for (int k = 0; k < N; k++) sum[i][k] += f * row[k];
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < M; i++)
#pragma GCC unroll 4
        for (int k = 0; k < N; k++) store(c + i * c_row + k * lanes<float>, sum[i][k]);
}

template <int M, int N, bool add, class A>
NOINLINE void tiles(A& a, const float* b, long b_row, long depth, float*& c, long c_row, long& rows) {
    for (; rows >= M; rows -= M) {
        tile<M, N, add>(a, b, b_row, depth, c, c_row);
        a.skip(M);
        c += M * c_row;
    }
}

// The same for any number of rows.
template <int N, bool add, class A>
void strip(A a, const float* b, long b_row, long depth, float* c, long c_row, long rows) {
    tiles<tile_rows<N>, N, add>(a, b, b_row, depth, c, c_row, rows);
    tiles<tile_rows<N> / 3, N, add>(a, b, b_row, depth, c, c_row, rows);
    tiles<1, N, add>(a, b, b_row, depth, c, c_row, rows);
}

// The same for a tile's columns, of which the first `columns` are needed.
template <bool add, class A>
void strip(A a, const float* b, long b_row, long depth, float* c, long c_row, long rows, long columns) {
    if (columns > narrow_cols) strip<tile_vectors, add>(a, b, b_row, depth, c, c_row, rows);
    else strip<narrow_vectors, add>(a, b, b_row, depth, c, c_row, rows);
}

// c (rows x columns) = a (rows x depth) b (depth x columns), or c + a b; columns is a multiple of narrow_cols.
template <bool add, class A>
void product(A a, const float* b, long b_row, long depth, float* c, long c_row, long rows, long columns) {
    for (long j = 0; j < columns; j += tile_cols) strip<add>(a, b + j, b_row, depth, c + j, c_row, rows, columns - j);
}

// ------------------------------------------------------------------------------------------------- sums of some rows

// to += sum of w[j] x[indices[j]], `columns` vectors from column d on.  prefetch: rows lie far away, and are loaded
// early.
template <int columns, bool prefetch, class S>
INLINE void add_columns(const float* w, const int32_t* indices, long count, const S* x, long x_row, long d, long width,
    float* to) {
    Vec<float> sum[columns];
#pragma GCC unroll 8
    for (int k = 0; k < columns; k++) sum[k] = load(to + d + k * lanes<float>);
    bool whole = d + columns * lanes<float> <= width;
    auto run = [&](auto is_whole) {
        for (long j = 0; j < count; j++) {
            const S* row = x + indices[j] * x_row + d;
            if (prefetch)
                prefetch_row(x + indices[std::min(j + rows_ahead, count - 1)] * x_row + d, columns * lanes<float>);
#pragma GCC unroll 8
            for (int k = 0; k < columns; k++) {
                long left = is_whole ? lanes<float> : width - d - k * lanes<float>;
                sum[k] += w[j] * load(row + k * lanes<float>, left);
            }
        }
    };
    whole ? run(std::true_type()) : run(std::false_type());
#pragma GCC unroll 8
    for (int k = 0; k < columns; k++) store(to + d + k * lanes<float>, sum[k]);
}

template <bool prefetch, class S>
NOINLINE void add_rows(const float* w, const int32_t* indices, long count, const S* x, long x_row, long width,
    float* to) {
    constexpr long n = lanes<float>;
    long d = 0;
    for (; d + 8 * n <= width; d += 8 * n) add_columns<8, prefetch>(w, indices, count, x, x_row, d, width, to);
    for (; d + 4 * n <= width; d += 4 * n) add_columns<4, prefetch>(w, indices, count, x, x_row, d, width, to);
    for (; d < width; d += n) add_columns<1, prefetch>(w, indices, count, x, x_row, d, width, to);
}

// ------------------------------------------------------------------------------------------------ transposed matrices

// A panel: up to `tile_cols` rows of x, as columns; columns without a row are zero.
template <class S> NOINLINE void build_panel(const S* x, long x_row, long rows, long width, float* to) {
    constexpr long n = lanes<float>;
    // The next panel, in the order in which memory is fast.
    for (long i = tile_cols; i < 2 * tile_cols; i++) prefetch_row(x + i * x_row, width);
    for (long side = 0; side < tile_cols; side += n)
        for (long d = 0; d < width; d += n) {
            Vec<float> r[n];
#pragma GCC unroll 16
            for (long i = 0; i < n; i++)
                r[i] = side + i < rows ? load(x + (side + i) * x_row + d, width - d) : Vec<float>{};
            transpose<float>(r);
            if (width - d >= n) {
#pragma GCC unroll 16
                for (long i = 0; i < n; i++) store(to + (d + i) * tile_cols + side, r[i]);
            } else for (long i = 0; i < width - d; i++) store(to + (d + i) * tile_cols + side, r[i]);
        }
}

// --------------------------------------------------------------------------------------------- products with few rows

// A row times a factor, as float32, filled with zeros up to `to_row` entries, a multiple of lanes; and several rows.
template <class S> INLINE void copy_row(const S* x, long width, float* to, long to_row, float factor = 1) {
    for (long d = 0; d < to_row; d += lanes<float>)
        store(to + d, d < width ? load(x + d, width - d) * factor : Vec<float>{});
}
template <class S>
NOINLINE void copy_rows(const S* x, long x_row, long rows, long width, float* to, long to_row, float factor = 1) {
    for (long i = 0; i < rows; i++) copy_row(x + i * x_row, width, to + i * to_row, to_row, factor);
}

// to[i] = the products of row i of Q rows a with as many rows x as a vector has lanes, of `vectors` vectors each.
// Every row of x is read once, from its beginning to its end.
template <int Q>
INLINE void dot_tile(const float* a, long a_row, const float* const* x, long vectors, float* to, long to_row) {
    // unroll: rows of x at once.
    constexpr long n = lanes<float>, unroll = Q > 1 ? 2 : 4;
    Vec<float> sum[Q][n];
#pragma GCC unroll 16
    for (long i = 0; i < n; i += unroll) {
        Vec<float> part[Q][unroll] = {};
        for (long d = 0; d < vectors * n; d += n) {
            Vec<float> b[unroll];
#pragma GCC unroll 4
            for (long k = 0; k < unroll; k++) b[k] = load(x[i + k] + d);
#pragma GCC unroll 4
            for (int j = 0; j < Q; j++)
#pragma GCC unroll 4
                for (long k = 0; k < unroll; k++) part[j][k] += load(a + j * a_row + d) * b[k];
        }
#pragma GCC unroll 4
        for (int j = 0; j < Q; j++)
#pragma GCC unroll 4
            for (long k = 0; k < unroll; k++) sum[j][i + k] = part[j][k];
    }
    for (int j = 0; j < Q; j++) store(to + j * to_row, row_sums<float>(sum[j]));
}

// Rows in memory: all, one after the other, or some of them by their numbers.
template <class S> struct EachRow {
    const S* x;
    long row;
    INLINE const S* operator()(long j) const { return x + j * row; }
};
template <class S> struct ListedRows {
    const S* x;
    long row;
    const int32_t* numbers;
    INLINE const S* operator()(long j) const { return x + numbers[j] * row; }
};

// to (rows x count) = a x^T for a few rows a, filled with zeros up to whole vectors, and `count` rows x(j) of numbers S,
// which are read once; to holds whole vectors.  copy: as many rows of a as a vector has lanes, for rows that cannot be
// read in place.
template <class S, class X>
NOINLINE void dots(const float* a, long a_row, long rows, X x, long count, long width, float* copy, float* to,
    long to_row) {
    constexpr long n = lanes<float>;
    const float* row[n];
    long vectors = padded<float>(width) / n;
    for (long j = 0; j < count; j += n) {
        for (long i = 0; i < n; i++) prefetch_row(x(std::min(j + rows_ahead + i, count - 1)), width);
        bool in_place = std::is_same_v<S, float> && width % n == 0;
        for (long i = 0; i < n; i++) {
            // Beyond the end, the last row is read again.
            const S* next = x(std::min(j + i, count - 1));
            row[i] = in_place ? (const float*)next : copy + i * vectors * n;
            if (!in_place) copy_row(next, width, copy + i * vectors * n, vectors * n);
        }
        long i = 0;
        for (; i + 4 <= rows; i += 4) dot_tile<4>(a + i * a_row, a_row, row, vectors, to + i * to_row + j, to_row);
        for (; i + 2 <= rows; i += 2) dot_tile<2>(a + i * a_row, a_row, row, vectors, to + i * to_row + j, to_row);
        for (; i < rows; i++) dot_tile<1>(a + i * a_row, a_row, row, vectors, to + i * to_row + j, to_row);
    }
}

// Whether no number is NaN, infinite, or so large that a product with it may overflow.
inline bool all_moderate(const float* x, long x_row, long rows, long width) {
    Vec<float> zero{};
    for (long i = 0; i < rows; i++)
        for (long d = 0; d < width; d += lanes<float>) {
            Vec<float> v = load(x + i * x_row + d, width - d) * 1e19f;
            zero += v - v;
        }
    return all<float>(zero == 0);
}

}  // namespace
}  // namespace rsoftmax
