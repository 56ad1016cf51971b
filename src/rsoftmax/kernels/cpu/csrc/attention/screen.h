// Which keys may have weight in a block of few queries: by the shadow of the keys, without the keys themselves.
#pragma once

#include "blocks.h"
#include "shadow.h"
#ifdef AVX2_VECTORS
#include <cpuid.h>
#endif

namespace rsoftmax {
namespace {

// Measured: fewer keys do not pay; neither do candidates of more than this share of all keys, and their head is left
// alone for so many calls.
constexpr long fewest_screened = 256, calls_of_rest = 64;
constexpr double most_candidates = .4;

// A query in 16 bits, with its upper and lower bytes.
struct RoundedQuery {
    alignas(shadow_line) int16_t both[shadow_width];
    alignas(shadow_line) int8_t upper[shadow_width], lower[shadow_width];
    // The score of a key whose bytes are all 128, and so what their shift by 128 adds to any score.
    int32_t shift;
    // The unit of the entries, and an upper bound of the norm.
    float unit, norm;

    // Rounds a query; false if its norm is not moderate.
    bool round(const float* q, long width) {
        float most = 0;
        double squares = 0;
        for (long d = 0; d < width; d++) {
            most = std::max(most, std::abs(q[d]));
            squares += double(q[d]) * q[d];
        }
        norm = float(std::sqrt(squares) * 1.00001);
        if (!(norm >= smallest_query && norm <= largest_moderate)) return false;
        unit = most / query_steps;
        float inverse = query_steps / most;
        shift = 0;
        for (long d = 0; d < shadow_lines(width) * 4; d++) {
            int entry = d < width ? int(std::nearbyint(q[d] * inverse)) : 0;
            both[d] = entry;
            upper[d] = (entry + 128) >> 8;
            lower[d] = entry - 256 * upper[d];
            shift += 128 * entry;
        }
        return true;
    }
};

template <class T> INLINE T load_as(const void* p) {
    T v;
    memcpy(&v, p, sizeof v);
    return v;
}

// The products of 16-bit integers, in neighbouring pairs added.
INLINE IntVec<float> pair_products(IntVec<float> a, IntVec<float> b) {
#if defined(AVX512_VECTORS)
    return (IntVec<float>)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif defined(AVX2_VECTORS)
    return (IntVec<float>)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#else
    return (a << 16 >> 16) * (b << 16 >> 16) + (a >> 16) * (b >> 16);
#endif
}
// Neighbouring lanes of a, then those of b, added.
template <size_t... k>
INLINE IntVec<float> pair_sums(IntVec<float> a, IntVec<float> b, std::index_sequence<k...>) {
    return __builtin_shufflevector(a, b, (2 * k)...) + __builtin_shufflevector(a, b, (2 * k + 1)...);
}

// dot[i] = the products of query i with as many keys as a vector has lanes, whose part of the lines begins at `line`.
template <int Q> INLINE void integer_dots(const RoundedQuery* q, const char* line, long lines, IntVec<float>* dot) {
    constexpr long n = lanes<float>, ahead = 4096;
    using Bytes = typename vec<uint8_t, bytes / 2>::type;
    using Words = typename vec<int16_t, bytes>::type;
    auto words = [](const char* p) { return (IntVec<float>)__builtin_convertvector(load_as<Bytes>(p), Words); };
    IntVec<float> sum[Q][2] = {};
    for (long r = 0; r < lines; r++, line += shadow_line) {
        __builtin_prefetch(line + ahead);
        IntVec<float> first = words(line), second = words(line + bytes / 2);
#pragma GCC unroll 4
        for (int i = 0; i < Q; i++) {
            int64_t entries = load_as<int64_t>(q[i].both + 4 * r);
            auto all = (IntVec<float>)(entries - IntVec<double>{});
            sum[i][0] += pair_products(first, all);
            sum[i][1] += pair_products(second, all);
        }
    }
#pragma GCC unroll 4
    for (int i = 0; i < Q; i++) dot[i] = pair_sums(sum[i][0], sum[i][1], std::make_index_sequence<n>()) - q[i].shift;
}

#if defined(AVX512_VECTORS) || defined(AVX2_VECTORS)
// Adds to each lane the sum of four products of bytes, unsigned ones of `a` and signed ones of `b`.
INLINE void add_byte_products(IntVec<float>& sum, IntVec<float> a, IntVec<float> b) {
    // Not an intrinsic: this library also runs on processors without the instruction.
#ifdef AVX512_VECTORS
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
#else
    asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b));
#endif
}
// Whether the processor has the instruction: with AVX-512 VNNI, or AVX-VNNI, which compilers do not all know by name.
inline bool multiplies_bytes() {
#ifdef AVX512_VECTORS
    return __builtin_cpu_supports("avx512vnni");
#else
    unsigned a = 0, b, c, d;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1);
