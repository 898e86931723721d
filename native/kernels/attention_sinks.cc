// Sinks of attention behind its kernels: in loops on a CPU, whose bits no vector width may change, and in
// LibTorch operations elsewhere.
#include "kernels/attention_sinks.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "base/parallel.h"

namespace troupe::ops {

namespace {

// Rows in one piece of work.
constexpr int64_t kRows = 64;

template <typename Scalar>
void add_on_cpu(const AttentionSpec& spec, const at::Tensor& out, const at::Tensor& lse, int64_t rows) {
  const at::Tensor sinks = spec.sinks.to(at::kFloat).contiguous();
  const float* sink = sinks.const_data_ptr<float>();
  Scalar* const first = out.data_ptr<Scalar>();
  float* const sums = lse.data_ptr<float>();
  const int64_t out_ld = out.stride(0), lse_ld = lse.stride(0);
  parallel_items((rows + kRows - 1) / kRows, [&](int64_t piece) {
    const int64_t end = std::min(rows, (piece + 1) * kRows);
    for (int64_t row = piece * kRows; row < end; ++row) {
      Scalar* values = first + row * out_ld;
      for (int64_t head = 0; head < spec.num_heads; ++head, values += spec.head_dim) {
        float& sum = sums[head * lse_ld + row];
        const float keys = 1.0f / (1.0f + std::exp(sink[head] - sum));  // their share of the softmax
        for (int64_t c = 0; c < spec.head_dim; ++c)
          values[c] = static_cast<Scalar>(static_cast<float>(values[c]) * keys);
        sum = std::max(sum, sink[head]) + std::log1p(std::exp(-std::abs(sum - sink[head])));
      }
    }
  });
}

// Of the first rows, by head: [rows, Q, D].
at::Tensor by_head(const AttentionSpec& spec, const at::Tensor& t, int64_t rows) {
  return t.narrow(0, 0, rows).unflatten(1, {spec.num_heads, spec.head_dim});
}

}  // namespace

void add_sinks(const AttentionSpec& spec, const at::Tensor& out, const at::Tensor& lse, int64_t rows) {
  if (rows == 0) return;
  if (on_cpu_threads(out.device())) {
    if (simulated(out)) return;
    return out.scalar_type() == at::kFloat ? add_on_cpu<float>(spec, out, lse, rows)
                                           : add_on_cpu<at::BFloat16>(spec, out, lse, rows);
  }
  at::Tensor sums = lse.narrow(1, 0, rows);
  const at::Tensor sinks = spec.sinks.to(sums.scalar_type()).unsqueeze(1);
  by_head(spec, out, rows).mul_(at::sigmoid(sums - sinks).t().unsqueeze(2));
  at::logaddexp_out(sums, sums, sinks);
}

at::Tensor sinks_gradient(const AttentionSpec& spec, const at::Tensor& out, const at::Tensor& lse,
                          const at::Tensor& dout, int64_t rows) {
  if (on_cpu_threads(out.device()) && simulated(out)) return at::empty({spec.num_heads}, lse.options());
  const at::Tensor along = (by_head(spec, out, rows).to(at::kFloat) * by_head(spec, dout, rows)).sum(-1);
  const at::Tensor taken = at::exp(spec.sinks.to(at::kFloat).unsqueeze(1) - lse.narrow(1, 0, rows));
  return (taken * along.t()).sum(1).neg();
}

}  // namespace troupe::ops
