// Attention, forward: scores, thresholds, and a sum over the values that have weight.
#pragma once

#include "attention_blocks.h"

namespace {

// What a thread needs for blocks of rows.
template <class Op, class S> struct Forward {
    const Attention& call;
    long q_room, v_room, s_room;
    bool few;                                                         // one block for each head: keys are read once
    float *panels, *values, *q, *o, *s, *scratch;
    Lists lists;
    long held = -1;                                                   // the head whose panels and values are there
    Guess guess;

    Forward(const Attention& call, Pieces& pieces)
        : call(call), q_room(padded<float>(call.width)), v_room(widened(call.value_width)), s_room(score_room(call)),
          few(call.groups * call.rows <= block) {
        panels = pieces.take<float>((few ? wide : widened(call.length)) * call.width);
        values = pieces.take<float>(few || in_place<S>(call.value_width) ? 0 : call.length * v_room);
        q = pieces.take<float>(block * q_room), o = pieces.take<float>(block * v_room);
        s = pieces.take<float>(block * s_room), scratch = pieces.take<float>(3 * s_room);
        lists.values = pieces.take<float>(block * s_room), lists.places = pieces.take<int32_t>(block * s_room);
        lists.tile = few ? call.length : key_tile;
        lists.ends = pieces.take<long>(block * lists.most_tiles(call.length, lists.tile));
    }

    void rows(long head_number, long from, long to) {
        Head head{call, head_number / call.heads, head_number % call.heads};
        auto keys = panels_of<S>(call.k, call.k_at, head, call.width, panels, !few);
        Rows v{};
        if (!few || in_place<S>(call.value_width)) {
            bool copied = held == head_number && !in_place<S>(call.value_width);
            v = copied ? Rows{values, v_room} : rows_of<S>(call.v, call.v_at, head, call.length, call.value_width, values);
        }
        if (!few && held != head_number) keys.make(), held = head_number;
        for (long first = from; first < to; first += block) one(Block<S>(head, first), keys, v);
    }

private:
    void one(const Block<S>& b, const Panels<S>& keys, Rows v) {
        State states[block];
        long on = 0, all = 0;
        b.queries(q, q_room);
        b.scores(q, q_room, keys, s, s_room);
        for (long i = 0; i < b.rows; i++) {
            Place place = b.place(i);
            long n = place.sees(call);
            states[i] = state_of<Op>(s + i * s_room, n, place.value(call), guess, scratch);
            on += count_on<Op>(s + i * s_room, n, place.value(call), states[i]), all += n;
        }
        bool is_dense = v.at && b.rows >= tall && on > dense_forward * all;     // fewer rows do not fill a tile
        is_dense ? dense(b, states, v) : sparse(b, states, v);
        for (long i = 0; i < b.rows; i++) {
            Place place = b.place(i);
            float* to = call.o + place.of(call.o_at);
            for (long d = 0; d < call.value_width; d += lanes<float>) store(to + d, at(o + i * v_room + d), call.value_width - d);
            if (call.states) call.states[place.number(call)] = states[i];
        }
    }

    void dense(const Block<S>& b, State* states, Rows v) {
        for (long i = 0; i < b.rows; i++) {
            Place place = b.place(i);
            float* x = s + i * s_room;
            long n = place.sees(call), end = n;
            State& state = states[i];
            if (is_empty(state)) end = 0;
            else if (is_nan(state)) std::fill(x, x + n, NAN);
            else with_mass<Op>(place.value(call), state, [&](auto mass) { weigh<Op>(mass, state, x, n); });
            if (call.dropped && end) drop(place, x, n);
            std::fill(x + end, x + b.limit, 0.f);
        }
        product<false>({s, s_room, 1}, v.at, v.row, b.limit, o, v_room, b.rows, v_room);
    }

    void drop(const Place& place, float* p, long n) const {
        Noise noise(call.seed, place.number(call), call.dropped);
        for (long j = 0; j < n; j += lanes<float>) put(p + j, at(p + j) * noise(iota<float>() + int32_t(j)));
    }

    void sparse(const Block<S>& b, State* states, Rows v) {
        list(b, states);
        std::fill(o, o + block * v_room, 0.f);
        const S* raw = (const S*)call.v + b.head.batch * call.v_at[0] + b.head.head * call.v_at[1];
        for (long t = 0; t < lists.tiles; t++) lists.parts(b.rows, t, [&](long i, long from, long to) {
            auto add = [&](auto ahead, auto x, long x_row, long width) {
                add_rows<ahead>(lists.values + from, lists.places + from, to - from, x, x_row, width, o + i * v_room);
            };
            if (!few) add(std::false_type(), v.at, v.row, v_room);
            else if (v.at) add(std::true_type(), v.at, v.row, v_room);
            else add(std::true_type(), raw, call.v_at[3], call.value_width);
        });
    }

    void list(const Block<S>& b, State* states) {
        lists.begin(b.limit);
        for (long i = 0, used = 0; i < b.rows; used += padded<float>(lists.count[i++])) {
            Place place = b.place(i);
            long n = place.sees(call), &count = lists.count[i];
            float *x = s + i * s_room, *w = lists.values + used;
            State& state = states[i];
            if (state.kept == 0) lists.fill_whole(i, used, x, n, state);
            else with_mass<Op>(place.value(call), state, [&](auto mass) {
                lists.fill(i, used, x, n, [mass](V<float> v, I<float>) { return mass.on(v); });
                weigh<Op>(mass, state, w, count);
            });
            if (call.dropped) {
                Noise noise(call.seed, place.number(call), call.dropped);
                for (long j = 0; j < count; j += lanes<float>) put(w + j, at(w + j) * noise(at(lists.places + used + j)));
            }
        }
    }
};

}  // namespace