#endif
}

template <int Q> INLINE void byte_dots(const RoundedQuery* q, const char* line, long lines, IntVec<float>* dot) {
    constexpr long ahead = 4096;
    IntVec<float> upper[Q] = {}, lower[Q] = {};
    for (long r = 0; r < lines; r++, line += shadow_line) {
        __builtin_prefetch(line + ahead);
        auto keys = load_as<IntVec<float>>(line);
#pragma GCC unroll 4
        for (int i = 0; i < Q; i++) {
            add_byte_products(upper[i], keys, load_as<int32_t>(q[i].upper + 4 * r) - IntVec<float>{});
            add_byte_products(lower[i], keys, load_as<int32_t>(q[i].lower + 4 * r) - IntVec<float>{});
        }
    }
#pragma GCC unroll 4
    for (int i = 0; i < Q; i++) dot[i] = (upper[i] << 8) + lower[i] - q[i].shift;
}
#else
constexpr bool multiplies_bytes() { return false; }
template <int Q> void byte_dots(const RoundedQuery*, const char*, long, IntVec<float>*) {}
#endif

// Bounds of the scores of Q queries with the keys of `count` blocks, in rows of `row` numbers.
template <int Q, bool by_bytes>
NOINLINE void bound_blocks(const RoundedQuery* q, const char* block, long count, long width, float* low, float* high,
    long row) {
    constexpr long n = lanes<float>, line = n * sizeof(float);
    long lines = shadow_lines(width);
    for (long j = 0; j < count * shadow_keys; block += shadow_block(width))
        for (long part = 0; part < shadow_line; part += line, j += n) {
            IntVec<float> dot[Q];
            if constexpr (by_bytes) byte_dots<Q>(q, block + part, lines, dot);
            else integer_dots<Q>(q, block + part, lines, dot);
            auto word = load_as<UintVec>(block + lines * shadow_line + part);
            Vec<float> unit = (Vec<float>)(word & 0xffff0000u), error = (Vec<float>)(word << 16);
#pragma GCC unroll 4
            for (int i = 0; i < Q; i++) {
                Vec<float> estimate = __builtin_convertvector(dot[i], Vec<float>) * (unit * q[i].unit);
                Vec<float> most = error * q[i].norm;
                store(low + i * row + j, estimate - most);
                store(high + i * row + j, estimate + most);
            }
        }
}

template <int Q>
void bound_scores(const RoundedQuery* q, const char* block, long count, long width, float* low, float* high,
    long row) {
    static const bool by_bytes = multiplies_bytes();
    by_bytes ? bound_blocks<Q, true>(q, block, count, width, low, high, row)
             : bound_blocks<Q, false>(q, block, count, width, low, high, row);
}

// The positions of the numbers that are not less than `least`.  x is followed by -inf to the end of a vector.
NOINLINE inline long list_from(const float* x, long n, float least, int32_t* to) {
    long count = 0;
    for (long j = 0; j < n; j += lanes<float>) {
        IntVec<float> less = load(x + j) < least;
        count += compress<int32_t>(to + count, iota<float>() + int32_t(j), ~less);
    }
    return count;
}

