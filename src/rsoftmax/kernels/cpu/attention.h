// Attention as Python sees it: one function of the library, beside that of rows.cpp.
#pragma once

#include "fields.h"

// attend(op=..., q=address, q_at=strides, ...): the fields are those of Attention in attention_call.h.
__attribute__((visibility("hidden"))) PyObject* attend(PyObject*, PyObject* const*, Py_ssize_t, PyObject*);
