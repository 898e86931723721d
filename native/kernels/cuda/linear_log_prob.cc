// The head on a GPU: chunks of rows, cuBLAS and the passes of logits.cu.
#include "kernels/cuda/linear_log_prob.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "kernels/cuda/gemm.h"
#include "kernels/row_tokens.h"

namespace troupe::kernels::cuda {

namespace {

// The rows in chunks whose length depends on the vocabulary alone (its widest shard), with one buffer for all
// of them.
class ChunkedHead {
 public:
  ChunkedHead(const ops::LogProbSpec& spec, const at::Tensor& hidden, const at::Tensor& weight,
              const at::Tensor& targets)
      : spec_(spec),
        hidden_(hidden),
        weight_(weight),
        targets_(targets),
        vocab_(weight.size(0)),
        stride_(logits_stride(vocab_)) {
    const at::ScalarType type = hidden.scalar_type();
    require((type == at::kBFloat16 || type == at::kFloat) && weight.scalar_type() == type,
            ErrorCode::kInternal,
            "[linear_log_prob] expected hidden and weight in one of float32 and bfloat16 but got ", type,
            " and ", weight.scalar_type());
    require(targets.scalar_type() == at::kInt && targets.is_contiguous() &&
                targets.device() == hidden.device() && targets.numel() == hidden.size(0),
            ErrorCode::kInternal, "[linear_log_prob] expected ", hidden.size(0), " int32 targets on ",
            hidden.device(), " but got ", targets.sizes(), " ", targets.scalar_type(), " on ",
            targets.device());
    chunk_ = logits_rows(spec.most_rows(weight));
    buffer_ = at::empty({chunk_, stride_}, hidden.options().dtype(at::kFloat));
  }

  int64_t chunk() const { return chunk_; }
  bool to_bfloat16() const { return hidden_.scalar_type() == at::kBFloat16; }
  at::Tensor hidden(int64_t begin, int64_t count) const { return hidden_.narrow(0, begin, count); }

  // Raw logits of rows [begin, begin + count) into the buffer, by a GEMM over a whole chunk.
  LogitRows logits(int64_t begin, int64_t count) {
    at::Tensor rows = hidden(begin, count);
    if (count < chunk_) {
      const at::Tensor padded = at::zeros({chunk_, hidden_.size(1)}, hidden_.options());
      padded.narrow(0, 0, count).copy_(rows);
      rows = padded;
    }
    gemm(rows, weight_.t(), buffer_.narrow(1, 0, vocab_), false);
    return {buffer_.mutable_data_ptr<float>(),
            count,
            vocab_,
            stride_,
            static_cast<float>(1.0 / spec_.temperature),
            static_cast<float>(spec_.softcap),
            targets_.const_data_ptr<int32_t>() + begin,
            spec_.first_id()};
  }

  // What logits() left in the buffer: [count, V].
  at::Tensor raw(int64_t count) const { return buffer_.narrow(0, 0, count).narrow(1, 0, vocab_); }

  // What logit_gradients left in the buffer: [count, V] in the dtype of hidden.
  at::Tensor gradient(int64_t count) const {
    const at::Tensor typed = to_bfloat16() ? buffer_.view(at::kBFloat16) : buffer_;
    return typed.narrow(0, 0, count).narrow(1, 0, vocab_);
  }

