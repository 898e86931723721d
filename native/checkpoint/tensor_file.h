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

// Reads each slice of `file`, as far as rows_of(slice) wants it (rows of the parameter, within the slice),
// and hands it to store(slice, values): [rows, ...] float32, as the parameter has it, with `slice` narrowed
// to those rows; shape_of(param) is the shape of the whole parameter. kIo for unreadable files, kNonFinite
// naming a tensor that holds NaN or infinity.
void read_tensor_file(const TensorFile& file,
                      const std::function<std::vector<int64_t>(const std::string& param)>& shape_of,
                      const std::function<RowRange(const TensorSlice&)>& rows_of,
                      const std::function<void(const TensorSlice&, const at::Tensor& values)>& store);

// A file that is filled slice by slice, in any order.
class TensorFileWriter {
 public:
  // Creates the file (it must not exist) and writes its header. kNoSpace when the disk is full.
  explicit TensorFileWriter(const TensorFile& file);
  // Removes the file unless finish() has been reached.
  ~TensorFileWriter();
  TensorFileWriter(const TensorFileWriter&) = delete;
  TensorFileWriter& operator=(const TensorFileWriter&) = delete;

  // `tensor` is the whole parameter that the slice belongs to.
  void write(const TensorSlice& slice, const at::Tensor& tensor);
  void finish();  // fsyncs

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace troupe
