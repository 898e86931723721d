#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "core/engine.h"

// Moves slices between safetensors files and parameters. Which bytes belong to which slice was
// worked out in TypeScript (ts/model); here bytes are read, converted, checked and written.
namespace troupe {

// The [rows, ...] part of a tensor that a slice means.
at::Tensor slice_of(const at::Tensor& tensor, const TensorSlice& slice);

// Reads each slice of `file` and copies it into lookup(slice.param). kIo for unreadable files,
// kNonFinite naming a tensor that holds NaN or infinity.
void read_tensor_file(const TensorFile& file, const std::function<at::Tensor(const std::string&)>& lookup);

// Creates the file (it must not exist), writes header and slices at their offsets, fsyncs.
// kNoSpace when the disk is full; the partly written file is removed.
void write_tensor_file(const TensorFile& file, const std::function<at::Tensor(const std::string&)>& lookup);

}  // namespace troupe
