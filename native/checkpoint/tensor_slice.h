// Tensors in files, as the caller lays them out.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace troupe {

// The scales of a matrix as it lies in a file: one for each block of [block_rows, block_columns], row by row.
// A block at an end may be smaller.
struct TensorScales {
  std::string path;
  int64_t offset = 0;  // absolute, of the first one
  std::string dtype;   // F32 | F16 | BF16 | F8_E8M0 (safetensors names)
  int64_t block_rows = 1;
  int64_t block_columns = 1;
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
  std::string dtype;       // F32 | F16 | BF16 (safetensors names); reading also those of packed_format.h
  TensorScales scales;     // of packed values, of which the first lie at `offset`
};

struct TensorFile {
  std::string path;
  std::string header;  // writing: the bytes before the first tensor (length prefix and JSON)
  int64_t size = 0;    // whole size in bytes
  std::vector<TensorSlice> tensors;
};

}  // namespace troupe
