// Matrix products of small blocks, in registers.
#pragma once

#include "formats.h"
#include "transpose.h"

namespace {

constexpr long wide = 2 * lanes<float>;                               // columns of a tile
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int tall = 12;                                              // its rows: 24 of 32 registers hold sums
#else
constexpr int tall = 6;                                               // 12 of 16
#endif

INLINE long widened(long n) { return (n + wide - 1) / wide * wide; }

// A matrix of which entry (i, j) is at[i * row + j * step].
struct Matrix { const float* at; long row, step; };

// c (M x wide) = a (M x depth) b (depth x wide), or c + a b; b and c have rows in one piece.  Every sum runs over the
// depth in order, so a number does not depend on which tile computes it.
template <int M, bool add> INLINE void tile(Matrix a, const float* b, long b_row, long depth, float* c, long c_row) {
    V<float> sum[M][2];
#pragma GCC unroll 16
    for (int i = 0; i < M; i++)
        for (int k = 0; k < 2; k++) sum[i][k] = add ? at(c + i * c_row + k * lanes<float>) : V<float>{};
    for (long d = 0; d < depth; d++) {
        V<float> b0 = at(b + d * b_row), b1 = at(b + d * b_row + lanes<float>);
#pragma GCC unroll 16
        for (int i = 0; i < M; i++) {
            float f = a.at[i * a.row + d * a.step];
            sum[i][0] += f * b0, sum[i][1] += f * b1;
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < M; i++)
        for (int k = 0; k < 2; k++) put(c + i * c_row + k * lanes<float>, sum[i][k]);
}

template <int M, bool add> __attribute__((noinline)) void tiles(
    Matrix& a, const float* b, long b_row, long depth, float*& c, long c_row, long& rows) {
    for (; rows >= M; rows -= M, a.at += M * a.row, c += M * c_row) tile<M, add>(a, b, b_row, depth, c, c_row);
}

// The same for any number of rows.
template <bool add> void strip(Matrix a, const float* b, long b_row, long depth, float* c, long c_row, long rows) {
    tiles<tall, add>(a, b, b_row, depth, c, c_row, rows);
    tiles<4, add>(a, b, b_row, depth, c, c_row, rows);
    tiles<1, add>(a, b, b_row, depth, c, c_row, rows);
}

// c (rows x columns) = a (rows x depth) b (depth x columns), or c + a b; columns is a multiple of wide.
template <bool add>
void product(Matrix a, const float* b, long b_row, long depth, float* c, long c_row, long rows, long columns) {
    for (long j = 0; j < columns; j += wide) strip<add>(a, b + j, b_row, depth, c + j, c_row, rows);
}

// -------------------------------------------------------------------------------------------------- rows of a list

// to += sum of w[j] x[places[j]], `columns` vectors from column d on.  ahead: rows lie far away, and are fetched early.
template <int columns, bool ahead, class S>
INLINE void add_columns(const float* w, const int32_t* places, long count, const S* x, long x_row, long d, long width, float* to) {
    V<float> sum[columns];
#pragma GCC unroll 8
    for (int k = 0; k < columns; k++) sum[k] = at(to + d + k * lanes<float>);
    bool whole = d + columns * lanes<float> <= width;
    auto run = [&](auto is_whole) {
        for (long j = 0; j < count; j++) {
            const S* row = x + places[j] * x_row + d;
            if (ahead) __builtin_prefetch(x + places[std::min(j + 12, count - 1)] * x_row + d);
#pragma GCC unroll 8
            for (int k = 0; k < columns; k++) {
                long left = is_whole ? lanes<float> : width - d - k * lanes<float>;
                sum[k] += w[j] * load(row + k * lanes<float>, left);
            }
        }
    };
    whole ? run(std::true_type()) : run(std::false_type());
#pragma GCC unroll 8
    for (int k = 0; k < columns; k++) put(to + d + k * lanes<float>, sum[k]);
}

template <bool ahead, class S>
void add_rows(const float* w, const int32_t* places, long count, const S* x, long x_row, long width, float* to) {
    constexpr long n = lanes<float>;
    long d = 0;
    for (; d + 8 * n <= width; d += 8 * n) add_columns<8, ahead>(w, places, count, x, x_row, d, width, to);
    for (; d + 4 * n <= width; d += 4 * n) add_columns<4, ahead>(w, places, count, x, x_row, d, width, to);
    for (; d < width; d += n) add_columns<1, ahead>(w, places, count, x, x_row, d, width, to);
}

// ------------------------------------------------------------------------------------------- matrices turned round

// A panel: up to `wide` rows of x, turned into columns; columns without a row are zero.
template <class S> void make_panel(const S* x, long x_row, long rows, long width, float* to) {
    constexpr long n = lanes<float>, line = 64 / sizeof(S);
    for (long i = wide; i < 2 * wide; i++)                            // the next panel, in the order in which memory is fast
        for (long d = 0; d < width; d += line) __builtin_prefetch(x + i * x_row + d);
    for (long side = 0; side < wide; side += n)
        for (long d = 0; d < width; d += n) {
            V<float> r[n];
#pragma GCC unroll 16
            for (long i = 0; i < n; i++)
                r[i] = side + i < rows ? load(x + (side + i) * x_row + d, width - d) : V<float>{};
            transpose<float>(r);
            if (width - d >= n) {
#pragma GCC unroll 16
                for (long i = 0; i < n; i++) put(to + (d + i) * wide + side, r[i]);
            } else for (long i = 0; i < width - d; i++) put(to + (d + i) * wide + side, r[i]);
        }
}

// The products of a row, filled up with zeros to whole vectors, with as many rows of x as a vector has lanes; the last row
// stands for those that do not exist.  Each row is read from its beginning to its end, where memory is fastest.
template <class S> INLINE V<float> dots(const float* a, const S* x, long x_row, long rows, long width) {
    constexpr long n = lanes<float>;
    V<float> sum[n];
#pragma GCC unroll 16
    for (long i = 0; i < n; i++) {
        const S* row = x + std::min(i, rows - 1) * x_row;
        V<float> parts{};
        for (long d = 0; d < width; d += n) parts += at(a + d) * load(row + d, width - d);
        sum[i] = parts;
    }
    transpose<float>(sum);
#pragma GCC unroll 4
    for (long half = n / 2; half; half /= 2)
#pragma GCC unroll 16
        for (long i = 0; i < half; i++) sum[i] += sum[i + half];
    return sum[0];
}

// Rows times a factor, as float32, each filled up with zeros to `room` entries, a multiple of lanes.
template <class S> void copy_rows(const S* x, long x_row, long rows, long width, float* to, long room, float factor = 1) {
    for (long i = 0; i < rows; i++)
        for (long d = 0; d < room; d += lanes<float>) {
            V<float> v = d < width ? load(x + i * x_row + d, width - d) * factor : V<float>{};
            put(to + i * room + d, v);
        }
}

}  // namespace
