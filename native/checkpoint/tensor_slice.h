// Tensors in files, as the caller lays them out.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace troupe {

// A byte for each 32 values of a row.
struct TensorScales {
  std::string path;
  int64_t offset = 0;  // absolute
};

// Rows [row, row + rows) of a parameter, as they lie in a file (a Hugging Face tensor may be one of
// several that Troupe holds fused, or transposed: GPT-2's Conv1D).
struct TensorSlice {
  std::string param;
  int64_t row = 0;
  int64_t rows = 0;        // of the parameter; for 1-D parameters elements
  bool transpose = false;  // the file holds the slice transposed
  std::string label;       // the name in the file, for messages
  int64_t offset = 0;      // absolute byte offset in the file
  std::string dtype;       // F32 | F16 | BF16 (safetensors names), MXFP4 when reading
  TensorScales scales;     // of MXFP4, whose blocks lie at `offset` (checkpoint/mxfp4.h)
};

struct TensorFile {
  std::string path;
  std::string header;  // writing: the bytes before the first tensor (length prefix and JSON)
  int64_t size = 0;    // whole size in bytes
  std::vector<TensorSlice> tensors;
};

}  // namespace troupe
