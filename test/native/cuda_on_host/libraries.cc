// cuBLAS and LibTorch's flash attention on the host's memory, by their documentation.
#include <ATen/ATen.h>
#include <ATen/cuda/CUDAContext.h>
#include <torch/library.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

namespace {

// Columns of `rows` adjacent numbers, `leading` apart.
at::Tensor columns(const void* data, cudaDataType_t type, int64_t rows, int64_t cols, int64_t leading) {
  return at::from_blob(const_cast<void*>(data), {rows, cols}, {1, leading},
                       type == CUDA_R_32F ? at::kFloat : at::kBFloat16);
}

at::Tensor operand(const void* data, cudaDataType_t type, cublasOperation_t op, int64_t rows, int64_t cols,
                   int64_t leading) {
  if (op == CUBLAS_OP_N) return columns(data, type, rows, cols, leading);
  return columns(data, type, cols, rows, leading).t();
}

}  // namespace

cublasStatus_t cublasGemmEx(cublasHandle_t, cublasOperation_t op_a, cublasOperation_t op_b, int m, int n,
                            int k, const void* alpha, const void* a, cudaDataType_t type_a, int lda,
                            const void* b, cudaDataType_t type_b, int ldb, const void* beta, void* c,
                            cudaDataType_t type_c, int ldc, cublasComputeType_t, cublasGemmAlgo_t) {
  const int rows_a = op_a == CUBLAS_OP_N ? m : k, rows_b = op_b == CUBLAS_OP_N ? k : n;
  if (type_a != type_b || type_c != CUDA_R_32F || m < 0 || n < 0 || k < 0 || lda < std::max(1, rows_a) ||
      ldb < std::max(1, rows_b) || ldc < std::max(1, m))
    return CUBLAS_STATUS_INVALID_VALUE;
  const float scale = *static_cast<const float*>(alpha), keep = *static_cast<const float*>(beta);
  const at::Tensor product = at::mm(operand(a, type_a, op_a, m, k, lda).to(at::kFloat),
                                    operand(b, type_b, op_b, k, n, ldb).to(at::kFloat));
  const at::Tensor out = columns(c, type_c, m, n, ldc);
  out.copy_(keep == 0 ? scale * product : scale * product + keep * out);
  return CUBLAS_STATUS_SUCCESS;
}

namespace {

at::Tensor here(const at::Tensor& x) {
  return x.to(at::kCPU, at::kDouble);
}

// One sequence of a packed call, its queries being the last of its keys.
struct Sequence {
  int64_t query, queries, key, keys;

  // [queries, keys]: 0, or -infinity where a query does not look.
  at::Tensor mask(std::optional<int64_t> left) const {
    const at::Tensor at_query = at::arange(queries).view({-1, 1}) + (keys - queries),
                     at_key = at::arange(keys);
    at::Tensor hidden = at_key > at_query;
    if (left && *left >= 0) hidden = hidden.logical_or(at_key < at_query - *left);
    return at::zeros({queries, keys}, at::kDouble)
        .masked_fill_(hidden, -std::numeric_limits<float>::infinity());
  }
};

// Each from one offset to the next.
std::vector<Sequence> sequences_of(const at::Tensor& query_offsets, const at::Tensor& key_offsets) {
  const at::Tensor queries = query_offsets.cpu(), keys = key_offsets.cpu();
  TORCH_CHECK(
      queries.scalar_type() == at::kInt && keys.scalar_type() == at::kInt && queries.numel() == keys.numel(),
      "offsets of sequences must be int32, as many of queries as of keys");
  const auto *q = queries.const_data_ptr<int32_t>(), *k = keys.const_data_ptr<int32_t>();
  std::vector<Sequence> all;
  for (int64_t i = 0; i + 1 < queries.numel(); ++i)
    all.push_back({q[i], q[i + 1] - q[i], k[i], k[i + 1] - k[i]});
  return all;
}

// Heads first, each key head as often as queries ask it.
struct Operands {
  at::Tensor q, k, v;  // [heads, queries or keys, D]

