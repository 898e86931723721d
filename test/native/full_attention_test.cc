#include "kernels/full_attention.h"

#include <ATen/ATen.h>

#include "check.h"

using namespace troupe;

namespace {

// More than a block of queries, rows of nobody, a segment of one row.
const ops::Segments kSegments{{0, 300, -1}, {320, 351, -1}, {352, 353, -1}};
constexpr int64_t kRows = 360;
const ops::AttentionSpec kSpec{
    .num_heads = 3, .num_kv_heads = 3, .head_dim = 8, .scale = 0.3, .causal = false};

at::Tensor random(int64_t columns, uint64_t seed) {
  return at::randn({kRows, columns}, at::make_generator<at::CPUGeneratorImpl>(seed));
}

// softmax(scale q k^T) v in float64, through which autograd goes.
at::Tensor reference(const at::Tensor& qkv) {
  std::vector<at::Tensor> outputs;
  int64_t end = 0;
  const auto zeros = [&](int64_t until) {
    if (until > end) outputs.push_back(at::zeros({until - end, 24}, at::kDouble));
  };
  for (const ops::Segment& segment : kSegments) {
    zeros(segment.begin);
    end = segment.end;
    const at::Tensor rows =
        qkv.narrow(0, segment.begin, segment.size()).view({-1, 3, 3, 8}).permute({1, 2, 0, 3});
    const at::Tensor weights = at::softmax(rows[0].matmul(rows[1].transpose(1, 2)) * kSpec.scale, -1);
    outputs.push_back(weights.matmul(rows[2]).transpose(0, 1).reshape({-1, 24}));
  }
  zeros(kRows);
  return at::cat(outputs);
}

double difference(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

}  // namespace

TEST(a_row_sees_all_of_its_segment) {
  const at::Tensor qkv = random(72, 1);
  const at::Tensor out = at::full({kRows, 24}, 7.0), lse = at::empty({3, kRows});
  ops::full_attention_forward(kSpec, qkv, kSegments, out, lse);
  CHECK(difference(out, reference(qkv.to(at::kDouble))) < 1e-5);
}

TEST(gradients_are_those_of_autograd) {
  const at::Tensor qkv = random(72, 2), dout = random(24, 3);
  const at::Tensor out = at::empty({kRows, 24}), lse = at::empty({3, kRows}), dqkv = at::empty_like(qkv);
  ops::full_attention_forward(kSpec, qkv, kSegments, out, lse);
  ops::full_attention_backward(kSpec, qkv, out, lse, dout, kSegments, dqkv);
  at::Tensor x = qkv.to(at::kDouble).set_requires_grad(true);
  (reference(x) * dout.to(at::kDouble)).sum().backward();
  CHECK(difference(dqkv, x.grad()) < 1e-4);
}

TEST(bits_depend_neither_on_other_segments_nor_on_threads) {
  const at::Tensor qkv = random(72, 4), dout = random(24, 5);
  const auto both = [&](const ops::Segments& segments, const at::Tensor& in, const at::Tensor& d) {
    const at::Tensor out = at::empty({in.size(0), 24}), lse = at::empty({3, in.size(0)}),
                     dqkv = at::empty_like(in);
    ops::full_attention_forward(kSpec, in, segments, out, lse);
    ops::full_attention_backward(kSpec, in, out, lse, d, segments, dqkv);
    return at::cat({out, dqkv}, 1);
  };
  const at::Tensor all = both(kSegments, qkv, dout);
  const auto part = [](const at::Tensor& t) { return t.narrow(0, 320, 31); };
  CHECK(at::equal(part(all), both({{0, 31, -1}}, part(qkv).contiguous(), part(dout).contiguous())));
  const int threads = at::get_num_threads();
  at::set_num_threads(threads == 1 ? 2 : 1);
  CHECK(at::equal(all, both(kSegments, qkv, dout)));
  at::set_num_threads(threads);
}

TEST_MAIN()
