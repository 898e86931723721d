// Some tokens of each row of logits: those of given ids, and the likeliest ones.
#include "kernels/row_tokens.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <tuple>

namespace troupe::ops {

namespace {

// [n, k] of every rank side by side: [n, size * k].
at::Tensor side_by_side(const LogProbSpec& spec, const at::Tensor& own, const char* phase, const char* what) {
  const at::Tensor all = spec.shard->gather(own.contiguous(), phase, what);
  return all.permute({1, 0, 2}).reshape({own.size(0), -1});
}

// One value per row against [n, k].
at::Tensor minus_lse(const at::Tensor& logits, const at::Tensor& lse) {
  return logits - lse.to(logits.options()).unsqueeze(1);
}

}  // namespace

TokenColumns::TokenColumns(const at::Tensor& ids, int64_t first, int64_t columns) {
  const at::Tensor column = ids.to(at::kLong) - first;
  here = column.ge(0).logical_and(column.lt(columns));
  index = column.clamp(0, std::max<int64_t>(columns - 1, 0));
}

at::Tensor token_logits(const LogProbSpec& spec, const at::Tensor& z, const at::Tensor& ids,
                        const char* phase) {
  const TokenColumns columns(ids, spec.first_id(), z.size(1));
  const at::Tensor own = z.size(1) == 0
                             ? at::zeros(ids.sizes(), z.options())
                             : z.gather(1, columns.index).masked_fill(columns.here.logical_not(), 0);
  if (spec.shard == nullptr) return own;
  return spec.shard->gather(own, phase, "logits of given tokens").sum(0);  // of which one rank has each
}

TopLogits top_logits(const LogProbSpec& spec, const at::Tensor& z, int64_t k, const char* phase) {
  const int64_t most = std::min(k, z.size(1));
  auto [logits, index] = z.topk(most, 1);
  at::Tensor ids = (index + spec.first_id()).to(at::kInt);
  if (spec.shard == nullptr) return {logits, ids};
  if (most < k) {
    logits = at::constant_pad_nd(logits, {0, k - most}, -std::numeric_limits<double>::infinity());
    ids = at::constant_pad_nd(ids, {0, k - most}, 0);
  }
  const at::Tensor all = side_by_side(spec, logits, phase, "the largest logits");
  const at::Tensor all_ids = side_by_side(spec, ids, phase, "tokens of the largest logits");
  const auto [best, place] = all.topk(k, 1);
  return {best, all_ids.gather(1, place)};
}

void write_top_tokens(const LogProbSpec& spec, const at::Tensor& z, int64_t begin, const LogProbRows& out,
                      at::Tensor (*shown)(const LogProbSpec& spec, const at::Tensor& raw)) {
  const int64_t count = z.size(0);
  const TopLogits top = top_logits(spec, z, out.top.ids.size(1), "forward");
  const at::Tensor logits = shown != nullptr ? shown(spec, top.logits) : top.logits;
  out.top.ids.narrow(0, begin, count).copy_(top.ids);
  out.top.log_probs.narrow(0, begin, count).copy_(minus_lse(logits, out.lse.narrow(0, begin, count)));
}

void write_given_tokens(const LogProbSpec& spec, const at::Tensor& z, int64_t begin, const LogProbRows& out,
                        at::Tensor (*shown)(const LogProbSpec& spec, const at::Tensor& raw)) {
  const int64_t count = z.size(0);
  const at::Tensor ids = out.given.ids.narrow(0, begin, count);
  const at::Tensor raw = token_logits(spec, z, ids, "backward");
  const at::Tensor logits = shown != nullptr ? shown(spec, raw) : raw;
  out.given.log_probs.narrow(0, begin, count).copy_(minus_lse(logits, out.lse.narrow(0, begin, count)));
  const at::Tensor least =
      top_logits(spec, z, ids.size(1), "backward").logits.select(1, ids.size(1) - 1).unsqueeze(1);
  out.given.among_top.narrow(0, begin, count).copy_(raw.ge(least));
}

}  // namespace troupe::ops
