// Sparse probability mappings over the rows of a matrix, forward and backward: the library as Python sees it.
//
// Compiled once for each instruction set (setup.py); Python loads the library that fits the CPU, so there is no dispatch
// in here.  From the bottom up: vectors.h, formats.h, sums.h, exponential.h and logarithm.h compute; selection.h,
// simplex.h, entmax.h and weights.h are the mathematics; call.h and operations.h map a row; transpose.h, columns.h, ranks.h
// and short_rows.h map several short rows at once; threads.h shares rows out; this file is Python, with fields.h.
// attention.cpp is the other half of the library.
//
// Removed entries are read as -inf, and so is the padding that completes the last vector of a row: they are smaller than
// every kept entry, weigh nothing, and only shift ranks.

#include "fields.h"

#include <array>

#include "attention.h"
#include "threads.h"

namespace {

// ------------------------------------------------------------------------------------------- tables for Python

struct Format { const char* name; };
constexpr Format formats[] = {{"float32"}, {"float64"}, {"float16"}, {"bfloat16"}};
template <class Op> constexpr std::array<void (*)(Job&), 4> works = {
    work<Op, float>, work<Op, double>, work<Op, half>, work<Op, bfloat>};

struct Operation { const char* name; bool keeps_state, attends; const std::array<void (*)(Job&), 4>& works; };
template <class... Op> constexpr std::array<Operation, sizeof...(Op)> listed(List<Op...>) {
    return {Operation{Op::name, Op::keeps_state, Op::attends, works<Op>}...};
}
constexpr auto operations = listed(Operations());

constexpr Field fields[] = {
    FIELD(Call, op), FIELD(Call, dtype), FIELD(Call, rows), FIELD(Call, n), FIELD(Call, x), FIELD(Call, x_stride),
    FIELD(Call, mask), FIELD(Call, mask_step), FIELD(Call, mask_stride), FIELD(Call, mask_rows), FIELD(Call, number),
    FIELD(Call, values), FIELD(Call, p), FIELD(Call, states), FIELD(Call, g), FIELD(Call, dx), FIELD(Call, dvalues),
    FIELD(Call, detach), FIELD(Call, threads)};
static_assert(bytes_of(fields) == sizeof(Call), "every field is listed");

// --------------------------------------------------------------------------------------------------- the calls

// What is wrong with a call, if anything.  One with an incoming gradient runs backward.
const char* problem(const Call& call) {
    if (call.op < 0 || call.op >= (long)operations.size()) return "op is not in OPERATIONS";
    if (call.dtype < 0 || call.dtype >= (long)std::size(formats)) return "dtype is not in DTYPES";
    if (!call.x || !call.p) return "x and p are needed";
    if (call.g && !call.dx) return "g needs dx";
    if (call.g && operations[call.op].keeps_state && !call.states) return "g needs the states of forward";
    return nullptr;
}

PyObject* perform(PyObject*, PyObject* const* args, Py_ssize_t count, PyObject* names) {
    static Keywords<std::size(fields)> keywords{fields};
    Call call{};
    if (!keywords.fill(&call, args, count, names)) return nullptr;
    if (auto wrong = problem(call)) return PyErr_Format(PyExc_ValueError, "%s", wrong);
    bool done;
    Py_BEGIN_ALLOW_THREADS
    done = run(call, operations[call.op].works[call.dtype]);
    Py_END_ALLOW_THREADS
    if (!done) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"run", (PyCFunction)(void (*)(void))perform, METH_FASTCALL | METH_KEYWORDS, nullptr},
    {"attend", (PyCFunction)(void (*)(void))attend, METH_FASTCALL | METH_KEYWORDS, nullptr}, {}};
PyModuleDef module = {PyModuleDef_HEAD_INIT, "rows", nullptr, 0, methods, nullptr, nullptr, nullptr, nullptr};

// A dictionary from the names of a table to numbers, as an attribute of the module.
template <class Table, class Number> bool add(PyObject* to, const char* name, const Table& table, Number number) {
    PyObject* made = PyDict_New();
    for (size_t i = 0; made && i < std::size(table); i++) {
        PyObject* item = PyLong_FromLong(number(i));
        if (!item || PyDict_SetItemString(made, table[i].name, item)) Py_CLEAR(made);
        Py_XDECREF(item);
    }
    bool added = made && PyModule_AddObjectRef(to, name, made) == 0;
    Py_XDECREF(made);
    return added;
}

}  // namespace

// One module for each instruction set: _rows_baseline, _rows_avx2, ...
#define INIT_(level) PyInit__rows_##level
#define INIT(level) INIT_(level)
PyMODINIT_FUNC INIT(LEVEL)() {
    auto place = [](size_t i) { return long(i); };
    auto numbers = [](size_t i) { return operations[i].keeps_state ? long(sizeof(State) / sizeof(double)) : 0; };
    auto attends = [](size_t i) { return long(operations[i].attends); };
    PyObject* made = PyModule_Create(&module);
    if (made && add(made, "OPERATIONS", operations, place) && add(made, "DTYPES", formats, place) &&
        add(made, "STATE", operations, numbers) && add(made, "ATTENDS", operations, attends)) return made;
    Py_XDECREF(made);
    return nullptr;
}
