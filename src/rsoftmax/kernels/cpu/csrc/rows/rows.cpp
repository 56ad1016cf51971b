// The rows of a call, divided among threads.  Half precision is converted to float32, a few rows at a time, computed
// there and rounded back: it needs no functions of its own.

#include "rows.h"

#include "../python/memory.h"
#include "../simd/formats.h"

namespace rsoftmax {
namespace {

// Reused from call to call.
thread_local Memory thread_memory;

template <class T> const RowFunctions<T>& functions_of(const RowsCall& call) {
    if constexpr (std::is_same_v<T, double>) return float64_functions[call.op];
    else return float32_functions[call.op];
}

// Takes chunks of rows until none are left; f(from, to) maps one.
template <class F> INLINE void take_rows(Job<RowsCall>& job, long multiple, F f) {
    const RowsCall& call = job.call;
    long chunk = (16384 / (call.n + 1) / multiple + 1) * multiple;
    for (long from; (from = job.next.fetch_add(chunk)) < call.rows;) f(from, std::min<long>(from + chunk, call.rows));
}

template <class T> void work(Job<RowsCall>& job) {
    const RowFunctions<T>& functions = functions_of<T>(job.call);
    auto take = [&] { return thread_memory.take<T>(functions.memory_entries(job.call.n)); };
    if (!thread_memory.reserve(take)) {
        job.out_of_memory = true;
        return;
    }
    T* memory = take();
    take_rows(job, lanes<T>, [&](long from, long to) { functions.map(job.call, from, to, memory); });
}

// ----------------------------------------------------------------------------------------------------- half precision

template <class S> void decode_rows(const S* from, long stride, long rows, long n, float* to) {
    // Adjacent rows are one long row.
    if (stride == n) {
        n *= rows;
        rows = 1;
    }
    for (long i = 0; i < rows; i++)
        each_vector<float>(n, [&](long j, long left) {
            store(to + i * n + j, load(from + i * stride + j, left), left);
        });
}

template <class S> void encode_rows(const float* from, long entries, S* to) {
    each_vector<float>(entries, [&](long j, long left) { store(to + j, load(from + j, left), left); });
}

// A few rows of a call, as a call for float32.
template <class S> struct HalfRows {
    const RowsCall& call;
    const RowFunctions<float>& functions = functions_of<float>(call);
    // rows: so many at a time stay in a near cache.
    long n = call.n, rows = (4096 / (n + 1) / lanes<float> + 1) * lanes<float>;
    float *x, *p, *g, *dx, *scratch;

    HalfRows(const RowsCall& call, Memory& memory) : call(call) {
        if (n > 4096) rows = 1;
        x = memory.take<float>(rows * n);
        // Forward works in place.
        p = call.g ? memory.take<float>(rows * n) : x;
        g = memory.take<float>(call.g ? rows * n : 0);
        // Entmax reads g once more.
        dx = call.op == entmax ? memory.take<float>(call.g ? rows * n : 0) : g;
        scratch = memory.take<float>(functions.memory_entries(n));
    }

    void map(long from, long to) const {
        for (; from < to; from += rows) map_some(from, std::min(rows, to - from));
    }

private:
    void map_some(long from, long count) const {
        RowsCall part = call;
        part.rows = count;
        part.x = (const char*)x;
        part.x_stride = n;
        part.p = (char*)p;
        if (call.mask_rows) part.mask_rows += from;
        else if (call.mask) part.mask += from * call.mask_stride;
        if (call.values) part.values += from * call.value_size();
        if (call.states) part.states += from;
        if (!call.g || reads_logits_again(call.op))
            decode_rows((const S*)call.x + from * call.x_stride, call.x_stride, count, n, x);
        if (call.g) {
            part.g = (const char*)g;
            part.dx = (char*)dx;
            if (call.dvalues) part.dvalues += from;
            decode_rows((const S*)call.p + from * n, n, count, n, p);
            decode_rows((const S*)call.g + from * n, n, count, n, g);
        }
        functions.map(part, 0, count, scratch);
        if (call.g) encode_rows(dx, count * n, (S*)call.dx + from * n);
        else encode_rows(p, count * n, (S*)call.p + from * n);
    }
};

template <class S> void half_work(Job<RowsCall>& job) {
    Memory& memory = thread_memory;
    if (!memory.reserve([&] { HalfRows<S>(job.call, memory); })) {
        job.out_of_memory = true;
        return;
    }
    HalfRows<S> rows(job.call, memory);
    take_rows(job, lanes<float>, [&](long from, long to) { rows.map(from, to); });
}

// --------------------------------------------------------------------------------------------------- checks of values

template <class T> Extremes extremes(const T* values, long count) {
    Vec<T> low = splat(inf<T>), high = -low;
    IntVec<T> is_nan{};
    each_vector<T>(count, [&](long i, long left) {
        Vec<T> v = load(values + i, left);
        if (left < lanes<T>) v = iota<T>() < Int<T>(left) ? v : splat(*values);
        low = minimum(low, v);
        high = maximum(high, v);
        is_nan |= v != v;
    });
    if (!all<T>(~is_nan)) return {NAN, NAN};
    return {reduce(low, minimum), reduce(high, maximum)};
}

}  // namespace

Extremes extremes_of(const void* values, long dtype, long count) {
    return dtype == dtype_float32 ? extremes((const float*)values, count) : extremes((const double*)values, count);
}

RowWork row_work(const RowsCall& call) {
    constexpr RowWork works[dtype_count] = {work<float>, work<double>, half_work<float16>, half_work<bfloat16>};
    return works[call.dtype];
}

}  // namespace rsoftmax
