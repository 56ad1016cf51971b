// An int8 shadow of the keys of one head.  It bounds the score of every key and query from both sides,
//
//     |score - estimate| <= |query| error(key),
//
// where `score` is the number that products.h computes in float32 and `estimate` is a product of integers; the proof is
// in docs/maths.md.  Keys that provably have no weight need not be read.
//
// Keys lie in blocks of 16.  Each line of a block has four entries of all of its keys, as bytes + 128, and its last
// line a word for each key: the unit of its entries in the upper half and its error in the lower, both as bfloat16.
#pragma once

#include "../simd/formats.h"

namespace rsoftmax {

// The first line of a shadow: how many keys it has, and how many calls are not to try it, because most keys have
// weight.
struct ShadowState { int64_t keys, rest; };

constexpr long shadow_line = 64, shadow_keys = 16, shadow_width = 256;
constexpr long shadow_lines(long width) { return (width + 3) / 4; }
constexpr long shadow_block(long width) { return (shadow_lines(width) + 1) * shadow_line; }
// The bytes for `length` keys.
constexpr long shadow_size(long length, long width) {
    return shadow_line + (length + shadow_keys - 1) / shadow_keys * shadow_block(width);
}

namespace {

// Queries are rounded to 16 bits: entries of at most 127 * 256, whose upper and lower bytes are also used alone.
constexpr float query_steps = 32512;
// The relative rounding of queries by that, and of all float32 operations.
inline float query_rounding(long width) { return std::sqrt(float(width)) * .51f / query_steps; }
inline float float_rounding(long width) { return (width + 16) * 0x1p-24f; }
// Entries of keys and norms of queries within these limits neither overflow nor underflow.
constexpr float largest_moderate = 0x1p60f, smallest_unit = 0x1p-60f, smallest_query = 0x1p-30f;

INLINE uint32_t bfloat16_above(float x) { return (bits(x) + 0xffff) >> 16; }

// Writes keys [from, to) into a shadow.  A key that is not moderate gets an infinite error.
template <class S> NOINLINE void write_shadow(const S* k, long k_row, long from, long to, long width, char* shadow) {
    constexpr long n = lanes<float>;
    float c = query_rounding(width), g = float_rounding(width);
    alignas(shadow_line) uint8_t entries[shadow_width + n] = {};
    for (long j = from; j < to; j++) {
        const S* row = k + j * k_row;
        Vec<float> largest{}, squares{}, rest{};
        each_vector<float>(width, [&](long d, long left) {
            Vec<float> x = load(row + d, left);
            largest = maximum(largest, maximum(x, -x));
        });
        float most = reduce(largest, maximum);
        uint32_t unit_bits = bfloat16_above(std::max(most * (1.0001f / 127), smallest_unit));
        float unit = from_bits<float>(unit_bits << 16), inverse = 1 / unit;
        each_vector<float>(width, [&](long d, long left) {
            // The nearest integer is in the low bits of z.
            constexpr float magic = 0x1.8p23f;
            Vec<float> x = load(row + d, left), w = x * inverse, z = w + magic, u = (x - (z - magic) * unit) * inverse;
            squares += w * w;
            rest += u * u;
            auto bytes = __builtin_convertvector(((UintVec)z & 0xff) ^ 0x80, typename vec<uint8_t, n>::type);
            memcpy(entries + d, &bytes, n);
        });
        float norm = std::sqrt(reduce(squares, plus)), u = std::sqrt(reduce(rest, plus));
        float error = unit * (u + (c + g) * (u + norm) + 0x1p-20f) * (1 + g);
        // Not if anything is NaN.
        bool is_moderate = most <= largest_moderate && error < inf<float>;
        char* to_key = shadow + shadow_line + j / shadow_keys * shadow_block(width) + j % shadow_keys * 4;
        for (long d = 0; d < width; d += 4, to_key += shadow_line) memcpy(to_key, entries + d, 4);
        uint32_t word = is_moderate ? unit_bits << 16 | bfloat16_above(error) : bits(inf<float>) >> 16;
        memcpy(to_key, &word, 4);
    }
}

}  // namespace
}  // namespace rsoftmax
