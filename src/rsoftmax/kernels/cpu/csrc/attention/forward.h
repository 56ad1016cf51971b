// Attention, forward: scores, thresholds, and a sum over the values that have weight.
#pragma once

#include "../simd/quotient.h"
#include "screen.h"

namespace rsoftmax {
namespace {

// What a thread needs for blocks of rows.
struct Forward {
    const AttentionCall& call;
    const AttentionFunctions& functions = attention_functions[call.op];
    long q_row, v_row, s_row;
    // A head has one block of few queries: its keys are read once, and keys and values where they lie.
    bool is_one_block;
    float *panels, *values, *q, *o, *s, *scratch;
    Lists lists;
    // The head whose panels and values are in memory.
    long prepared = -1;
    // The head whose values were checked, and whether they are moderate.
    long checked = -1;
    bool is_moderate = false;
    // Whether the block before was; a hint, which changes no result.
    bool was_dense = false;
    QuantileHint hint;
    VisibleKeys visible;
    Screen screen;

    Forward(const AttentionCall& call, Memory& memory)
        : call(call), q_row(padded<float>(call.width)), v_row(padded_to_narrow(call.value_width)),
          s_row(score_row_size(call)), is_one_block(call.groups * call.rows <= queries_in_place),
          visible{call, memory.take<KeyRange>(VisibleKeys::cache_size(call))}, screen(call, memory, s_row) {
        long rows = std::min<long>(rows_of_block(call), call.groups * call.rows);
        panels = memory.take<float>((is_one_block ? tile_cols : padded_to_tile(call.length)) * q_row);
        values = memory.take<float>(is_one_block || in_place(call, call.value_width) ? 0 : call.length * v_row);
        q = memory.take<float>(rows * q_row);
        o = memory.take<float>(rows * v_row);
        s = memory.take<float>(rows * s_row);
        scratch = memory.take<float>(3 * s_row);
        lists.values = memory.take<float>(rows * s_row);
        lists.keys = memory.take<int32_t>(rows * s_row);
        lists.tile = is_one_block ? call.length : key_tile;
        lists.ends = memory.take<long>(rows * lists.max_tiles(call.length, lists.tile));
    }

    // Rows [from, to) of a head.
    void map(long head_number, long from, long to) {
        Head head{call, head_number / call.heads, head_number % call.heads};
        Panels keys{head, call.k, call.k_strides, call.width, panels, !is_one_block};
        Rows v{};
        if (in_place(call, call.value_width) || (!is_one_block && prepared != head_number))
            v = rows_of(call.v, call.v_strides, head, call.value_width, values);
        else if (!is_one_block) v = {values, v_row};
        if (!is_one_block && prepared != head_number) keys.build();
        prepared = head_number;
        for (long first = from; first < to; first += rows_of_block(call))
            map_block(Block(head, first, visible), head_number, keys, v);
    }

private:
    void map_block(const Block& b, long head_number, const Panels& keys, Rows v) {
        RowState states[block_rows];
        b.copy_queries(q, q_row);
        bool is_screened = call.shadow && screen.find(b, q, q_row, functions, scratch);
        if (is_screened) list_screened(b, keys, states);
        else {
            b.compute_scores(q, q_row, keys, s, s_row);
            for (long i = 0; i < b.rows; i++)
                functions.find_threshold(b.scores_of(s, s_row, i), hint, scratch, states[i]);
        }
        bool is_listed = is_screened || !was_dense;
        if (is_listed && !is_screened) build_lists(b, states);
        was_dense = is_dense(b, states, v, is_listed);
        if (was_dense && values_are_moderate(head_number, v)) map_dense(b, states, v);
        else {
            if (!is_listed) build_lists(b, states);
            compute_list_weights(b, states);
            map_sparse(b, v);
        }
        for (long i = 0; i < b.rows; i++) {
            Query query = b.query(i);
            float* to = call.o + query.offset(call.o_strides);
            for (long d = 0; d < call.value_width; d += lanes<float>)
                store(to + d, load(o + i * v_row + d), call.value_width - d);
            if (call.states) call.states[query.number(call)] = states[i];
        }
    }

