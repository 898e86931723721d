// Exchange of row sums over ranks that share a vocabulary.
#include "kernels/vocabulary_shard.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "base/error.h"
#include "kernels/row_sums.h"

namespace troupe::ops {

namespace {

// A struct of int64 of every rank.
template <typename Record>
std::vector<Record> gather_records(Communicator& comm, Record own, const CollectiveLabel& label) {
  static_assert(sizeof(Record) % sizeof(int64_t) == 0);
  const auto count = static_cast<int64_t>(sizeof(Record) / sizeof(int64_t));
  std::vector<Record> all(static_cast<size_t>(comm.size()));
  const auto view = [&](void* data, int64_t ranks) {
    return at::from_blob(data, {ranks * count}, at::TensorOptions(at::kLong));
  };
  comm.all_gather(view(all.data(), comm.size()), view(&own, 1), label);
  return all;
}

struct Range {
  int64_t begin, end, vocab;
};

std::string type_name(int64_t type) {
  return c10::toString(static_cast<at::ScalarType>(type));
}

}  // namespace

// Of a call of linear_log_prob on one rank.
struct VocabularyShard::Inputs {
  int64_t tokens, hidden_size, hidden_type;
  int64_t missing_rows, weight_columns, weight_type;  // of the weight; rows beyond the shard's are < 0
  int64_t targets, targets_type;
  int64_t stray, stray_target;  // the first row whose target is known to be outside of the vocabulary, or -1
};

VocabularyShard::VocabularyShard(Communicator& comm, std::vector<int64_t> offsets, InputChecks checks)
    : comm_(&comm), offsets_(std::move(offsets)), checks_(checks) {
  require(offsets_.size() == static_cast<size_t>(comm.size() + 1) && offsets_.front() == 0 &&
              offsets_.back() > 0 && std::is_sorted(offsets_.begin(), offsets_.end()),
          ErrorCode::kInvalidArgument, "[linear_log_prob] expected ", comm.size() + 1,
          " offsets into the vocabulary that ascend from 0, got ", at::IntArrayRef(offsets_));
}

VocabularyShard VocabularyShard::agree(Communicator& comm, int64_t vocab, int64_t begin, int64_t end) {
  const std::vector<Range> ranges = gather_records(comm, Range{begin, end, vocab}, {"start", "vocabulary"});
  std::vector<int64_t> offsets{0};
  for (int64_t r = 0; r < comm.size(); ++r) {
    const Range& range = ranges[static_cast<size_t>(r)];
    require(range.vocab == ranges[0].vocab, ErrorCode::kInvalidArgument,
            "[linear_log_prob] expected one vocabulary on all ranks, got ", ranges[0].vocab,
            " rows on rank 0 and ", range.vocab, " on rank ", r);
    require(range.begin == offsets.back() && range.end >= range.begin, ErrorCode::kInvalidArgument,
            "[linear_log_prob] expected rank ", r, " to hold rows of the vocabulary from ", offsets.back(),
            " on, where the rank before it ends, got [", range.begin, ", ", range.end, ")");
    offsets.push_back(range.end);
  }
  require(offsets.back() == ranges[0].vocab, ErrorCode::kInvalidArgument,
          "[linear_log_prob] expected the last rank to hold rows up to the end of the vocabulary, ",
          ranges[0].vocab, ", got ", offsets.back());
  return {comm, std::move(offsets)};
}

int64_t VocabularyShard::most_rows() const {
  int64_t most = 0;
  for (int64_t r = 0; r < size(); ++r) most = std::max(most, rows_of(r));
  return most;
}

void VocabularyShard::check(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets,
                            const char* phase) const {
  Inputs own{};
  own.tokens = hidden.size(0);
  own.hidden_size = hidden.size(1);
  own.hidden_type = static_cast<int64_t>(hidden.scalar_type());
  own.missing_rows = rows() - weight.size(0);
  own.weight_columns = weight.size(1);
  own.weight_type = static_cast<int64_t>(weight.scalar_type());
  own.targets = targets.numel();
  own.targets_type = static_cast<int64_t>(targets.scalar_type());
  own.stray = -1;
  if (checks_ == InputChecks::kOwnShapes) return check_rank(own, own, comm_->rank());

  const at::Tensor stray = at::logical_or(targets.lt(0), targets.ge(vocab())).nonzero().view({-1});
  if (stray.numel() > 0) {
    own.stray = stray[0].item<int64_t>();
    own.stray_target = targets[own.stray].item<int64_t>();
  }
  const std::vector<Inputs> all = gather_records(*comm_, own, {phase, "head inputs"});
  for (int64_t r = 0; r < size(); ++r) check_rank(all[static_cast<size_t>(r)], all[0], r);
}

void VocabularyShard::check_rank(const Inputs& in, const Inputs& first, int64_t rank) const {
  require(
      in.tokens == first.tokens && in.hidden_size == first.hidden_size && in.hidden_type == first.hidden_type,
      ErrorCode::kInternal, "[linear_log_prob] expected the same hidden states on all ranks, got [",
      first.tokens, ", ", first.hidden_size, "] ", type_name(first.hidden_type), " on rank 0 and [",
      in.tokens, ", ", in.hidden_size, "] ", type_name(in.hidden_type), " on rank ", rank);
  require(in.missing_rows == 0 && in.weight_columns == in.hidden_size && in.weight_type == first.weight_type,
          ErrorCode::kInternal, "[linear_log_prob] expected a weight of [", rows_of(rank), ", ",
          in.hidden_size, "] ", type_name(first.weight_type), " on rank ", rank, ", got [",
          rows_of(rank) - in.missing_rows, ", ", in.weight_columns, "] ", type_name(in.weight_type));
  require(in.targets == in.tokens && in.targets_type == static_cast<int64_t>(at::kInt), ErrorCode::kInternal,
          "[linear_log_prob] expected ", in.tokens, " targets of Int on rank ", rank, ", got ", in.targets,
          " of ", type_name(in.targets_type));
  require(in.stray < 0, ErrorCode::kInvalidArgument, "[linear_log_prob] expected targets in [0, ", vocab(),
          "), the whole vocabulary, got ", in.stray_target, " in row ", in.stray, " on rank ", rank);
}

at::Tensor VocabularyShard::gather(const at::Tensor& own, const char* phase, const char* what) const {
  at::Tensor all = at::empty({size(), own.size(0), own.size(1)}, own.options());
  comm_->all_gather(all, own, {phase, what});
  return all;
}

void VocabularyShard::sum(const at::Tensor& d_hidden) const {
  comm_->all_reduce(d_hidden, ReduceOp::kSum, {"backward", "hidden states of the head"});
}

}  // namespace troupe::ops
