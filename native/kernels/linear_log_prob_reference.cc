#include <ATen/ATen.h>

#include "kernels/linear_log_prob.h"

namespace troupe::ops {

namespace {

constexpr int64_t kChunkRows = 1024;

at::ScalarType working_type(const at::Tensor& t) {
  return t.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

at::Tensor capped_logits(const LogProbSpec& spec, const at::Tensor& hidden, const at::Tensor& weight) {
  const at::Tensor raw = at::mm(hidden.to(working_type(hidden)), weight.to(working_type(hidden)).t());
  return spec.softcap > 0 ? at::tanh(raw / spec.softcap) * spec.softcap : raw;
}

// Writes the outputs of rows [begin, begin + n) and returns their log-softmax [n, V].
at::Tensor forward_chunk(const at::Tensor& z, const at::Tensor& targets, int64_t begin,
                         const LogProbRows& out) {
  const int64_t count = z.size(0);
  const at::Tensor lse = at::logsumexp(z, {1});
  const at::Tensor log_softmax = z - lse.unsqueeze(1);
  const at::Tensor index = targets.narrow(0, begin, count).to(at::kLong).unsqueeze(1);
  out.lse.narrow(0, begin, count).copy_(lse);
  out.log_probs.narrow(0, begin, count).copy_(log_softmax.gather(1, index).squeeze(1));
  const at::Tensor p = log_softmax.exp();
  if (out.entropy.defined()) {
    out.entropy.narrow(0, begin, count).copy_(-(p * log_softmax).nan_to_num(0).sum(1));
  }
  if (out.sum_pi_squared.defined()) out.sum_pi_squared.narrow(0, begin, count).copy_(p.square().sum(1));
  return log_softmax;
}

}  // namespace

void linear_log_prob_forward_reference(const LogProbSpec& spec, const at::Tensor& hidden,
                                       const at::Tensor& weight, const at::Tensor& targets,
                                       const LogProbRows& out) {
  for (int64_t begin = 0; begin < hidden.size(0); begin += kChunkRows) {
    const int64_t count = std::min(kChunkRows, hidden.size(0) - begin);
    forward_chunk(capped_logits(spec, hidden.narrow(0, begin, count), weight) / spec.temperature, targets,
                  begin, out);
  }
}

void linear_log_prob_backward_reference(const LogProbSpec& spec, const at::Tensor& hidden,
                                        const at::Tensor& weight, const at::Tensor& targets,
                                        const LogProbRows& rows, bool entropy_gradient,
                                        const RowGradients& gradients, const at::Tensor& d_hidden,
                                        const at::Tensor& d_weight) {
  for (int64_t begin = 0; begin < hidden.size(0); begin += kChunkRows) {
    const int64_t count = std::min(kChunkRows, hidden.size(0) - begin);
    const at::Tensor chunk = hidden.narrow(0, begin, count);
    const at::Tensor capped = capped_logits(spec, chunk, weight);
    const at::Tensor log_softmax = forward_chunk(capped / spec.temperature, targets, begin, rows);
    const at::Tensor g = at::empty({count}, rows.log_probs.options());
    const at::Tensor h = entropy_gradient ? at::empty({count}, rows.log_probs.options()) : at::Tensor();
    gradients(begin, begin + count, g, h);

    const at::Tensor p = log_softmax.exp();
    const at::Tensor g_column = g.to(p.scalar_type()).unsqueeze(1);
    at::Tensor dz = -p * g_column;
    dz.scatter_add_(1, targets.narrow(0, begin, count).to(at::kLong).unsqueeze(1), g_column);
    if (entropy_gradient) {
      const at::Tensor row_entropy = rows.entropy.narrow(0, begin, count).to(p.scalar_type()).unsqueeze(1);
      dz -= h.to(p.scalar_type()).unsqueeze(1) * p * (log_softmax.nan_to_num(0) + row_entropy);
    }
    dz /= spec.temperature;
    if (spec.softcap > 0) dz *= 1 - at::square(capped / spec.softcap);
    d_hidden.narrow(0, begin, count).copy_(at::mm(dz, weight.to(dz.scalar_type())));
    if (d_weight.defined()) d_weight.add_(at::mm(dz.t(), chunk.to(dz.scalar_type())));
  }
}

}  // namespace troupe::ops