// The keys of a block of queries that may have weight, or decide about a threshold.
struct Screen {
    const AttentionCall& call;
    // The keys of the queries, counted from the first that a query sees.
    int32_t* keys[few_queries];
    long count[few_queries];

    // row: the size of a row of scores.
    Screen(const AttentionCall& call, Memory& memory, long row) : call(call), row(row) {
        long rows = call.shadow ? call.groups * call.rows : 0;
        queries = memory.take<RoundedQuery>(rows);
        low = memory.take<float>(rows * row);
        high = memory.take<float>(rows * row);
        for (long i = 0; i < rows; i++) keys[i] = memory.take<int32_t>(row);
    }

    // Finds the keys; false if that does not pay or is not possible.  scratch: two rows.
    bool find(const Block& b, const float* q, long q_row, const AttentionFunctions& functions, float* scratch) {
        char* shadow = call.shadow + b.head.offset(call.shadow_strides);
        auto& state = *(ShadowState*)shadow;
        state.keys = std::min<int64_t>(state.keys, call.unchanged);
        bool rests = state.rest > 0;
        state.rest -= rests;
        if (rests || b.all.size() < fewest_screened) return false;
        for (long i = 0; i < b.rows; i++)
            if (!b.keys[i].all || !queries[i].round(q + i * q_row, call.width)) return false;
        extend(b, shadow, state);
        bound(b, shadow);
        long total = 0;
        for (long i = 0; i < b.rows; i++) total += count[i] = list_keys(b, i, functions, scratch);
        bool pays = total <= most_candidates * b.total_keys();
        if (!pays) state.rest = calls_of_rest;
        return pays;
    }

private:
    long row;
    RoundedQuery* queries;
    float *low, *high;

    long list_keys(const Block& b, long i, const AttentionFunctions& functions, float* scratch) const {
        Range seen = b.keys[i];
        long n = seen.size(), start = i * row + seen.first - b.all.first / shadow_keys * shadow_keys;
        if (n == 0) return 0;
        for (float* x : {low + start, high + start}) std::fill(x + n, x + padded<float>(n), -inf<float>);
        float least = functions.least_score({low + start, n, 0, b.query(i).parameter(call)}, scratch);
        return list_from(high + start, n, least, keys[i]);
    }

    // Writes the keys that the shadow does not have yet.
    void extend(const Block& b, char* shadow, ShadowState& state) const {
        with_dtype(call, [&](auto format) {
            auto k = (const decltype(format)*)call.k + b.head.offset(call.k_strides);
            write_shadow(k, call.k_strides[3], state.keys, b.all.last, call.width, shadow);
        });
        state.keys = std::max<int64_t>(state.keys, b.all.last);
    }

    // Bounds all scores, for parts of the shadow that stay in the nearest cache while queries are read.
    void bound(const Block& b, const char* shadow) const {
        constexpr long part = 16;
        long from = b.all.first / shadow_keys, to = (b.all.last + shadow_keys - 1) / shadow_keys;
        for (long at = from; at < to; at += part) {
            const char* block = shadow + shadow_line + at * shadow_block(call.width);
            long blocks = std::min(part, to - at), offset = (at - from) * shadow_keys, i = 0;
            auto run = [&](auto number) {
                constexpr int Q = number;
                long start = i * row + offset;
                bound_scores<Q>(queries + i, block, blocks, call.width, low + start, high + start, row);
                i += Q;
            };
            while (b.rows - i >= 4) run(std::integral_constant<int, 4>());
            if (b.rows - i == 3) run(std::integral_constant<int, 3>());
            if (b.rows - i == 2) run(std::integral_constant<int, 2>());
            if (b.rows - i == 1) run(std::integral_constant<int, 1>());
        }
    }
};

}  // namespace
}  // namespace rsoftmax
