// All-to-all exchanges between rows and heads.
#include "ulysses/sequence_group.h"

#include <ATen/ATen.h>

#include <numeric>

#include "base/error.h"
#include "comm/row_exchange.h"

namespace troupe {

namespace {

std::unique_ptr<Communicator> neighbours(Communicator& comm, int64_t size, int64_t num_heads) {
  require(size > 0 && comm.size() % size == 0, ErrorCode::kInvalidArgument,
          "[ulysses] expected a number of ranks per sequence that divides ", comm.size(),
          comm.size() == 1 ? " rank, got " : " ranks, got ", size);
  require(num_heads % size == 0, ErrorCode::kInvalidArgument,
          "[ulysses] expected a number of ranks per sequence that divides the ", num_heads,
          " attention heads of the model, got ", size);
  const int64_t first = comm.rank() / size * size;
  std::vector<int64_t> ranks(static_cast<size_t>(size));
  std::iota(ranks.begin(), ranks.end(), first);
  // Every rank has the same number for it, and engines are made in the same order on all of them.
  std::string name =
      "engine" + std::to_string(comm.log().collectives()) + "/sequence" + std::to_string(first);
  std::unique_ptr<Communicator> group = comm.split(name, ranks);
  comm.barrier({"start", "sequence groups"});  // the next engine's number is another one
  return group;
}

// Rows of all heads and of one rank's.
struct Columns {
  int64_t q, kv, own_q, own_kv;  // elements
  int64_t copies;                // of each key head

  Columns(const ops::AttentionSpec& spec, int64_t ranks)
      : q(spec.num_heads * spec.head_dim),
        kv(spec.num_kv_heads * spec.head_dim),
        own_q(q / ranks),
        own_kv(std::lcm(spec.num_kv_heads, ranks) / ranks * spec.head_dim),
        copies(std::lcm(spec.num_kv_heads, ranks) / spec.num_kv_heads) {}
  int64_t all() const { return q + 2 * kv; }
  int64_t own() const { return own_q + 2 * own_kv; }
};

// [n, S * c] -> [S, n, c]
at::Tensor by_rank(const at::Tensor& columns, int64_t ranks) {
  return columns.reshape({columns.size(0), ranks, columns.size(1) / ranks}).transpose(0, 1);
}

// [S, n, c] -> [n, S * c]
at::Tensor side_by_side(const at::Tensor& parts) {
  return parts.transpose(0, 1).reshape({parts.size(1), parts.size(0) * parts.size(2)});
}

}  // namespace

SequenceGroup::SequenceGroup(Communicator& comm, int64_t size, int64_t num_heads)
    : comm_(neighbours(comm, size, num_heads)) {}

ops::AttentionSpec SequenceGroup::own_heads(const ops::AttentionSpec& spec) const {
  ops::AttentionSpec own = spec;
  own.num_heads = spec.num_heads / size();
  own.num_kv_heads = std::lcm(spec.num_kv_heads, size()) / size();
  own.shape_groups = spec.num_heads / spec.num_kv_heads;
  if (spec.sinks.defined()) own.sinks = spec.sinks.narrow(0, rank() * own.num_heads, own.num_heads);
  return own;
}

at::Tensor SequenceGroup::exchange(const at::Tensor& input, const CollectiveLabel& label) const {
  at::Tensor output = at::empty_like(input);
  comm_->all_to_all(output, input, label);
  return output;
}

at::Tensor SequenceGroup::gather_rows(const ops::AttentionSpec& spec, const at::Tensor& qkv,
                                      const CollectiveLabel& label) const {
  const Columns columns(spec, size());
  const int64_t rows = qkv.size(0);
  const at::Tensor send = at::empty({size(), rows, columns.own()}, qkv.options());
  send.narrow(2, 0, columns.own_q).copy_(by_rank(qkv.narrow(1, 0, columns.q), size()));
  for (int64_t part = 0; part < 2; ++part) {  // k, v
    const at::Tensor heads = qkv.narrow(1, columns.q + part * columns.kv, columns.kv)
                                 .view({rows, spec.num_kv_heads, 1, spec.head_dim})
                                 .expand({rows, spec.num_kv_heads, columns.copies, spec.head_dim})
                                 .reshape({rows, columns.own_kv * size()});
    send.narrow(2, columns.own_q + part * columns.own_kv, columns.own_kv).copy_(by_rank(heads, size()));
  }
  return exchange(send, label).view({size() * rows, columns.own()});
}

at::Tensor SequenceGroup::gather_heads(const ops::AttentionSpec& spec, const at::Tensor& qkv,
                                       const CollectiveLabel& label) const {
  const Columns columns(spec, size());
  const int64_t rows = qkv.size(0) / size();
  const at::Tensor parts = exchange(qkv, label).view({size(), rows, columns.own()});
  at::Tensor all = at::empty({rows, columns.all()}, qkv.options());
  all.narrow(1, 0, columns.q).copy_(side_by_side(parts.narrow(2, 0, columns.own_q)));
  for (int64_t part = 0; part < 2; ++part) {
    at::Tensor heads = side_by_side(parts.narrow(2, columns.own_q + part * columns.own_kv, columns.own_kv));
    if (columns.copies > 1) {
      heads = heads.view({rows, spec.num_kv_heads, columns.copies, spec.head_dim})
                  .sum(2, false, at::kFloat)
                  .view({rows, columns.kv});
    }
    all.narrow(1, columns.q + part * columns.kv, columns.kv).copy_(heads);
  }
  return all;
}

at::Tensor SequenceGroup::gather_query_rows(const at::Tensor& heads, const CollectiveLabel& label) const {
  return RowExchange(*comm_).gather_rows(heads, {heads.size(1)}, label);
}

at::Tensor SequenceGroup::gather_query_heads(const at::Tensor& rows, const CollectiveLabel& label) const {
  return RowExchange(*comm_).gather_columns(rows, {rows.size(1) * size()}, label);
}

}  // namespace troupe
