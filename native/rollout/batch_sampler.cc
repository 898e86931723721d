// Tokens for all rows: on the host, or by blocks from a GPU.
#include "rollout/batch_sampler.h"

#include <ATen/ATen.h>

#include <utility>

#include "base/parallel.h"
#include "base/upload.h"
#include "kernels/cpu/logit_blocks_kernels.h"
#include "kernels/logit_blocks.h"

namespace troupe {
namespace {

using kernels::kLogitBlock;

// Fewer logits cost less than waking the other threads.
constexpr int64_t kSmallSampling = 1 << 14;
constexpr int64_t kSum = sizeof(double), kMaximum = sizeof(float);

template <typename Body>
void over_rows(int64_t rows, int64_t vocab, Body&& body) {
  if (rows * vocab >= kSmallSampling) return parallel_items(rows, body);
  for (int64_t i = 0; i < rows; ++i) body(i);
}

std::vector<Sampled> sample_whole_rows(const at::Tensor& logits, const SamplerOptions& options,
                                       const std::vector<double>& uniforms) {
  const int64_t rows = logits.size(0), vocab = logits.size(1);
  const float* data = logits.const_data_ptr<float>();
  std::vector<Sampled> sampled(static_cast<size_t>(rows));
  over_rows(rows, vocab, [&](int64_t i) {
    const auto r = static_cast<size_t>(i);
    sampled[r] = sample_token(data + i * vocab, vocab, options, uniforms[r]);
  });
  return sampled;
}

// The rows of a tensor, with the blocks that were brought to the host.
class BlockRows {
 public:
  BlockRows(const at::Tensor& logits, const SamplerOptions& options)
      : logits_(logits),
        num_blocks_((logits.size(1) + kLogitBlock - 1) / kLogitBlock),
        rows_(static_cast<size_t>(logits.size(0))) {
    // Both in one array: they come to the host in one copy.
    const int64_t count = logits.size(0) * num_blocks_;
    const auto sums = [&](const at::Tensor& both) {
      return both.narrow(0, 0, count * kSum).view(at::kDouble);
    };
    const auto maxima = [&](const at::Tensor& both) {
      return both.narrow(0, count * kSum, count * kMaximum).view(at::kFloat);
    };
    const at::Tensor both = at::zeros({count * (kSum + kMaximum)}, logits.options().dtype(at::kByte));
    const std::vector<int64_t> shape{logits.size(0), num_blocks_};
    ops::scan_logits(logits, inverse_temperature(options), maxima(both).view(shape), sums(both).view(shape));
    host_ = both.cpu();
    const float* host_maxima = maxima(host_).const_data_ptr<float>();
    const double* host_sums = sums(host_).const_data_ptr<double>();
    for (int64_t i = 0; i < logits.size(0); ++i) {
      LogitRow& row = rows_[static_cast<size_t>(i)];
      row.vocab = logits.size(1);
      row.maxima = host_maxima + i * num_blocks_;
      row.sums = host_sums + i * num_blocks_;
      row.blocks.resize(static_cast<size_t>(num_blocks_));
    }
  }

  const LogitRow& operator[](size_t row) const { return rows_[row]; }

  void fetch(const std::vector<std::pair<size_t, std::vector<int64_t>>>& wanted) {
    std::vector<int32_t> pairs;
    for (const auto& [row, blocks] : wanted) {
      for (const int64_t block : blocks) {
        pairs.push_back(static_cast<int32_t>(row));
        pairs.push_back(static_cast<int32_t>(block));
      }
    }
    if (pairs.empty()) return;
    const auto count = static_cast<int64_t>(pairs.size() / 2);
    const at::Tensor index = upload(at::tensor(pairs, at::kInt).view({count, 2}), logits_.device());
    const at::Tensor out = at::empty({count, kLogitBlock}, logits_.options());
    ops::gather_blocks(logits_, index, out);
    fetched_.push_back(out.cpu());
    const float* data = fetched_.back().const_data_ptr<float>();
    for (size_t i = 0; i < pairs.size(); i += 2, data += kLogitBlock)
      rows_[static_cast<size_t>(pairs[i])].blocks[static_cast<size_t>(pairs[i + 1])] = data;
  }

  void fetch_rows(const std::vector<size_t>& rows) {
    std::vector<int64_t> all(static_cast<size_t>(num_blocks_));
    for (int64_t b = 0; b < num_blocks_; ++b) all[static_cast<size_t>(b)] = b;
    std::vector<std::pair<size_t, std::vector<int64_t>>> wanted;
    wanted.reserve(rows.size());
    for (const size_t row : rows) wanted.emplace_back(row, all);
    fetch(wanted);
  }

 private:
  at::Tensor logits_;
  int64_t num_blocks_;
  std::vector<LogitRow> rows_;
  at::Tensor host_;  // bytes: sums and maxima of all blocks
  std::vector<at::Tensor> fetched_;
};

}  // namespace

std::vector<Sampled> sample_rows_by_blocks(const at::Tensor& logits, const SamplerOptions& options,
                                           const std::vector<double>& uniforms) {
  const int64_t num_rows = logits.size(0), vocab = logits.size(1);
  BlockRows rows(logits, options);
  std::vector<std::pair<size_t, std::vector<int64_t>>> wanted(static_cast<size_t>(num_rows));
  over_rows(num_rows, vocab, [&](int64_t i) {
    const auto r = static_cast<size_t>(i);
    wanted[r] = {r, blocks_to_read(rows[r], options, uniforms[r])};
  });
  rows.fetch(wanted);
  std::vector<Sampled> sampled(static_cast<size_t>(num_rows));
  std::vector<char> done(sampled.size());
  const auto sample = [&](size_t r) {
    const auto result = sample_row(rows[r], options, uniforms[r]);
    if (!result) return;
    sampled[r] = *result;
    done[r] = 1;
  };
  over_rows(num_rows, vocab, [&](int64_t i) { sample(static_cast<size_t>(i)); });
  std::vector<size_t> missing;
  for (size_t r = 0; r < done.size(); ++r) {
    if (!done[r]) missing.push_back(r);
  }
  rows.fetch_rows(missing);
  over_rows(static_cast<int64_t>(missing.size()), vocab,
            [&](int64_t i) { sample(missing[static_cast<size_t>(i)]); });
  return sampled;
}

std::vector<Sampled> sample_rows(const at::Tensor& logits, const SamplerOptions& options,
                                 const std::vector<double>& uniforms) {
  if (logits.is_cpu()) return sample_whole_rows(logits, options, uniforms);
  if (ops::scans_logits(logits)) return sample_rows_by_blocks(logits, options, uniforms);
  return sample_whole_rows(logits.cpu(), options, uniforms);
}

}  // namespace troupe
