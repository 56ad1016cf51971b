// Attention, forward: scores, thresholds, and a sum over the values that have weight.
#pragma once

#include "attention_blocks.h"

namespace {

// o += sum of the values of a list, `columns` vectors from column d on.
template <int columns, class S>
INLINE void add_columns(const float* w, const int32_t* places, long count, const S* v, long v_row, long d, long width, float* o) {
    V<float> sum[columns];
#pragma GCC unroll 8
    for (int k = 0; k < columns; k++) sum[k] = at(o + d + k * lanes<float>);
    bool whole = d + columns * lanes<float> <= width;
    auto run = [&](auto is_whole) {
        for (long j = 0; j < count; j++) {
            const S* row = v + places[j] * v_row + d;
            __builtin_prefetch(v + places[std::min(j + 12, count - 1)] * v_row + d);
#pragma GCC unroll 8
            for (int k = 0; k < columns; k++) {
                long left = is_whole ? lanes<float> : width - d - k * lanes<float>;
                sum[k] += w[j] * load(row + k * lanes<float>, left);
            }
        }
    };
    whole ? run(std::true_type()) : run(std::false_type());
#pragma GCC unroll 8
    for (int k = 0; k < columns; k++) put(o + d + k * lanes<float>, sum[k]);
}

template <class S> void add_values(const float* w, const int32_t* places, long count, const S* v, long v_row, long width, float* o) {
    constexpr long n = lanes<float>;
    long d = 0;
    for (; d + 8 * n <= width; d += 8 * n) add_columns<8>(w, places, count, v, v_row, d, width, o);
    for (; d + 4 * n <= width; d += 4 * n) add_columns<4>(w, places, count, v, v_row, d, width, o);
    for (; d < width; d += n) add_columns<1>(w, places, count, v, v_row, d, width, o);
}

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
        if (v.at) lists.by_tiles(b.rows, b.limit, few ? b.limit : key_tile, [&](long i, long from, long to) {
            add_values(lists.values + from, lists.places + from, to - from, v.at, v.row, v_room, o + i * v_room);
        });
        else {
            const S* raw = (const S*)call.v + b.head.batch * call.v_at[0] + b.head.head * call.v_at[1];
            for (long i = 0; i < b.rows; i++)
                add_values(lists.values + lists.start[i], lists.places + lists.start[i], lists.count[i], raw, call.v_at[3],
                           call.value_width, o + i * v_room);
        }
    }

    void list(const Block<S>& b, State* states) {
        long used = 0;
        for (long i = 0; i < b.rows; i++) {
            Place place = b.place(i);
            long n = place.sees(call);
            float* w = lists.values + used;
            int32_t* places = lists.places + used;
            State& state = states[i];
            long count = 0;
            if (is_nan(state)) for (; count < n; count++) w[count] = NAN, places[count] = count;
            else if (!is_empty(state)) with_mass<Op>(place.value(call), state, [&](auto mass) {
                count = gather(mass, s + i * s_room, n, w, places);
                weigh<Op>(mass, state, w, count);
            });
            if (call.dropped) {
                Noise noise(call.seed, place.number(call), call.dropped);
                for (long j = 0; j < count; j += lanes<float>) put(w + j, at(w + j) * noise(at(places + j)));
            }
            lists.start[i] = used, lists.count[i] = count, used += padded<float>(count);
        }
    }
};

}  // namespace
