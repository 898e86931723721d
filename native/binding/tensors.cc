// Typed arrays copied into tensors, and tensors into typed arrays.
#include "binding/tensors.h"

#include <ATen/ops/empty.h>

#include <cstring>

#include "base/error.h"

namespace troupe::binding {

namespace {

struct View {
  const void* data;
  size_t length;
};

// The elements of a typed array of exactly this type, in place.
View view(const Field& field, napi_typedarray_type type, const char* name) {
  if (!field.value().IsTypedArray()) field.mismatch(name);
  const auto array = field.value().As<Napi::TypedArray>();
  if (array.TypedArrayType() != type) field.mismatch(name);
  void* data = nullptr;
  size_t length = 0;
  const napi_status status =
      napi_get_typedarray_info(field.value().Env(), field.value(), nullptr, &length, &data, nullptr, nullptr);
  require(status == napi_ok, ErrorCode::kInternal, field.path(), ": cannot read the array");
  return {data, length};
}

at::Tensor copy(const View& source, at::ScalarType dtype) {
  at::Tensor tensor = at::empty({static_cast<int64_t>(source.length)}, at::TensorOptions(dtype));
  if (source.length > 0) std::memcpy(tensor.mutable_data_ptr(), source.data, tensor.nbytes());
  return tensor;
}

template <typename T>
std::vector<T> copy_vector(const View& source) {
  const T* data = static_cast<const T*>(source.data);
  return std::vector<T>(data, data + source.length);
}

template <typename T>
Napi::Value write(Napi::Env env, const at::Tensor& tensor, at::ScalarType dtype) {
  if (!tensor.defined()) return env.Null();
  require(tensor.scalar_type() == dtype && tensor.is_contiguous() && tensor.device().is_cpu(),
          ErrorCode::kInternal, "[binding] expected a contiguous CPU tensor of ", dtype, " but got ",
          tensor.scalar_type(), " on ", tensor.device());
  auto array = Napi::TypedArrayOf<T>::New(env, static_cast<size_t>(tensor.numel()));
  if (tensor.numel() > 0) std::memcpy(array.Data(), tensor.const_data_ptr(), tensor.nbytes());
  return array;
}

}  // namespace

at::Tensor read_int32(const Field& field) {
  return copy(view(field, napi_int32_array, "Int32Array"), at::kInt);
}

at::Tensor read_float32(const Field& field) {
  return copy(view(field, napi_float32_array, "Float32Array"), at::kFloat);
}

at::Tensor read_uint8(const Field& field) {
  return copy(view(field, napi_uint8_array, "Uint8Array"), at::kByte);
}

std::vector<double> read_float64s(const Field& field) {
  return copy_vector<double>(view(field, napi_float64_array, "Float64Array"));
}

std::vector<uint64_t> read_uint64s(const Field& field) {
  return copy_vector<uint64_t>(view(field, napi_biguint64_array, "BigUint64Array"));
}

std::string read_bytes(const Field& field) {
  const View bytes = view(field, napi_uint8_array, "Uint8Array");
  return std::string(static_cast<const char*>(bytes.data), bytes.length);
}

void require_length(const Field& field, const at::Tensor& tensor, int64_t length, const char* what) {
  require(tensor.numel() == length, ErrorCode::kInvalidArgument, field.path(), ": expected ", length,
          " elements (", what, "), got ", tensor.numel());
}

void require_offsets(const Field& field, const at::Tensor& offsets, int64_t end, const char* of_what) {
  const int32_t* at = offsets.const_data_ptr<int32_t>();
  const int64_t n = offsets.numel();
  require(n > 0, ErrorCode::kInvalidArgument, field.path(),
          ": expected at least the element 0, got an empty array");
  require(at[0] == 0, ErrorCode::kInvalidArgument, field.path(), "[0]: expected 0, got ", at[0]);
  for (int64_t i = 1; i < n; ++i) {
    require(at[i] >= at[i - 1], ErrorCode::kInvalidArgument, field.path(), "[", i, "]: expected at least ",
            at[i - 1], " (offsets never decrease), got ", at[i]);
  }
  require(at[n - 1] == end, ErrorCode::kInvalidArgument, field.path(), ": expected the last offset to be ",
          end, " (", of_what, "), got ", at[n - 1]);
}

Napi::Value write_int32(Napi::Env env, const at::Tensor& tensor) {
  return write<int32_t>(env, tensor, at::kInt);
}

Napi::Value write_uint8(Napi::Env env, const at::Tensor& tensor) {
  return write<uint8_t>(env, tensor, at::kByte);
}

Napi::Value write_float32(Napi::Env env, const at::Tensor& tensor) {
  return write<float>(env, tensor, at::kFloat);
}

}  // namespace troupe::binding
