// Attention, forward: scores, thresholds, and a sum over the values that have weight.
#pragma once

#include "blocks.h"

namespace rsoftmax {
namespace {

// What a thread needs for blocks of rows.
struct Forward {
    const AttentionCall& call;
    const AttentionFunctions& functions = attention_functions[call.op];
    long q_room, v_room, s_room;
    bool one_block;                                                   // for each head: keys are read once
    float *panels, *values, *q, *o, *s, *scratch;
    Lists lists;
    long prepared = -1;                                               // the head whose panels and values are there
    long checked = -1;                                                // the head whose values were checked ...
    bool is_moderate = false;                                         // ... and whether they are moderate
    bool was_dense = false;                                           // the block before; a hint, which changes no result
    QuantileHint hint;
    SeenKeys seen;

    Forward(const AttentionCall& call, Memory& memory)
        : call(call), q_room(padded<float>(call.width)), v_room(widened(call.value_width)), s_room(score_room(call)),
          one_block(call.groups * call.rows <= block_rows), seen{call, memory.take<Seen>(SeenKeys::room(call))} {
        long rows = std::min<long>(block_rows, call.groups * call.rows);
        panels = memory.take<float>((one_block ? wide : widened(call.length)) * q_room);
        values = memory.take<float>(one_block || in_place(call, call.value_width) ? 0 : call.length * v_room);
        q = memory.take<float>(rows * q_room);
        o = memory.take<float>(rows * v_room);
        s = memory.take<float>(rows * s_room);
        scratch = memory.take<float>(3 * s_room);
        lists.values = memory.take<float>(rows * s_room);
        lists.keys = memory.take<int32_t>(rows * s_room);
        lists.tile = one_block ? call.length : key_tile;
        lists.ends = memory.take<long>(rows * lists.most_tiles(call.length, lists.tile));
    }

    // Rows [from, to) of a head.
    void map(long head_number, long from, long to) {
        Head head{call, head_number / call.heads, head_number % call.heads};
        Panels keys{head, call.k, call.k_strides, call.width, panels, !one_block};
        Rows v{};
        if (in_place(call, call.value_width) || (!one_block && prepared != head_number))
            v = rows_of(call.v, call.v_strides, head, call.value_width, values);
        else if (!one_block) v = {values, v_room};
        if (!one_block && prepared != head_number) keys.make();
        prepared = head_number;
        for (long first = from; first < to; first += block_rows) map_block(Block(head, first, seen), head_number, keys, v);
    }

private:
    void map_block(const Block& b, long head_number, const Panels& keys, Rows v) {
        RowState states[block_rows];
        b.copy_queries(q, q_room);
        b.compute_scores(q, q_room, keys, s, s_room);
        for (long i = 0; i < b.rows; i++) states[i] = functions.find_threshold(b.scores_of(s, s_room, i), hint, scratch);
        bool is_listed = !was_dense;
        if (is_listed) list(b, states);
        was_dense = is_dense(b, states, v, is_listed);
        if (was_dense && values_are_moderate(head_number, v)) map_dense(b, states, v);
        else {
            if (!is_listed) list(b, states);
            weigh_lists(b, states);
            map_sparse(b, v);
        }
        for (long i = 0; i < b.rows; i++) {
            Query query = b.query(i);
            float* to = call.o + query.offset(call.o_strides);
            for (long d = 0; d < call.value_width; d += lanes<float>) store(to + d, load(o + i * v_room + d), call.value_width - d);
            if (call.states) call.states[query.number(call)] = states[i];
        }
    }

    bool is_dense(const Block& b, const RowState* states, Rows v, bool is_listed) const {
        if (!v.data || b.rows < tall) return false;                   // fewer rows do not fill a tile
        long on = 0;
        for (long i = 0; i < b.rows; i++)
            on += is_listed ? lists.count[i] : functions.support_size(b.scores_of(s, s_room, i), states[i]);
        return on > dense_forward * b.total_keys();
    }

    // A dense product would multiply weights of zero with infinite values, or overflow.
    bool values_are_moderate(long head_number, Rows v) {
        if (checked != head_number) is_moderate = all_moderate(v.data, v.row, call.length, call.value_width);
        checked = head_number;
        return is_moderate;
    }

    void map_dense(const Block& b, RowState* states, Rows v) {
        for (long i = 0; i < b.rows; i++) {
            Range keys = b.keys[i];
            float* row = s + i * s_room;
            functions.weigh(b.scores_of(s, s_room, i), states[i], row + keys.first);
            if (call.dropped) {
                Dropout dropout(call.seed, b.query(i).number(call), call.dropped);
                for (long j = keys.first; j < keys.last; j += lanes<float>)
                    store(row + j, load(row + j) * dropout(iota<float>() + int32_t(j)));
            }
            std::fill(row + b.all.first, row + std::max(keys.first, b.all.first), 0.f);
            std::fill(row + std::max(keys.last, b.all.first), row + b.all.last, 0.f);
        }
        Matrix weights{s + b.all.first, s_room, 1};
        product<false>(weights, v.data + b.all.first * v.row, v.row, b.all.size(), o, v_room, b.rows, v_room);
    }

    void map_sparse(const Block& b, Rows v) {
        std::fill(o, o + b.rows * v_room, 0.f);
        for (long t = 0; t < lists.tiles; t++) lists.parts(b.rows, t, [&](long i, long from, long to) {
            auto add = [&](auto prefetch, auto x, long x_row, long width) {
                add_rows<prefetch>(lists.values + from, lists.keys + from, to - from, x, x_row, width, o + i * v_room);
            };
            if (!one_block) add(std::false_type(), v.data, v.row, v_room);
            else if (v.data) add(std::true_type(), v.data, v.row, v_room);
            else with_dtype(call, [&](auto format) {
                auto x = (const decltype(format)*)call.v + b.head.offset(call.v_strides);
                add(std::true_type(), x, call.v_strides[3], call.value_width);
            });
        });
    }

    void list(const Block& b, const RowState* states) {
        lists.begin(b.most);
        long used = 0;
        for (long i = 0; i < b.rows; i++) {
            functions.list(b.scores_of(s, s_room, i), states[i], lists, i, used);
            used += padded<float>(lists.count[i]);                    // no two rows share a vector
        }
    }

    void weigh_lists(const Block& b, RowState* states) const {
        for (long i = 0; i < b.rows; i++) {
            float* values = lists.values + lists.start[i];
            functions.weigh({values, lists.count[i], 0, b.query(i).parameter(call)}, states[i], values);
            if (!call.dropped) continue;
            Dropout dropout(call.seed, b.query(i).number(call), call.dropped);
            for (long j = 0; j < lists.count[i]; j += lanes<float>)
                store(values + j, load(values + j) * dropout(load(lists.keys + lists.start[i] + j)));
        }
    }
};

}  // namespace
}  // namespace rsoftmax
