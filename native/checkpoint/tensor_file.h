// Reading and writing slices of parameters in files.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>

#include "checkpoint/tensor_slice.h"
#include "parameters/parameter_layout.h"

// Moves slices between safetensors files and parameters. Which bytes belong to which slice was
// worked out in TypeScript (ts/model); here bytes are read, converted, checked and written.
namespace troupe {

// [Note: files without a path] have no values: a simulation reads and writes them. What is read is a meta
// tensor, and what is written goes nowhere; all buffers are made on the way.

// Reads each slice of `file`, as far as rows_of(slice) wants it (rows of the parameter, within the slice),
// and hands it to store(slice, values) some rows at a time: [rows, ...] in the file's dtype (packed_format.h
// says what packed values become), as the parameter has it, with `slice` narrowed to those rows;
// shape_of(param) is the shape of the whole parameter. kIo for unreadable files, kNonFinite naming a tensor
// that holds NaN or infinity.
void read_tensor_file(const TensorFile& file,
                      const std::function<std::vector<int64_t>(const std::string& param)>& shape_of,
                      const std::function<RowRange(const TensorSlice&)>& rows_of,
                      const std::function<void(const TensorSlice&, const at::Tensor& values)>& store);

// A file that several ranks fill together, in any order.
class TensorFileWriter {
 public:
  // create: makes the file, which must not exist, and writes its header; kNoSpace when the disk is full.
  // Without, it is there already: another rank has made it.
  TensorFileWriter(const TensorFile& file, bool create);
  // Who has created the file removes it unless keep() has been reached.
  ~TensorFileWriter();
  TensorFileWriter(const TensorFileWriter&) = delete;
  TensorFileWriter& operator=(const TensorFileWriter&) = delete;

  // What `slice` has of `elements` [n]: the elements from `begin` on, in row-major order, of its parameter,
  // which has this shape.
  void write(const TensorSlice& slice, const std::vector<int64_t>& shape, int64_t begin,
             const at::Tensor& elements);
  void sync();  // to the disk
  void keep();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace troupe
