#include "functions.h"

const rsoftmax::RowFunctions<double>* const rsoftmax::float64_functions = row_functions<double>;
