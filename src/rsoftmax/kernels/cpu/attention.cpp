// Attention in which zeros save work, forward and backward: scores, exact thresholds, and products only where a weight
// is not zero, or dense ones where most weights are not.  The whole matrix of weights is never held.
//
// From the bottom up: products.h multiplies small blocks; guess.h and noise.h help rows; attention_call.h says where
// everything lies; attention_rows.h maps a row; attention_blocks.h is a block of them; attention_forward.h and
// attention_backward.h are the two passes; this file shares them out over threads.  The mathematics of a row is that of
// operations.h.

#include "attention.h"

#include <array>

#include "attention_backward.h"
#include "attention_forward.h"
#include "pool.h"

namespace {

struct Job {
    const Attention& call;
    void (*work)(Job&);
    std::atomic<long> next{0}, failed{0};
};

// How the rows of forward are shared out: heads, and parts of those that have many rows.
struct Parts {
    long rows, size, count;                                           // rows of a head; of a part; parts of a head
    explicit Parts(const Attention& call)
        : rows(call.groups * call.rows), size(rows >= 8 * block ? 4 * block : rows), count((rows + size - 1) / size) {}
    long all(const Attention& call) const { return call.batch * call.heads * count; }
};

template <class Pass> struct WithMemory {
    Pieces needed;
    Memory memory;
    Pieces pieces;
    explicit WithMemory(const Attention& call) : needed(count(call)), memory(needed.used) { pieces.next = (char*)memory.at; }
    static Pieces count(const Attention& call) {
        Pieces pieces;
        Pass(call, pieces);
        return pieces;
    }
};

template <class Op, class S> void forward_work(Job& job) {
    const Attention& call = job.call;
    WithMemory<Forward<Op, S>> with(call);
    if (!with.memory.at) { job.failed = 1; return; }
    Forward<Op, S> pass(call, with.pieces);
    Parts parts(call);
    for (long part; (part = job.next++) < parts.all(call);) {
        long from = part % parts.count * parts.size;
        pass.rows(part / parts.count, from, std::min(from + parts.size, parts.rows));
    }
}

template <class Op, class S> void backward_work(Job& job) {
    const Attention& call = job.call;
    WithMemory<Backward<Op, S>> with(call);
    if (!with.memory.at) { job.failed = 1; return; }
    Backward<Op, S> pass(call, with.pieces);
    Shares shares(call);
    for (long share; (share = job.next++) < shares.count;) shares.heads(share, [&](long b, long h) { pass.head(b, h); });
}

template <class Op, class S> void work(Job& job) {
    if constexpr (Op::attends) job.call.g ? backward_work<Op, S>(job) : forward_work<Op, S>(job);
    else job.failed = 1;                                              // no call comes here: ATTENDS in rows.cpp
}
void worker(void* job) { ((Job*)job)->work(*(Job*)job); }

// In the order of DTYPES in rows.cpp; float64 is not offered.
template <class Op> constexpr std::array<void (*)(Job&), 4> works = {
    work<Op, float>, nullptr, work<Op, half>, work<Op, bfloat>};
template <class... Op> constexpr std::array<const std::array<void (*)(Job&), 4>*, sizeof...(Op)> listed(List<Op...>) {
    return {&works<Op>...};
}
constexpr auto operations = listed(Operations());

#define ITEM(name) FIELD(Attention, name)
constexpr Field fields[] = {
    ITEM(op), ITEM(dtype), ITEM(batch), ITEM(heads), ITEM(groups), ITEM(rows), ITEM(length), ITEM(width),
    ITEM(value_width), ITEM(q), ITEM(k), ITEM(v), ITEM(q_at), ITEM(k_at), ITEM(v_at), ITEM(bias), ITEM(bias_at),
    ITEM(mask), ITEM(mask_at), ITEM(number), ITEM(values), ITEM(values_at), ITEM(scale), ITEM(causal), ITEM(dropped),
    ITEM(seed), ITEM(o), ITEM(o_at), ITEM(states), ITEM(g), ITEM(g_at), ITEM(dq), ITEM(dk), ITEM(dv), ITEM(dbias),
    ITEM(dbias_at), ITEM(dvalues), ITEM(threads)};
static_assert(bytes_of(fields) == sizeof(Attention), "every field is listed");

const char* problem(const Attention& call) {
    if (call.op < 0 || call.op >= (long)operations.size()) return "op is not in OPERATIONS";
    if (call.dtype < 0 || call.dtype >= 4 || !(*operations[call.op])[call.dtype]) return "dtype is not offered";
    if (call.length >= INT32_MAX || call.length < 1 || call.rows < 1 || call.width < 1 || call.value_width < 1)
        return "sizes must be positive";
    if (!call.q || !call.k || !call.v) return "q, k and v are needed";
    if (!call.g && !call.o) return "o is needed";
    if (call.g && !(call.states && call.dq && call.dk && call.dv)) return "g needs states, dq, dk and dv";
    return nullptr;
}

}  // namespace

PyObject* attend(PyObject*, PyObject* const* args, Py_ssize_t count, PyObject* names) {
    static Keywords<std::size(fields)> keywords{fields};
    Attention call{};
    if (!keywords.fill(&call, args, count, names)) return nullptr;
    if (auto wrong = problem(call)) return PyErr_Format(PyExc_ValueError, "%s", wrong);
    Job job{call, (*operations[call.op])[call.dtype]};
    long most = call.g ? Shares(call).count : Parts(call).all(call);
    long enough = 1 + call.batch * call.heads * call.groups * call.rows * call.length / 4096;
    Py_BEGIN_ALLOW_THREADS
    on_threads(std::min<long>({call.threads, most, enough}), worker, &job);
    Py_END_ALLOW_THREADS
    if (job.failed) return PyErr_NoMemory();
    Py_RETURN_NONE;
}
