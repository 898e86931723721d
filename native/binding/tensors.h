// Tensors across the boundary.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "binding/dto.h"
#include "binding/setup.h"

// TypedArray <-> tensor, always by copy: the array belongs to JavaScript, which may change or move it
// as soon as the call returns; the tensor belongs to the engine thread.
namespace troupe::binding {

at::Tensor read_int32(const Field& field);               // Int32Array -> [n] int32
at::Tensor read_float32(const Field& field);             // Float32Array -> [n] float32
at::Tensor read_uint8(const Field& field);               // Uint8Array -> [n] uint8
std::vector<double> read_float64s(const Field& field);   // Float64Array
std::vector<uint64_t> read_uint64s(const Field& field);  // BigUint64Array
std::string read_bytes(const Field& field);              // Uint8Array

// `what` says where the length comes from: "one per response token".
void require_length(const Field& field, const at::Tensor& tensor, int64_t length, const char* what);

// Starts at 0, never decreases, ends at `end`.
void require_offsets(const Field& field, const at::Tensor& offsets, int64_t end, const char* of_what);

// Fresh arrays; an undefined tensor becomes null. Any other dtype, stride or device is a bug of the core.
Napi::Value write_int32(Napi::Env env, const at::Tensor& tensor);
Napi::Value write_uint8(Napi::Env env, const at::Tensor& tensor);
Napi::Value write_float32(Napi::Env env, const at::Tensor& tensor);

}  // namespace troupe::binding
