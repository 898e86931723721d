// Weights of tokens in each aggregation.
#include "losses/aggregation.h"

#include <ATen/ATen.h>

#include "base/error.h"

namespace troupe::losses {

namespace {

constexpr double kMeanEpsilon = 1e-8;

double positive(double value, const char* name, Aggregation aggregation) {
  require(value > 0, ErrorCode::kInvalidArgument, "[losses] ", name_of(aggregation), " expected a positive ",
          name, " but got ", value);
  return value;
}

}  // namespace

ValidTokens::ValidTokens(const ResponseLayout& layout)
    : total_(layout.mask.numel()),
      global_tokens_(layout.global_tokens),
      global_sequences_(layout.global_sequences) {
  require(layout.offsets.numel() >= 1, ErrorCode::kInternal,
          "[losses] expected b + 1 response offsets but got none");
  const at::Tensor offsets = layout.offsets.to(at::kLong);
  lengths_ = offsets.diff();
  require(offsets[0].item<int64_t>() == 0 && offsets[-1].item<int64_t>() == total_ &&
              lengths_.ge(0).all().item<bool>(),
          ErrorCode::kInternal, "[losses] expected response offsets that rise from 0 to the ", total_,
          " tokens of the mask");
  index_ = layout.mask.reshape({-1}).nonzero().squeeze(1);
  sequence_ = at::repeat_interleave(lengths_).index_select(0, index_);
  mask_sums_ = layout.mask_sums.defined() ? layout.mask_sums
                                          : at::bincount(sequence_, {}, lengths_.size(0)).to(at::kDouble);
}

at::Tensor ValidTokens::pick(const at::Tensor& column, const char* name) const {
  require(column.defined() && column.numel() == total_, ErrorCode::kInternal, "[losses] expected ", name,
          " with ", total_, " values but got ", column.defined() ? column.numel() : 0);
  return column.reshape({-1}).index_select(0, index_).to(at::kDouble);
}

at::Tensor ValidTokens::pick_rows(const at::Tensor& column, const char* name) const {
  require(column.defined() && column.dim() == 2 && column.size(0) == total_, ErrorCode::kInternal,
          "[losses] expected ", name, " with ", total_, " rows but got ",
          column.defined() ? column.sizes() : at::IntArrayRef());
  return column.index_select(0, index_).to(at::kDouble);
}

at::Tensor ValidTokens::place(const at::Tensor& values) const {
  return at::zeros({total_}, at::kDouble).index_copy_(0, index_, values);
}

at::Tensor ValidTokens::to_responses(const at::Tensor& values) const {
  return at::zeros({total_}, at::kFloat).index_copy_(0, index_, values.to(at::kFloat));
}

at::Tensor ValidTokens::sums(const at::Tensor& values) const {
  return at::zeros({num_sequences()}, at::kDouble).index_add(0, sequence_, values);
}

double ValidTokens::mean(const at::Tensor& values) const {
  return values.detach().to(at::kDouble).sum().item<double>() / (static_cast<double>(count()) + kMeanEpsilon);
}

at::Tensor ValidTokens::weights(Aggregation aggregation, double scale_factor) const {
  const auto all = [&](double weight) { return at::full({count()}, weight, at::kDouble); };
  if (aggregation == Aggregation::kTokenSum) return all(1);
  if (count() == 0) return all(0);  // no divisor need be positive
  const auto sequences = [&] { return positive(global_sequences_, "global sequence count", aggregation); };
  switch (aggregation) {
    case Aggregation::kTokenSum: break;
    case Aggregation::kTokenMean: return all(1 / positive(global_tokens_, "global token count", aggregation));
    case Aggregation::kSeqMeanTokenSum: return all(1 / sequences());
    case Aggregation::kSeqMeanTokenSumNorm:
      return all(1 / (sequences() * positive(scale_factor, "loss scale factor", aggregation)));
    case Aggregation::kSeqMeanTokenMean:
      return (1 / ((mask_sums_ + kMeanEpsilon) * sequences())).index_select(0, sequence_);
  }
  fail(ErrorCode::kInternal, "[losses] no weights for ", name_of(aggregation));
}

at::Tensor mask_sums(const ResponseLayout& layout) {
  return ValidTokens(layout).mask_sums();
}

at::Tensor aggregation_weights(const ResponseLayout& layout, Aggregation aggregation, double scale_factor) {
  const ValidTokens tokens(layout);
  return tokens.to_responses(tokens.weights(aggregation, scale_factor));
}

}  // namespace troupe::losses
