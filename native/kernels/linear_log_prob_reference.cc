// The head in LibTorch operations, for tests and devices without a kernel.
#include <ATen/ATen.h>

#include "kernels/linear_log_prob.h"
#include "kernels/row_sums.h"
#include "kernels/row_tokens.h"

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

// Where the targets [n] lie among the `count` ids of a rank from `first` on.
struct LocalTargets {
  at::Tensor here;   // [n] bool
  at::Tensor index;  // [n, 1], of any column where they are elsewhere

  LocalTargets(const at::Tensor& targets, int64_t first, int64_t count) {
    const at::Tensor column = targets.to(at::kLong) - first;
    here = column.ge(0).logical_and(column.lt(count));
    index = column.clamp(0, count - 1).unsqueeze(1);
  }
};

// kernels::RowSums [n, 5] of logits [n, V / ranks].
at::Tensor sums_of(const at::Tensor& z, const at::Tensor& targets, int64_t first) {
  const at::Tensor sums = at::zeros({z.size(0), kernels::RowSums::kCount}, z.options().dtype(at::kDouble));
  sums.select(1, 0).fill_(-std::numeric_limits<double>::infinity());
  if (z.numel() == 0) return sums;
  const at::Tensor max = z.amax({1});
  const at::Tensor shifted = z - max.unsqueeze(1);
  const at::Tensor e = shifted.exp();
  const LocalTargets local(targets, first, z.size(1));
  sums.select(1, 0).copy_(max);
  sums.select(1, 1).copy_(e.sum(1));
  sums.select(1, 2).copy_((shifted * e).sum(1));
  sums.select(1, 3).copy_(e.square().sum(1));
  sums.select(1, 4).copy_(z.gather(1, local.index).squeeze(1).masked_fill(local.here.logical_not(), 0));
  return sums;
}

// Writes the outputs of rows [begin, begin + n) and returns their log-softmax [n, V] or the part of it that
// belongs to a shard.
at::Tensor forward_chunk(const LogProbSpec& spec, const at::Tensor& z, const at::Tensor& targets,
                         int64_t begin, const LogProbRows& out, const char* phase) {
  const int64_t count = z.size(0);
  if (spec.shard != nullptr) {
    const at::Tensor sums = sums_of(z, targets.narrow(0, begin, count), spec.first_id());
    const at::Tensor parts = spec.shard->gather(sums, phase).cpu();
    write_rows(parts, begin, out);
    const at::Tensor lse = at::empty({count}, at::kDouble);
    write_rows(parts, 0, {at::empty_like(lse), lse, {}, {}});
    return z - lse.to(z.options()).unsqueeze(1);
  }
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
  spec.check(hidden, weight, targets, "forward");
  for (int64_t begin = 0; begin < hidden.size(0); begin += kChunkRows) {
    const int64_t count = std::min(kChunkRows, hidden.size(0) - begin);
    const at::Tensor z = capped_logits(spec, hidden.narrow(0, begin, count), weight) / spec.temperature;
    forward_chunk(spec, z, targets, begin, out, "forward");
    if (out.top.ids.defined()) write_top_tokens(spec, z, begin, out);
  }
}

void linear_log_prob_backward_reference(const LogProbSpec& spec, const at::Tensor& hidden,
                                        const at::Tensor& weight, const at::Tensor& targets,
                                        const LogProbRows& rows, bool entropy_gradient,
                                        const RowGradients& gradients, const at::Tensor& d_hidden,
                                        const at::Tensor& d_weight) {
  spec.check(hidden, weight, targets, "backward");
  for (int64_t begin = 0; begin < hidden.size(0); begin += kChunkRows) {
    const int64_t count = std::min(kChunkRows, hidden.size(0) - begin);
    const at::Tensor chunk = hidden.narrow(0, begin, count);
    const at::Tensor capped = capped_logits(spec, chunk, weight);
    const at::Tensor z = capped / spec.temperature;
    const at::Tensor log_softmax = forward_chunk(spec, z, targets, begin, rows, "backward");
    if (rows.given.ids.defined()) write_given_tokens(spec, z, begin, rows);
    const at::Tensor g = at::empty({count}, rows.log_probs.options());
    const at::Tensor h = entropy_gradient ? at::empty({count}, rows.log_probs.options()) : at::Tensor();
    gradients(begin, begin + count, g, h);

    const at::Tensor p = log_softmax.exp();
    const at::Tensor g_column = g.to(p.scalar_type()).unsqueeze(1);
    at::Tensor dz = -p * g_column;
    if (weight.size(0) > 0) {
      const LocalTargets local(targets.narrow(0, begin, count), spec.first_id(), weight.size(0));
      dz.scatter_add_(1, local.index, g_column.masked_fill(local.here.logical_not().unsqueeze(1), 0));
    }
    if (rows.given.ids.defined()) {
      const at::Tensor by_given = rows.given.gradients.narrow(0, begin, count).to(p.scalar_type());
      dz -= p * by_given.sum(1, /*keepdim=*/true);
      const TokenColumns columns(rows.given.ids.narrow(0, begin, count), spec.first_id(), weight.size(0));
      if (weight.size(0) > 0)
        dz.scatter_add_(1, columns.index, by_given.masked_fill(columns.here.logical_not(), 0));
    }
    if (entropy_gradient) {
      const at::Tensor row_entropy = rows.entropy.narrow(0, begin, count).to(p.scalar_type()).unsqueeze(1);
      dz -= h.to(p.scalar_type()).unsqueeze(1) * p * (log_softmax.nan_to_num(0) + row_entropy);
    }
    dz /= spec.temperature;
    if (spec.softcap > 0) dz *= 1 - at::square(capped / spec.softcap);
    const at::Tensor by_hidden = at::mm(dz, weight.to(dz.scalar_type()));
    if (spec.shard != nullptr && spec.sum_hidden_gradient) spec.shard->sum(by_hidden);
    d_hidden.narrow(0, begin, count).copy_(by_hidden);
    if (d_weight.defined()) d_weight.add_(at::mm(dz.t(), chunk.to(dz.scalar_type())));
  }
}

}  // namespace troupe::ops
