// A struct whose fields Python fills by name: f(op=1, x=address, q_strides=tensor.stride()).
#pragma once

#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <type_traits>

#include "../attention/call.h"

namespace rsoftmax {
namespace {

// A number, an address or a double takes eight bytes; strides are a tuple of five numbers.
struct Field { const char* name; size_t offset; bool is_double; size_t size; };
#define FIELD(Struct, name) \
    {#name, offsetof(Struct, name), std::is_same_v<decltype(Struct::name), double>, sizeof(Struct::name)}

template <size_t n> constexpr size_t bytes_of(const Field (&fields)[n]) {
    size_t sum = 0;
    for (auto& field : fields) sum += field.size;
    return sum;
}

// The fields that the keywords of a call name, in its order.  One line of Python passes the same tuple of names every
// time, so they are looked up once.  Guarded by Python's lock.
template <size_t n> struct Keywords {
    const Field (&fields)[n];
    PyObject* names = nullptr;
    const Field* order[n] = {};

    bool look_up(PyObject* keywords) {
        Py_CLEAR(names);
        for (Py_ssize_t i = 0; i < PyTuple_Size(keywords); i++) {
            PyObject* name = PyTuple_GetItem(keywords, i);
            auto field = std::find_if(std::begin(fields), std::end(fields), [name](const Field& f) {
                return PyUnicode_CompareWithASCIIString(name, f.name) == 0;
            });
            if (field == std::end(fields)) {
                PyErr_Format(PyExc_TypeError, "a call has no field %R", name);
                return false;
            }
            order[i] = field;
        }
        Py_INCREF(keywords);
        names = keywords;
        return true;
    }

    // Fills a struct from the arguments of a call; false, with Python's error set, if that fails.
    bool fill(void* to, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
        if (count || !keywords) {
            PyErr_Format(PyExc_TypeError, "pass the fields of a call by keyword: run(op=..., x=...)");
            return false;
        }
        if (keywords != names && !look_up(keywords)) return false;
        for (Py_ssize_t i = 0; i < PyTuple_Size(keywords); i++) {
            auto field = (char*)to + order[i]->offset;
            if (order[i]->size == sizeof(Strides)) strides(field, args[i]);
            else if (order[i]->is_double) copy(field, PyFloat_AsDouble(args[i]));
            else copy(field, PyLong_AsLongLong(args[i]));
        }
        return !PyErr_Occurred();
    }

    template <class T> static void copy(char* to, T number) { memcpy(to, &number, sizeof number); }
    static void strides(char* to, PyObject* tuple) {
        if (PyTuple_Size(tuple) != 5) {
            if (!PyErr_Occurred()) PyErr_Format(PyExc_ValueError, "strides must be five numbers");
            return;
        }
        for (int i = 0; i < 5; i++) copy(to + 8 * i, PyLong_AsLongLong(PyTuple_GetItem(tuple, i)));
    }
};

}  // namespace
}  // namespace rsoftmax
