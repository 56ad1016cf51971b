#include "functions.h"

const rsoftmax::RowFunctions<float> rsoftmax::float32_functions[] = ROW_FUNCTIONS(float);
