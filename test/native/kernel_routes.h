// The row kernels of every instruction set and the LibTorch reference, and inputs for them.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "check.h"
#include "kernels/cpu_dispatch.h"
#include "kernels/ops.h"
#include "kernels/reference.h"
#include "kernels/split_norm.h"

namespace troupe::test {

inline constexpr double kFloatTolerance = 3e-6;
inline constexpr double kBFloat16Tolerance = 1e-2;

// How the operations under test are reached: the kernels of an instruction set, or the reference.
struct Route {
  std::string name;
  std::function<void()> select;
  decltype(&ops::norm_forward) norm_forward;
  decltype(&ops::norm_backward) norm_backward;
  decltype(&ops::qk_norm_rotary_forward) rotary_forward;
  decltype(&ops::qk_norm_rotary_backward) rotary_backward;
  decltype(&ops::activation_forward) activation_forward;
  decltype(&ops::activation_backward) activation_backward;
  decltype(&ops::split_norm_squares) split_norm_squares;
  decltype(&ops::split_norm_forward) split_norm_forward;
  decltype(&ops::split_norm_products) split_norm_products;
  decltype(&ops::split_norm_backward) split_norm_backward;
};

inline std::vector<Route> routes() {
  std::vector<Route> all;
  for (const kernels::Isa isa : kernels::supported_isas()) {
    all.push_back({"isa " + std::to_string(static_cast<int>(isa)), [isa] { kernels::select_isa(isa); },
                   ops::norm_forward, ops::norm_backward, ops::qk_norm_rotary_forward,
                   ops::qk_norm_rotary_backward, ops::activation_forward, ops::activation_backward,
                   ops::split_norm_squares, ops::split_norm_forward, ops::split_norm_products,
                   ops::split_norm_backward});
  }
  namespace reference = ops::reference;
  all.push_back({"reference", [] {}, reference::norm_forward, reference::norm_backward,
                 reference::qk_norm_rotary_forward, reference::qk_norm_rotary_backward,
                 reference::activation_forward, reference::activation_backward, reference::split_norm_squares,
                 reference::split_norm_forward, reference::split_norm_products,
                 reference::split_norm_backward});
  return all;
}

inline double tolerance(at::ScalarType type) {
  return type == at::kFloat ? kFloatTolerance : kBFloat16Tolerance;
}

inline void check_near(const at::Tensor& got, const at::Tensor& expected, double limit,
                       const std::string& what) {
  const at::Tensor wide = got.to(at::kDouble);
  const double scale = std::max(1.0, expected.abs().max().item<double>());
  const double error = (wide - expected).abs().max().item<double>() / scale;
  report(error <= limit, __FILE__, __LINE__,
         what + ": error " + std::to_string(error / limit) + " x the limit");
}

inline at::Tensor wide(const at::Tensor& x) {
  return x.to(at::kDouble).detach();
}
inline at::Tensor leaf(const at::Tensor& x) {
  return wide(x).clone().requires_grad_();
}

// [rows, cols] inside a wider array, so that the row stride differs from the width and rows start
// at every alignment.
inline at::Tensor strided(const at::Tensor& values) {
  const at::Tensor frame = at::full({values.size(0), values.size(1) + 3}, std::nan(""), values.options());
  at::Tensor view = frame.narrow(1, 1, values.size(1));
  view.copy_(values);
  return view;
}
inline at::Tensor poisoned(at::IntArrayRef sizes, at::ScalarType type) {
  return at::full(sizes, std::nan(""), type);
}
inline at::Tensor random(at::IntArrayRef sizes, at::ScalarType type) {
  return at::randn(sizes, at::kFloat).to(type);
}

template <typename Body>
inline void for_each_route(const Body& body) {
  for (const Route& route : routes()) {
    route.select();
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) body(route, type);
  }
  kernels::select_isa(kernels::best_isa());
}

inline at::Tensor norm_of(const ops::NormSpec& spec, const at::Tensor& x, const at::Tensor& weight,
                          const at::Tensor& bias) {
  const at::Tensor centered = spec.kind == NormKind::kLayer ? x - x.mean({1}, true) : x;
  const at::Tensor normalised = centered / (centered.square().mean({1}, true) + spec.eps).sqrt();
  const at::Tensor y = normalised * (spec.unit_offset ? weight + 1 : weight);
  return bias.defined() ? y + bias : y;
}

}  // namespace troupe::test
