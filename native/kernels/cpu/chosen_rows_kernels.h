// Kernels of chosen_rows.cc: rows picked by index, scaled, added up.
#pragma once

#include "kernels/cpu/row_kernels.h"

// Rows that an index picks. Everything is computed in float32 and rounded once.
namespace troupe::kernels {

struct ChosenRowKernels {
  // target row i = scale[i] * source row index[i]. Null: row i, and a copy.
  void (*gather[kNumDtypes])(ConstRows source, const int64_t* index, const float* scale, int64_t rows,
                             int64_t cols, Rows target);
  // target row i = sum over c < count of weights[i * count + c] (1 where null) * source row index[i * count +
  // c], in the order of c.
  void (*sum[kNumDtypes])(ConstRows source, const int64_t* index, const float* weights, int64_t count,
                          int64_t rows, int64_t cols, Rows target);
  // out[i] = sum of the products of row i of both.
  void (*dot[kNumDtypes])(ConstRows a, ConstRows b, int64_t rows, int64_t cols, float* out);
};

}  // namespace troupe::kernels