  Operands(const Sequence& s, const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values) {
    const int64_t groups = queries.size(1) / keys.size(1);
    const auto part = [](const at::Tensor& x, int64_t first, int64_t count) {
      return here(x.narrow(0, first, count)).transpose(0, 1);
    };
    q = part(queries, s.query, s.queries);
    k = part(keys, s.key, s.keys).repeat_interleave(groups, 0);
    v = part(values, s.key, s.keys).repeat_interleave(groups, 0);
  }
};

// The arguments of a call by their names, which versions of LibTorch share more than their places.
class Call {
 public:
  Call(const c10::OperatorHandle& op, const torch::jit::Stack& stack) : schema_(op.schema()), stack_(stack) {
    TORCH_CHECK(of("is_causal").toBool() && of("dropout_p").toDouble() == 0 && !of("scale").isNone() &&
                    of("window_size_right").toInt() == 0,
                "only what kernels/cuda asks for");
  }

  at::Tensor tensor(const char* name) const { return of(name).toTensor(); }
  double scale() const { return of("scale").toDouble(); }
  std::optional<int64_t> left() const { return of("window_size_left").toOptional<int64_t>(); }
  std::vector<Sequence> sequences() const { return sequences_of(tensor("cum_seq_q"), tensor("cum_seq_k")); }

 private:
  const c10::IValue& of(const char* name) const {
    const auto at = schema_.argumentIndexWithName(name);
    TORCH_CHECK(at, schema_, " has no argument ", name);
    return stack_[stack_.size() - schema_.arguments().size() + static_cast<size_t>(*at)];
  }

  const c10::FunctionSchema& schema_;
  const torch::jit::Stack& stack_;
};

void answer(const c10::OperatorHandle& op, torch::jit::Stack* stack, std::vector<at::Tensor> results) {
  torch::jit::drop(*stack, op.schema().arguments().size());
  results.resize(op.schema().returns().size());
  for (at::Tensor& result : results) stack->emplace_back(std::move(result));
}

void flash_forward(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const Call call(op, *stack);
  const at::Tensor q = call.tensor("query"), k = call.tensor("key"), v = call.tensor("value");
  const at::Tensor out = at::empty_like(q);
  const at::Tensor lse = at::empty({q.size(1), q.size(0)}, q.options().dtype(at::kFloat));
  for (const Sequence& s : call.sequences()) {
    const Operands x(s, q, k, v);
    const at::Tensor scores = at::matmul(x.q, x.k.transpose(1, 2)) * call.scale() + s.mask(call.left());
    lse.narrow(1, s.query, s.queries).copy_(scores.logsumexp(-1));
    out.narrow(0, s.query, s.queries).copy_(at::matmul(scores.softmax(-1), x.v).transpose(0, 1));
  }
  answer(op, stack, {out, lse});
}

void flash_backward(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const Call call(op, *stack);
  const at::Tensor q = call.tensor("query"), k = call.tensor("key"), v = call.tensor("value");
  const at::Tensor lse = call.tensor("logsumexp"), out = call.tensor("out"), dout = call.tensor("grad_out");
  const at::Tensor dq = at::empty_like(q), dk = at::zeros_like(k), dv = at::zeros_like(v);
  const int64_t groups = q.size(1) / k.size(1);
  for (const Sequence& s : call.sequences()) {
    const Operands x(s, q, k, v);
    const at::Tensor scores = at::matmul(x.q, x.k.transpose(1, 2)) * call.scale() + s.mask(call.left());
    const at::Tensor weights = (scores - here(lse.narrow(1, s.query, s.queries)).unsqueeze(-1)).exp();
    const auto by_head = [&](const at::Tensor& t) {
      return here(t.narrow(0, s.query, s.queries)).transpose(0, 1);
    };
    const at::Tensor d = by_head(dout), sums = (d * by_head(out)).sum(-1, /*keepdim=*/true);
    const at::Tensor dscores = weights * (at::matmul(d, x.v.transpose(1, 2)) - sums) * call.scale();
    const auto of_keys = [&](const at::Tensor& gradient) {  // [heads, keys, D] -> [keys, key heads, D]
      return gradient.unflatten(0, {k.size(1), groups}).sum(1).transpose(0, 1);
    };
    dq.narrow(0, s.query, s.queries).copy_(at::matmul(dscores, x.k).transpose(0, 1));
    dk.narrow(0, s.key, s.keys).copy_(of_keys(at::matmul(dscores.transpose(1, 2), x.q)));
    dv.narrow(0, s.key, s.keys).copy_(of_keys(at::matmul(weights.transpose(1, 2), d)));
  }
  answer(op, stack, {dq, dk, dv});
}

TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("_flash_attention_forward", torch::CppFunction::makeFromBoxedFunction<&flash_forward>());
  library.impl("_flash_attention_backward", torch::CppFunction::makeFromBoxedFunction<&flash_backward>());
}

}  // namespace
