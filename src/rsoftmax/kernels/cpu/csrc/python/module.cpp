// Python bindings: `run` maps rows, `attend` computes attention, `extremes` is for checks of parameters, and tables
// name operations and dtypes.
//
// Compiled once for each instruction set (setup.py); Python loads the library that fits the CPU, so there is no
// dispatch in C++.  From the bottom up: simd/ computes with vectors; rows/ maps the rows of a matrix, one by one or
// several short ones at once; attention/ combines scores, the same mappings and products; this folder has memory,
// threads and Python.

#include "fields.h"

#include <cmath>

#include "../attention/attention.h"
#include "../attention/shadow.h"
#include "../rows/rows.h"

namespace rsoftmax {
namespace {

// ---------------------------------------------------------------------------------------------------- calls by name

template <class Call> struct Entry;

template <> struct Entry<RowsCall> {
#define ITEM(name) FIELD(RowsCall, name)
    static constexpr Field fields[] = {
        ITEM(op), ITEM(dtype), ITEM(rows), ITEM(n), ITEM(x), ITEM(x_stride), ITEM(mask), ITEM(mask_step),
        ITEM(mask_stride), ITEM(mask_rows), ITEM(number), ITEM(values), ITEM(values_dtype), ITEM(edge), ITEM(p),
        ITEM(states), ITEM(g), ITEM(dx), ITEM(dvalues), ITEM(detach), ITEM(threads)};
#undef ITEM
    static const char* problem(const RowsCall& call) {
        if (!call.x || !call.p) return "x and p are needed";
        if (call.values && !is_full_precision(call.values_dtype)) return "values must be float32 or float64";
        if (call.g && !call.dx) return "g needs dx";
        if (call.g && state_size(call.op) && !call.states) return "g needs the states of forward";
        return nullptr;
    }
    static bool run(const RowsCall& call) {
        return rsoftmax::run(call, row_work(call),
            std::min<long>({call.threads, call.rows, 1 + call.rows * call.n / 16384}));
    }
};

template <> struct Entry<AttentionCall> {
#define ITEM(name) FIELD(AttentionCall, name)
    static constexpr Field fields[] = {
        ITEM(op), ITEM(dtype), ITEM(batch), ITEM(heads), ITEM(groups), ITEM(rows), ITEM(length), ITEM(width),
        ITEM(value_width), ITEM(q), ITEM(k), ITEM(v), ITEM(q_strides), ITEM(k_strides), ITEM(v_strides), ITEM(bias),
        ITEM(bias_strides), ITEM(mask), ITEM(mask_strides), ITEM(shadow), ITEM(shadow_strides), ITEM(unchanged),
        ITEM(number), ITEM(values), ITEM(values_strides), ITEM(edge), ITEM(scale), ITEM(causal), ITEM(dropped), ITEM(seed), ITEM(o), ITEM(o_strides), ITEM(states),
        ITEM(g), ITEM(g_strides), ITEM(dq), ITEM(dk), ITEM(dv), ITEM(dbias), ITEM(dbias_strides), ITEM(dvalues),
        ITEM(threads)};
#undef ITEM
    static const char* problem(const AttentionCall& call) {
        if (call.dtype == dtype_float64) return "attention does not support float64";
        if (call.length >= INT32_MAX || call.length < 1 || call.rows < 1 || call.width < 1 || call.value_width < 1)
            return "sizes must be positive";
        if (!call.q || !call.k || !call.v) return "q, k and v are needed";
        if (!call.g && !call.o) return "o is needed";
        if (call.shadow && (call.groups * call.rows > few_queries || call.width > shadow_width))
            return "a shadow is for few queries of a moderate width";
        if (call.shadow && (call.bias || call.dropped || call.states || call.g))
            return "a shadow excludes bias, dropout and gradients";
        if (call.shadow && call.shadow_strides[1] < shadow_size(call.length, call.width)) return "the shadow is too small";
        if (call.g && !(call.states && call.dq && call.dk && call.dv)) return "g needs states, dq, dk and dv";
        return nullptr;
    }
    static bool run(const AttentionCall& call) { return rsoftmax::run(call, attention_work, attention_threads(call)); }
};

// What is wrong with a call, if anything.  One with an incoming gradient runs backward.
template <class Call> const char* problem(const Call& call) {
    if (call.op < 0 || call.op >= operation_count) return "op is not in OPERATIONS";
    if (call.dtype < 0 || call.dtype >= dtype_count) return "dtype is not in DTYPES";
    if (!(call.edge >= 0)) return "edge must not be negative";
    return Entry<Call>::problem(call);
}

template <class Call> PyObject* perform(PyObject*, PyObject* const* args, Py_ssize_t count, PyObject* names) {
    constexpr auto& fields = Entry<Call>::fields;
    static_assert(bytes_of(fields) == sizeof(Call), "every field is listed");
    static Keywords<std::size(fields)> keywords{fields};
    Call call{};
    call.edge = INFINITY;
    if (!keywords.fill(&call, args, count, names)) return nullptr;
    if (auto wrong = problem(call)) return PyErr_Format(PyExc_ValueError, "%s", wrong);
    bool done;
    Py_BEGIN_ALLOW_THREADS
    done = Entry<Call>::run(call);
    Py_END_ALLOW_THREADS
    if (!done) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

// extremes(address, dtype, count): the least and the greatest of `count` numbers.
PyObject* extremes(PyObject*, PyObject* args) {
    long long address, dtype, count;
    if (!PyArg_ParseTuple(args, "LLL", &address, &dtype, &count)) return nullptr;
    if (!is_full_precision(dtype)) return PyErr_Format(PyExc_ValueError, "values must be float32 or float64");
    Extremes range = extremes_of((const void*)address, dtype, count);
    return Py_BuildValue("dd", range.low, range.high);
}

template <class Call> constexpr PyMethodDef method(const char* name) {
    return {name, (PyCFunction)(void (*)(void))perform<Call>, METH_FASTCALL | METH_KEYWORDS, nullptr};
}
PyMethodDef methods[] = {
    method<RowsCall>("run"), method<AttentionCall>("attend"), {"extremes", extremes, METH_VARARGS, nullptr}, {}};
PyModuleDef module = {PyModuleDef_HEAD_INIT, "rows", nullptr, 0, methods, nullptr, nullptr, nullptr, nullptr};

// ------------------------------------------------------------------------------------------------------------ tables

// Adds a dictionary from names to numbers to the module.
template <size_t n, class Number>
bool add(PyObject* to, const char* table, const char* const (&names)[n], Number number) {
    PyObject* dict = PyDict_New();
    for (size_t i = 0; dict && i < n; i++) {
        PyObject* item = PyLong_FromLong(number(i));
        if (!item || PyDict_SetItemString(dict, names[i], item)) Py_CLEAR(dict);
        Py_XDECREF(item);
    }
    bool added = dict && PyModule_AddObjectRef(to, table, dict) == 0;
    Py_XDECREF(dict);
    return added;
}

}  // namespace
}  // namespace rsoftmax

// One module for each instruction set: _rows_baseline, _rows_avx2, ...
#define INIT_(level) PyInit__rows_##level
#define INIT(level) INIT_(level)
PyMODINIT_FUNC INIT(LEVEL)() {
    using namespace rsoftmax;
    auto index = [](size_t i) { return long(i); };
    PyObject* bindings = PyModule_Create(&module);
    if (bindings && add(bindings, "OPERATIONS", operation_names, index) &&
        add(bindings, "DTYPES", dtype_names, index) && add(bindings, "STATE", operation_names, state_size))
        return bindings;
    Py_XDECREF(bindings);
    return nullptr;
}