 private:
  const ops::LogProbSpec& spec_;
  const at::Tensor& hidden_;
  const at::Tensor& weight_;
  const at::Tensor& targets_;
  int64_t vocab_, stride_, chunk_ = 0;
  at::Tensor buffer_;
};

at::Tensor shown(const ops::LogProbSpec& spec, const at::Tensor& raw) {
  const at::Tensor capped = spec.softcap > 0 ? at::tanh(raw / spec.softcap) * spec.softcap : raw;
  return capped / spec.temperature;
}

// What the gradients [n, K] by the log-probs of tokens add at these, of which no two of a row are the same:
// to be taken before the logits become gradients, and added after. Tokens that may meet take two of them, one
// behind the other: scatter_add_ adds with atomics, what meets in any order.
class TokenTerms {
 public:
  TokenTerms(const ops::LogProbSpec& spec, const at::Tensor& raw, const at::Tensor& ids,
             const at::Tensor& gradients)
      : columns_(ids, spec.first_id(), raw.size(1)) {
    values_ = gradients.masked_fill(columns_.here.logical_not(), 0) / spec.temperature;
    if (spec.softcap > 0 && raw.size(1) > 0)
      values_ = values_ * (1 - at::tanh(raw.gather(1, columns_.index) / spec.softcap).square());
  }
  void add(at::Tensor by_logits) const {
    if (by_logits.size(1) > 0) by_logits.scatter_add_(1, columns_.index, values_.to(by_logits.scalar_type()));
  }

 private:
  ops::TokenColumns columns_;
  at::Tensor values_;
};

float* floats(const char* name, const at::Tensor& x, int64_t rows, int64_t begin) {
  if (!x.defined()) return nullptr;
  require(x.scalar_type() == at::kFloat && x.is_contiguous() && x.is_cuda() && x.numel() == rows,
          ErrorCode::kInternal, "[linear_log_prob] expected ", name, " [", rows,
          "] float32 on the device but got ", x.sizes(), " ", x.scalar_type(), " on ", x.device());
  return x.mutable_data_ptr<float>() + begin;
}

LogitStats stats_at(const ops::LogProbRows& out, int64_t rows, int64_t begin) {
  return {floats("log_probs", out.log_probs, rows, begin), floats("lse", out.lse, rows, begin),
          floats("entropy", out.entropy, rows, begin),
          floats("sum_pi_squared", out.sum_pi_squared, rows, begin)};
}

// The sums of this rank's shard over `rows` rows, and the outputs from them and those of the other ranks.
class ShardSums {
 public:
  ShardSums(const ops::VocabularyShard& shard, int64_t rows, const at::Tensor& hidden)
      : shard_(shard), own_(at::empty({rows, RowSums::kCount}, hidden.options().dtype(at::kDouble))) {}

  RowSums* at(int64_t row) const { return reinterpret_cast<RowSums*>(own_.mutable_data_ptr<double>()) + row; }
  void finish(const char* phase, const LogitStats& out) const {
    const at::Tensor all = shard_.gather(own_, phase);
    combine_sums(reinterpret_cast<const RowSums*>(all.const_data_ptr<double>()), shard_.size(), own_.size(0),
                 out);
  }

