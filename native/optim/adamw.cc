// AdamW and sums of squares over flat buffers: CPU kernels, CUDA kernels, or LibTorch where there is neither.
#include "optim/adamw.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "kernels/cpu_dispatch.h"
#include "kernels/device_ops.h"

namespace troupe {

namespace {

// Elements per unit of work: fixed, so that no result depends on the number of threads.
constexpr int64_t kBlock = 16384;

template <typename Body>
void for_each_block(int64_t count, const Body& body) {
  at::parallel_for(0, (count + kBlock - 1) / kBlock, 1, [&](int64_t first, int64_t last) {
    for (int64_t block = first; block < last; ++block) {
      const int64_t begin = block * kBlock;
      body(block, begin, std::min(count, begin + kBlock));
    }
  });
}

void check_flat(const char* name, const at::Tensor& x, at::ScalarType type, int64_t count) {
  require(x.defined() && x.numel() == count && x.is_contiguous() && x.scalar_type() == type,
          ErrorCode::kInternal, "[optim] expected ", name, " contiguous with ", count, " ", type);
}

// The same step in LibTorch operations, for devices without a kernel.
void adamw_reference(const AdamWBuffers& buffers, const kernels::AdamWConstants& c) {
  const at::Tensor grad = buffers.grad * c.grad_scale;
  buffers.exp_avg.lerp_(grad, c.one_minus_beta1);
  buffers.exp_avg_sq.mul_(c.beta2).addcmul_(grad, grad, c.one_minus_beta2);
  const at::Tensor denominator = buffers.exp_avg_sq.sqrt().mul_(c.inverse_sqrt_bias_correction2).add_(c.eps);
  buffers.param.mul_(c.decay).addcdiv_(buffers.exp_avg, denominator, -c.step_size);
  if (buffers.compute.defined()) buffers.compute.copy_(buffers.param);
}

// SplitMix64 (Steele, Lea & Flood 2014) of the buffer and the step.
kernels::RoundingStream rounding_stream(SharedPlace place, int64_t step) {
  uint64_t z = (static_cast<uint64_t>(place.buffer) << 40) + static_cast<uint64_t>(step);
  z = (z + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  z ^= z >> 31;
  return {static_cast<uint32_t>(z), static_cast<uint32_t>(z >> 32), place.first};
}

// Weights and moments in bfloat16.
void bfloat16_step(const AdamWBuffers& buffers, const kernels::AdamWConstants& constants,
                   const kernels::RoundingStream& stream) {
  const auto* device = kernels::device_ops_for(buffers.param);
  if (!buffers.param.is_cpu() && device == nullptr) {  // the CPU's kernel, so that bits are the same
    const AdamWBuffers host{
        buffers.param.cpu(), buffers.grad.cpu(), buffers.exp_avg.cpu(), buffers.exp_avg_sq.cpu(), {}};
    bfloat16_step(host, constants, stream);
    buffers.param.copy_(host.param);
    buffers.exp_avg.copy_(host.exp_avg);
    buffers.exp_avg_sq.copy_(host.exp_avg_sq);
    return;
  }
  const int64_t count = buffers.param.numel();
  auto* param = buffers.param.mutable_data_ptr<at::BFloat16>();
  const float* grad = buffers.grad.const_data_ptr<float>();
  auto* exp_avg = buffers.exp_avg.mutable_data_ptr<at::BFloat16>();
  auto* exp_avg_sq = buffers.exp_avg_sq.mutable_data_ptr<at::BFloat16>();
  if (device != nullptr)
    return device->rows.optim.adamw_bfloat16(constants, stream, count, param, grad, exp_avg, exp_avg_sq);
  for_each_block(count, [&](int64_t, int64_t begin, int64_t end) {
    kernels::row_kernels().optim.adamw_bfloat16(constants, stream.from(begin), end - begin, param + begin,
                                                grad + begin, exp_avg + begin, exp_avg_sq + begin);
  });
}

}  // namespace

at::Tensor sum_of_squares(const at::Tensor& flat) {
  // In a simulation there are shapes without values.
  const at::Tensor sum =
      at::zeros({}, flat.options().device(flat.is_meta() ? at::kCPU : flat.device()).dtype(at::kDouble));
  if (flat.is_meta()) return sum;
  check_flat("gradient", flat, at::kFloat, flat.numel());
  if (const auto* device = kernels::device_ops_for(flat)) {
    device->rows.optim.add_sum_of_squares(flat.const_data_ptr<float>(), flat.numel(),
                                          sum.mutable_data_ptr<double>());
    return sum;
  }
  if (!flat.is_cpu()) return at::sum(at::square(flat.to(at::kDouble)));
  std::vector<double> parts(static_cast<size_t>((flat.numel() + kBlock - 1) / kBlock));
  const float* data = flat.const_data_ptr<float>();
  for_each_block(flat.numel(), [&](int64_t block, int64_t begin, int64_t end) {
    kernels::row_kernels().optim.add_sum_of_squares(data + begin, end - begin,
                                                    &parts[static_cast<size_t>(block)]);
  });
  double total = 0;
  for (const double part : parts) total += part;
  return sum.fill_(total);
}

void adamw_step(const AdamWBuffers& buffers, const AdamWOptions& options, double lr, double grad_scale,
                int64_t step, SharedPlace place) {
  require(step >= 1, ErrorCode::kInternal, "[optim] expected a 1-based step but got ", step);
  const int64_t count = buffers.param.numel();
  const bool narrow = buffers.param.scalar_type() == at::kBFloat16;
  const at::ScalarType kept = narrow ? at::kBFloat16 : at::kFloat;
  check_flat("param", buffers.param, kept, count);
  check_flat("grad", buffers.grad, at::kFloat, count);
  check_flat("exp_avg", buffers.exp_avg, kept, count);
  check_flat("exp_avg_sq", buffers.exp_avg_sq, kept, count);
  require(!narrow || !buffers.compute.defined(), ErrorCode::kInternal,
          "[optim] expected no copy to compute with beside weights in bfloat16");
  if (buffers.compute.defined()) check_flat("compute", buffers.compute, at::kBFloat16, count);

  const double correction1 = 1 - std::pow(options.beta1, static_cast<double>(step));
  const double correction2 = 1 - std::pow(options.beta2, static_cast<double>(step));
  kernels::AdamWConstants constants{};
  constants.grad_scale = static_cast<float>(grad_scale);
  constants.one_minus_beta1 = static_cast<float>(1 - options.beta1);
  constants.beta2 = static_cast<float>(options.beta2);
  constants.one_minus_beta2 = static_cast<float>(1 - options.beta2);
  constants.decay = static_cast<float>(1 - lr * options.weight_decay);
  constants.step_size = static_cast<float>(lr / correction1);
  constants.inverse_sqrt_bias_correction2 = static_cast<float>(1 / std::sqrt(correction2));
  constants.eps = static_cast<float>(options.eps);
  if (buffers.param.is_meta()) return;  // a simulation: one pass over what is there
  if (narrow) return bfloat16_step(buffers, constants, rounding_stream(place, step));
  const auto* device = kernels::device_ops_for(buffers.param);
  if (!buffers.param.is_cpu() && device == nullptr) return adamw_reference(buffers, constants);

  float* param = buffers.param.mutable_data_ptr<float>();
  const float* grad = buffers.grad.const_data_ptr<float>();
  float* exp_avg = buffers.exp_avg.mutable_data_ptr<float>();
  float* exp_avg_sq = buffers.exp_avg_sq.mutable_data_ptr<float>();
  at::BFloat16* compute =
      buffers.compute.defined() ? buffers.compute.mutable_data_ptr<at::BFloat16>() : nullptr;
  if (device != nullptr) {
    return device->rows.optim.adamw(constants, count, param, grad, exp_avg, exp_avg_sq, compute);
  }
  for_each_block(count, [&](int64_t, int64_t begin, int64_t end) {
    kernels::row_kernels().optim.adamw(constants, end - begin, param + begin, grad + begin, exp_avg + begin,
                                       exp_avg_sq + begin, compute != nullptr ? compute + begin : nullptr);
  });
}

}  // namespace troupe
