// Collectives made of three that move bytes; sums in the order of the ranks; messages.
#include "comm/communicator.h"

#include <ATen/ATen.h>

#include "base/counting_allocator.h"
#include "base/error.h"
#include "base/range.h"

namespace troupe {

namespace {

// Below this many elements an all-reduce sends everything to everybody: one round trip instead of two.
constexpr int64_t kSmall = 4096;

at::Tensor bytes_of(const at::Tensor& tensor) {
  return tensor.view({-1}).view(at::kByte);
}

// widens: the small one may be float32 where the large one is narrower.
void check(const at::Tensor& large, const at::Tensor& small, int64_t size, const char* name,
           bool widens = false) {
  const bool same =
      large.scalar_type() == small.scalar_type() ||
      (widens && at::isReducedFloatingType(large.scalar_type()) && small.scalar_type() == at::kFloat);
  require(large.is_contiguous() && small.is_contiguous() && same && large.numel() == small.numel() * size,
          ErrorCode::kInternal, "[comm] ", name, " expected contiguous tensors of ", size,
          " * n and n of one dtype, got ", large.numel(), " elements of ", large.scalar_type(), " and ",
          small.numel(), " of ", small.scalar_type());
}

// The sum of `parts` [size, n], in their order; of narrow types in float32.
void sum_into(const at::Tensor& target, const at::Tensor& parts) {
  const bool narrow = at::isReducedFloatingType(target.scalar_type());
  at::Tensor sum = narrow ? parts[0].to(at::kFloat) : target;
  if (!narrow) sum.copy_(parts[0]);
  for (int64_t r = 1; r < parts.size(0); ++r) sum.add_(parts[r]);
  if (narrow) target.copy_(sum);
}

at::Tensor combine(const at::Tensor& parts, ReduceOp op) {
  at::Tensor result = at::empty_like(parts[0]);
  if (op == ReduceOp::kSum) {
    sum_into(result, parts);
    return result;
  }
  result.copy_(parts[0]);
  for (int64_t r = 1; r < parts.size(0); ++r) at::maximum_out(result, result, parts[r]);
  return result;
}

class LocalCommunicator final : public Communicator {
 public:
  LocalCommunicator() : Communicator(0, 1) {}
  void abort(const std::string&) override {}
  std::unique_ptr<Communicator> split(const std::string&, const std::vector<int64_t>&) override {
    return make_local_communicator();
  }

 protected:
  std::function<void()> begin_all_gather(const at::Tensor& output, const at::Tensor& input) override {
    output.copy_(input);
    return {};
  }
  std::function<void()> begin_all_to_all(const at::Tensor& output, const at::Tensor& input) override {
    output.copy_(input);
    return {};
  }
  void move_broadcast(const at::Tensor&, int64_t) override {}
  void move_send(const at::Tensor&, const at::Tensor&, int64_t) override {}  // there is nobody else
  void move_recv(const at::Tensor&, const at::Tensor&, int64_t) override {}
};

}  // namespace

void Pending::wait() {
  const Range range("wait for collective");
  if (wait_) wait_();
  wait_ = nullptr;
  comm_.log_.finish(sequence_);
}

void Communicator::all_gather(const at::Tensor& output, const at::Tensor& input,
                              const CollectiveLabel& label) {
  all_gather_async(output, input, label).wait();
}

Pending Communicator::all_gather_async(const at::Tensor& output, const at::Tensor& input,
                                       const CollectiveLabel& label) {
  check(output, input, size_, "all_gather");
  return gather_as("all_gather", static_cast<int64_t>(input.nbytes()) * (size_ - 1), output, input, label);
}

Pending Communicator::gather_as(const char* name, int64_t bytes, const at::Tensor& output,
                                const at::Tensor& input, const CollectiveLabel& label) {
  const Range range(name, label.subject);
  const int64_t sequence = log_.begin(name, label, bytes);
  return {*this, sequence, begin_all_gather(bytes_of(output), bytes_of(input))};
}

void Communicator::all_to_all(const at::Tensor& output, const at::Tensor& input,
                              const CollectiveLabel& label) {
  all_to_all_async(output, input, label).wait();
}

Pending Communicator::all_to_all_async(const at::Tensor& output, const at::Tensor& input,
                                       const CollectiveLabel& label) {
  check(output, input, 1, "all_to_all");
  require(input.numel() % size_ == 0, ErrorCode::kInternal, "[comm] all_to_all of ", input.numel(),
          " elements over ", size_, " ranks");
  const Range range("all_to_all", label.subject);
  const int64_t sequence =
      log_.begin("all_to_all", label, static_cast<int64_t>(input.nbytes()) / size_ * (size_ - 1));
  return {*this, sequence, begin_all_to_all(bytes_of(output), bytes_of(input))};
}

void Communicator::reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                                  const CollectiveLabel& label) {
  reduce_scatter_async(output, input, label).wait();
}

Pending Communicator::reduce_scatter_async(const at::Tensor& output, const at::Tensor& input,
                                           const CollectiveLabel& label) {
  check(input, output, size_, "reduce_scatter", /*widens=*/true);
  const Range range("reduce_scatter", label.subject);
  const int64_t sequence =
      log_.begin("reduce_scatter", label, static_cast<int64_t>(input.nbytes()) / size_ * (size_ - 1));
  const AllocateFor received(MemoryPart::kGathered);
  const at::Tensor parts = at::empty_like(input);
  std::function<void()> moved = begin_all_to_all(bytes_of(parts), bytes_of(input));
  return {*this, sequence, [this, output, parts, moved = std::move(moved)] {
            if (moved) moved();
            sum_into(output.view({-1}), parts.view({size_, output.numel()}));
          }};
}

