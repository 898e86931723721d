// Inputs on a GPU for its kernels, and how near their results come. Without a GPU, or in a build without
// CUDA, there is nothing to test: the program says so and ctest counts it as skipped.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <string>

#include "check.h"
#include "kernels/device_ops.h"

namespace troupe::test {

inline constexpr double kFloatTolerance = 5e-6;
inline constexpr double kBFloat16Tolerance = 1e-2;
inline constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

inline double tolerance(at::ScalarType type) {
  return type == at::kFloat ? kFloatTolerance : kBFloat16Tolerance;
}

inline at::Tensor on_gpu(const at::Tensor& x) {
  return x.defined() ? x.to(at::kCUDA) : x;
}
inline at::Tensor wide(const at::Tensor& x) {
  return x.defined() ? x.to(at::kCPU, at::kDouble) : x;
}
inline at::Tensor random(at::IntArrayRef sizes, at::ScalarType type) {
  return at::randn(sizes, at::kFloat).to(type).to(at::kCUDA);
}
inline at::Tensor poisoned(at::IntArrayRef sizes, at::ScalarType type) {
  return at::full(sizes, kNan, at::TensorOptions().dtype(type).device(at::kCUDA));
}
// [rows, cols] with `shift` elements before and 3 - shift behind each row: every alignment occurs.
inline at::Tensor strided(const at::Tensor& values, int64_t shift) {
  const at::Tensor frame = poisoned({values.size(0), values.size(1) + 3}, values.scalar_type());
  at::Tensor view = frame.narrow(1, shift, values.size(1));
  view.copy_(values);
  return view;
}

inline void check_near(const at::Tensor& got, const at::Tensor& expected, double limit,
                       const std::string& what) {
  const double scale = std::max(1.0, expected.abs().max().item<double>());
  const double error = (wide(got) - expected).abs().max().item<double>() / scale;
  report(error <= limit, __FILE__, __LINE__,
         what + ": error " + std::to_string(error / limit) + " x the limit");
}

inline std::string named(const char* what, at::ScalarType type, int64_t rows, int64_t cols) {
  return std::string(what) + " " + at::toString(type) + " " + std::to_string(rows) + "x" +
         std::to_string(cols);
}

inline int run_on_gpu() {
  if (kernels::device_ops() == nullptr || !at::hasCUDA()) {
    std::printf("skipped: %s\n0 passed, 0 failed\n",
                kernels::device_ops() == nullptr ? "a build without CUDA" : "no GPU");
    return 77;  // SKIP_RETURN_CODE in CMakeLists.txt
  }
  return run_all();
}

}  // namespace troupe::test
