#include "functions.h"

const rsoftmax::RowFunctions<float>* const rsoftmax::float32_functions = row_functions<float>;