void Communicator::all_reduce(const at::Tensor& tensor, ReduceOp op, const CollectiveLabel& label) {
  require(tensor.is_contiguous(), ErrorCode::kInternal, "[comm] all_reduce expected a contiguous tensor");
  if (size_ == 1) return;
  const at::Tensor flat = tensor.view({-1});
  const int64_t count = flat.numel();
  if (count == 0) return barrier(label);
  if (count <= kSmall || op != ReduceOp::kSum) {
    const at::Tensor parts = at::empty({size_, count}, flat.options());
    const int64_t bytes = static_cast<int64_t>(flat.nbytes()) * (size_ - 1);
    gather_as("all_reduce", bytes, parts, flat, label).wait();
    flat.copy_(combine(parts, op));
    return;
  }
  const int64_t share = (count + size_ - 1) / size_;
  const bool even = share * size_ == count;
  const at::Tensor padded = even ? flat : at::zeros({share * size_}, flat.options());
  if (!even) padded.narrow(0, 0, count).copy_(flat);
  const at::Tensor own = at::empty({share}, flat.options());
  reduce_scatter(own, padded, label);
  all_gather(padded, own, label);
  if (!even) flat.copy_(padded.narrow(0, 0, count));
}

void Communicator::broadcast(const at::Tensor& tensor, int64_t root, const CollectiveLabel& label) {
  require(tensor.is_contiguous() && root >= 0 && root < size_, ErrorCode::kInternal,
          "[comm] broadcast expected a contiguous tensor and a rank below ", size_, ", got ", root);
  std::optional<Range> range;
  if (size_ > 1) range.emplace("broadcast", label.subject);
  const int64_t bytes = root == rank_ ? static_cast<int64_t>(tensor.nbytes()) * (size_ - 1) : 0;
  const int64_t sequence = log_.begin("broadcast", label, bytes);
  move_broadcast(bytes_of(tensor), root);
  log_.finish(sequence);
}

void Communicator::barrier(const CollectiveLabel& label) {
  gather_as("barrier", size_ - 1, at::empty({size_}, at::kByte), at::zeros({1}, at::kByte), label).wait();
}

void Communicator::send(const at::Tensor& tensor, int64_t dst, const CollectiveLabel& label) {
  const int64_t bytes = kMessageHeader + static_cast<int64_t>(tensor.nbytes());
  message({.name = "send", .label = label, .bytes = bytes, .way = "to"}, tensor, dst, messages_to_,
          &Communicator::move_send);
}

void Communicator::recv(const at::Tensor& tensor, int64_t src, const CollectiveLabel& label) {
  message({.name = "recv", .label = label, .way = "from"}, tensor, src, messages_from_,
          &Communicator::move_recv);
}

void Communicator::message(CollectiveLog::Entry entry, const at::Tensor& tensor, int64_t peer,
                           std::vector<int64_t>& counts, Move move) {
  require(peer >= 0 && peer < size_ && peer != rank_, ErrorCode::kInvalidArgument, "[comm] ", entry.name,
          " of ", entry.label.subject, " expected another rank than ", rank_, " among the ", size_,
          " of the group, got ", peer, size_ == 1 ? "; a group of one has nobody to talk to" : "");
  require(tensor.is_contiguous(), ErrorCode::kInternal, "[comm] ", entry.name, " of ", entry.label.subject,
          " expected a contiguous tensor, got strides ", tensor.strides());
  const Range range(entry.name, entry.label.subject);
  entry.number = ++counts[static_cast<size_t>(peer)];
  entry.peer = known_as(peer);
  const int64_t sequence = log_.record(std::move(entry));
  const at::Tensor header = at::empty({2}, at::kLong);
  header.data_ptr<int64_t>()[0] = static_cast<int64_t>(tensor.scalar_type());
  header.data_ptr<int64_t>()[1] = tensor.numel();
  (this->*move)(bytes_of(header), bytes_of(tensor), peer);
  log_.finish(sequence);
}

std::unique_ptr<Communicator> make_local_communicator() {
  return std::make_unique<LocalCommunicator>();
}

std::unique_ptr<Communicator> make_communicator(const CommOptions& options) {
  require(options.size >= 1 && options.rank >= 0 && options.rank < options.size, ErrorCode::kInvalidArgument,
          "[comm] expected a rank below the group's size, got rank ", options.rank, " of ", options.size);
  require(options.timeout.count() > 0, ErrorCode::kInvalidArgument, "[comm] expected a time-out > 0 ms, got ",
          options.timeout.count());
  if (options.size == 1) return make_local_communicator();
  if (options.backend == "gloo") return make_gloo_communicator(options);
  if (options.backend == "nccl") return make_nccl_communicator(options);
  fail(ErrorCode::kInvalidArgument, "[comm] expected backend gloo or nccl, got ", options.backend);
}

at::Tensor combine_parts(Communicator& comm, const at::Tensor& own, const CollectiveLabel& label) {
  at::Tensor whole = own.clone();
  // As integers: a sum with zeros that keeps every bit of a float.
  comm.all_reduce(whole.view(at::kInt), ReduceOp::kSum, label);
  return whole;
}

}  // namespace troupe