    // The lists of all rows from the scores of the keys that may have weight: the same bits as from all scores.
    void list_screened(const Block& b, const Panels& keys, RowState* states) {
        lists.begin(b.max_keys);
        long used = 0;
        for (long i = 0; i < b.rows; i++) {
            const int32_t* some = screen.keys[i];
            long count = screen.count[i], first = b.keys[i].first;
            keys.multiply_some(q + i * q_row, q_row, first, some, count, s);
            std::fill(s + count, s + padded<float>(count), -inf<float>);
            ScoreRow scores{s, count, 0, b.query(i).parameter(call), b.keys[i].size() - count};
            functions.find_threshold(scores, hint, scratch, states[i]);
            functions.build_list(scores, states[i], lists, i, used);
            for (long j = used; j < used + lists.count[i]; j++) lists.keys[j] = int32_t(first + some[lists.keys[j]]);
            used += padded<float>(lists.count[i]);
        }
    }

    bool is_dense(const Block& b, const RowState* states, Rows v, bool is_listed) const {
        // Few rows do not pay for a dense product, and may be screened.
        if (!v.data || b.rows <= few_queries) return false;
        long nonzero = 0;
        for (long i = 0; i < b.rows; i++)
            nonzero += functions.support_size(b.scores_of(s, s_row, i), states[i], is_listed ? lists.count[i] : -1);
        return nonzero > dense_forward * b.total_keys();
    }

    // A dense product would multiply weights of zero with infinite values, or overflow.
    bool values_are_moderate(long head_number, Rows v) {
        if (checked != head_number) is_moderate = all_moderate(v.data, v.row, call.length, call.value_width);
        checked = head_number;
        return is_moderate;
    }

    void map_dense(const Block& b, RowState* states, Rows v) {
        float divisors[block_rows];
        for (long i = 0; i < b.rows; i++) {
            Range keys = b.keys[i];
            float* row = s + i * s_row;
            divisors[i] = functions.compute_undivided(b.scores_of(s, s_row, i), states[i], row + keys.first);
            if (call.dropped) {
                Dropout dropout(call.seed, b.query(i).number(call), call.dropped);
                for (long j = keys.first; j < keys.last; j += lanes<float>)
                    store(row + j, load(row + j) * dropout(iota<float>() + int32_t(j)));
            }
            std::fill(row + b.all.first, row + std::max(keys.first, b.all.first), 0.f);
            std::fill(row + std::max(keys.last, b.all.first), row + b.all.last, 0.f);
        }
        ByRows weights{s + b.all.first, s_row};
        product<false>(weights, v.data + b.all.first * v.row, v.row, b.all.size(), o, v_row, b.rows, v_row);
        for (long i = 0; i < b.rows; i++) {
            Quotient<float> quotient(divisors[i]);
            float* row = o + i * v_row;
            for (long d = 0; d < v_row; d += lanes<float>) store(row + d, quotient(load(row + d)));
        }
    }

    void map_sparse(const Block& b, Rows v) {
        std::fill(o, o + b.rows * v_row, 0.f);
        for (long t = 0; t < lists.tiles; t++) lists.parts(b.rows, t, [&](long i, long from, long to) {
            auto add = [&](auto prefetch, auto x, long x_row, long width) {
                add_rows<prefetch>(lists.values + from, lists.keys + from, to - from, x, x_row, width, o + i * v_row);
            };
            if (!is_one_block) add(std::false_type(), v.data, v.row, v_row);
            else if (v.data) add(std::true_type(), v.data, v.row, v_row);
            else with_dtype(call, [&](auto format) {
                auto x = (const decltype(format)*)call.v + b.head.offset(call.v_strides);
                add(std::true_type(), x, call.v_strides[3], call.value_width);
            });
        });
    }

    void build_lists(const Block& b, const RowState* states) {
        lists.begin(b.max_keys);
        long used = 0;
        for (long i = 0; i < b.rows; i++) {
            functions.build_list(b.scores_of(s, s_row, i), states[i], lists, i, used);
            // No two rows share a vector.
            used += padded<float>(lists.count[i]);
        }
    }

    void compute_list_weights(const Block& b, RowState* states) const {
        for (long i = 0; i < b.rows; i++) {
            float* values = lists.values + lists.start[i];
            functions.compute_weights({values, lists.count[i], 0, b.query(i).parameter(call)}, states[i], values);
            if (!call.dropped) continue;
            Dropout dropout(call.seed, b.query(i).number(call), call.dropped);
            for (long j = 0; j < lists.count[i]; j += lanes<float>)
                store(values + j, load(values + j) * dropout(load(lists.keys + lists.start[i] + j)));
        }
    }
};

}  // namespace
}  // namespace rsoftmax