 private:
  const ops::VocabularyShard& shard_;
  at::Tensor own_;  // [rows, 5]
};

// Gradients by `count` rows of the hidden states, those of the other ranks included where they are wanted.
void hidden_gradient(const ops::LogProbSpec& spec, const at::Tensor& by_logits, const at::Tensor& weight,
                     at::Tensor by_hidden) {
  const bool summed = spec.shard != nullptr && spec.shard->size() > 1 && spec.sum_hidden_gradient;
  if (!summed && by_hidden.scalar_type() == by_logits.scalar_type()) {
    at::mm_out(by_hidden, by_logits, weight);
    return;
  }
  const at::Tensor sum = at::zeros(by_hidden.sizes(), by_hidden.options().dtype(at::kFloat));
  if (weight.size(0) > 0) gemm(by_logits, weight, sum, false);
  if (summed) spec.shard->sum(sum);
  by_hidden.copy_(sum);
}

}  // namespace

void linear_log_prob_forward(const ops::LogProbSpec& spec, const at::Tensor& hidden, const at::Tensor& weight,
                             const at::Tensor& targets, const ops::LogProbRows& out) {
  spec.check(hidden, weight, targets, "forward");
  ChunkedHead head(spec, hidden, weight, targets);
  const int64_t rows = hidden.size(0);
  std::optional<ShardSums> sums;
  if (spec.shard != nullptr) sums.emplace(*spec.shard, rows, hidden);
  for (int64_t begin = 0; begin < rows; begin += head.chunk()) {
    const int64_t count = std::min(head.chunk(), rows - begin);
    const LogitRows logits = head.logits(begin, count);
    if (sums) {
      logit_sums(logits, sums->at(begin));
    } else {
      logit_stats(logits, stats_at(out, rows, begin));
    }
    if (!out.top.ids.defined()) continue;
    if (sums) {
      // The likeliest tokens take the sums of their own rows.
      const ShardSums own(*spec.shard, count, hidden);
      logit_sums(logits, own.at(0));
      own.finish("forward", stats_at(out, rows, begin));
    }
    ops::write_top_tokens(spec, head.raw(count), begin, out, shown);
  }
  if (sums) sums->finish("forward", stats_at(out, rows, 0));
}

void linear_log_prob_backward(const ops::LogProbSpec& spec, const at::Tensor& hidden,
                              const at::Tensor& weight, const at::Tensor& targets,
                              const ops::LogProbRows& rows, bool entropy_gradient,
                              const ops::RowGradients& gradients, const at::Tensor& d_hidden,
                              const at::Tensor& d_weight) {
  spec.check(hidden, weight, targets, "backward");
  ChunkedHead head(spec, hidden, weight, targets);
  const int64_t total = hidden.size(0);
  const auto options = hidden.options().dtype(at::kFloat);
  for (int64_t begin = 0; begin < total; begin += head.chunk()) {
    const int64_t count = std::min(head.chunk(), total - begin);
    LogitRows logits = head.logits(begin, count);
    const LogitStats stats = stats_at(rows, total, begin);
    if (spec.shard != nullptr) {
      const ShardSums sums(*spec.shard, count, hidden);
      logit_sums(logits, sums.at(0));
      sums.finish("backward", stats);
    } else {
      logit_stats(logits, stats);
    }
    const at::Tensor by_log_prob = at::empty({count}, options);
    const at::Tensor by_entropy = entropy_gradient ? at::empty({count}, options) : at::Tensor();
    const bool with_given = rows.given.ids.defined();
    if (with_given) ops::write_given_tokens(spec, head.raw(count), begin, rows, shown);
    gradients(begin, begin + count, by_log_prob, by_entropy);
    std::optional<TokenTerms> of_given, of_target;
    at::Tensor no_targets;
    if (with_given) {
      // The pass takes the sum of a row's gradients for what all of its tokens share, and adds nothing at the
      // target: in bfloat16 most of the sum, taken away again there, would leave its rounding alone.
      const at::Tensor by_given = rows.given.gradients.narrow(0, begin, count), raw = head.raw(count);
      of_given.emplace(spec, raw, rows.given.ids.narrow(0, begin, count), by_given);
      of_target.emplace(spec, raw, targets.narrow(0, begin, count).unsqueeze(1), by_log_prob.unsqueeze(1));
      by_log_prob.add_(by_given.sum(1));
      no_targets = at::full({count}, -1, targets.options());
      logits.targets = no_targets.const_data_ptr<int32_t>();
    }
    logit_gradients(logits,
                    {stats.lse, floats("grad_log_probs", by_log_prob, count, 0), stats.entropy,
                     floats("grad_entropy", by_entropy, count, 0)},
                    head.to_bfloat16());
    const at::Tensor by_logits = head.gradient(count);
    for (const auto* terms : {&of_given, &of_target})
      if (*terms) (*terms)->add(by_logits);
    hidden_gradient(spec, by_logits, weight, d_hidden.narrow(0, begin, count));
    if (d_weight.defined()) gemm(by_logits.t(), head.hidden(begin, count), d_weight, /*accumulate=*/true);
  }
}

}  // namespace troupe::kernels::cuda
