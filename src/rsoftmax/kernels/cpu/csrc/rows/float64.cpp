#include "functions.h"

const rsoftmax::RowFunctions<double> rsoftmax::float64_functions[] = ROW_FUNCTIONS(double);
