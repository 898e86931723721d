#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "check.h"
#include "kernels/device_ops.h"
#include "kernels/gated_delta_reference.h"
#include "kernels/gated_norm.h"
#include "kernels/mamba.h"

// Kernels and LibTorch reference of a layer of linear attention, against float64 autograd of what is written
// down.
namespace {

using namespace troupe;
using ops::DeltaGates;
using ops::DeltaRows;
using ops::DeltaSpec;
using ops::Segments;

// Two key heads for four value heads, whose columns are more than one block and no whole number of them; rows
// that belong to no sequence behind 83 of two families, of which one has several branches, one of no rows.
const DeltaSpec kSpec{2, 4, 6, 37};
constexpr int64_t kRows = 87;
const Segments kSegments = {{0, 2, -1}, {2, 40, 0}, {40, 41, 0}, {41, 41, 0}, {41, 78, -1}, {78, 83, 4}};
constexpr int64_t kReal = 83;
// The same without erasure.
const DeltaSpec kMamba{2, 4, 6, 37, false};

at::Tensor wide(const at::Tensor& x) {
  return x.to(at::kDouble).detach();
}
at::Tensor leaf(const at::Tensor& x) {
  return wide(x).clone().requires_grad_();
}

void check_near(const at::Tensor& got, const at::Tensor& expected, double limit, const std::string& what) {
  const double scale = std::max(1.0, expected.abs().max().item<double>());
  const double error = (wide(got) - expected).abs().max().item<double>() / scale;
  test::report(error <= limit, __FILE__, __LINE__,
               what + ": error " + std::to_string(error / limit) + " x the limit");
}

// The rows of each sequence, in order: those of its prefix, and its own.
std::vector<std::vector<int64_t>> sequences() {
  std::vector<std::vector<int64_t>> all;
  for (const ops::Segment& segment : kSegments) {
    std::vector<int64_t> rows;
    if (segment.prefix >= 0) rows = all[static_cast<size_t>(segment.prefix)];
    for (int64_t row = segment.begin; row < segment.end; ++row) rows.push_back(row);
    all.push_back(std::move(rows));
  }
  return all;
}

// Every sequence from its first row on; rows that several have are those of the last one.
at::Tensor by_sequence(const std::function<at::Tensor(const std::vector<int64_t>&)>& rows_of, int64_t cols) {
  std::vector<at::Tensor> rows(kRows, at::zeros({cols}, at::kDouble));
  for (const std::vector<int64_t>& sequence : sequences()) {
    const at::Tensor got = rows_of(sequence);
    for (size_t i = 0; i < sequence.size(); ++i)
      rows[static_cast<size_t>(sequence[i])] = got[static_cast<int64_t>(i)];
  }
  return at::stack(rows);
}

at::Tensor rule(const DeltaSpec& spec, const at::Tensor& x, const at::Tensor& decay, const at::Tensor& beta) {
  return by_sequence(
      [&](const std::vector<int64_t>& rows) {
        at::Tensor state = at::zeros({spec.value_heads, spec.key_dim, spec.value_dim}, at::kDouble);
        std::vector<at::Tensor> out;
        for (const int64_t r : rows) {
          const int64_t keys = spec.key_heads * spec.key_dim, groups = spec.value_heads / spec.key_heads;
          const int64_t values = spec.value_heads * spec.value_dim;
          const auto of = [&](int64_t begin, int64_t heads, int64_t dim) {
            return x[r].narrow(0, begin, heads * dim).view({heads, dim});
          };
          const at::Tensor q =
              of(spec.erases ? 0 : values + keys, spec.key_heads, spec.key_dim).repeat_interleave(groups, 0);
          const at::Tensor k =
              of(spec.erases ? keys : values, spec.key_heads, spec.key_dim).repeat_interleave(groups, 0);
          const at::Tensor v = of(spec.erases ? 2 * keys : 0, spec.value_heads, spec.value_dim);
          state = state * decay[r].view({-1, 1, 1});
          const at::Tensor memory = spec.erases ? at::einsum("hij,hi->hj", {state, k}) : at::zeros_like(v);
          state = state + at::einsum("hi,hj->hij", {k, beta[r].unsqueeze(1) * (v - memory)});
          out.push_back(at::einsum("hij,hi->hj", {state, q}).flatten());
        }
        if (out.empty()) return at::zeros({0, spec.value_heads * spec.value_dim}, at::kDouble);
        return at::stack(out);
      },
      spec.value_heads * spec.value_dim);
}

DeltaRows some_rows(const DeltaSpec& spec, at::ScalarType type = at::kFloat) {
  at::manual_seed(3);
  DeltaRows rows = DeltaRows::make(spec, kRows, at::TensorOptions(type));
  rows.x.copy_(at::randn({kRows, spec.width()}).mul_(0.5));
  rows.decay.copy_(at::rand({kRows, spec.value_heads}).mul_(0.6).add_(0.4));
  rows.beta.copy_(at::rand({kRows, spec.value_heads}));
  return rows;
}

template <typename Body>
void for_each_type(const Body& body) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kDouble}) body(type);
}

double limit(at::ScalarType type) {
  return type == at::kDouble ? 1e-12 : type == at::kFloat ? 1e-5 : 2e-2;
}

void check_rule(const DeltaSpec& spec) {
  // The kernels, and the reference in double precision.
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    const DeltaRows rows = some_rows(spec, type);
    const at::Tensor x = leaf(rows.x), log_decay = leaf(rows.decay.log()), beta = leaf(rows.beta);
    const at::Tensor expected = rule(spec, x, log_decay.exp(), beta);
    const at::Tensor dout = at::randn({kRows, spec.value_heads * spec.value_dim}).to(type);
    dout.narrow(0, kReal, kRows - kReal).zero_();
    expected.backward(wide(dout));

    const at::Tensor out = at::full_like(dout, NAN);
    ops::gated_delta_forward(spec, rows, kSegments, out);
    check_near(out, expected.detach(), limit(type), "out");
    const DeltaRows gradients = DeltaRows::make(spec, kRows, rows.x.options());
    for (const at::Tensor& gradient : {gradients.x, gradients.decay, gradients.beta}) gradient.fill_(NAN);
    ops::gated_delta_backward(spec, rows, kSegments, dout, gradients);
    check_near(gradients.x, x.grad(), 3 * limit(type), "dx");
    check_near(gradients.decay, log_decay.grad(), 3 * limit(type), "by log decay");
    check_near(gradients.beta, beta.grad(), 3 * limit(type), "by beta");
  }
}

void check_bits(const DeltaSpec& spec) {
  const DeltaRows rows = some_rows(spec);
  const at::Tensor whole = at::empty({kRows, spec.value_heads * spec.value_dim});
  ops::gated_delta_forward(spec, rows, kSegments, whole);
  const at::Tensor states = at::full({3, spec.value_heads, spec.key_dim, spec.value_dim}, NAN);
  const at::Tensor out = at::full_like(whole, NAN);
  const auto step = [&](int64_t row, int64_t count, int64_t slot, bool begins) {
    ops::gated_delta_step(spec, rows, {{row, count, slot, begins}}, states, out);
  };
  step(0, 2, 1, true);
  states[2].copy_(states[1]);
  step(2, 1, 2, false);
  step(3, 30, 2, false);
  for (int64_t row = 33; row < 40; ++row) step(row, 1, 2, false);
  step(40, 1, 1, false);
  CHECK(at::equal(out.narrow(0, 0, 41), whole.narrow(0, 0, 41)));
  for (const int threads : {1, 2}) {
    at::set_num_threads(threads);
    const at::Tensor again = at::empty_like(whole);
    ops::gated_delta_forward(spec, rows, kSegments, again);
    CHECK(at::equal(again, whole));
  }
}

}  // namespace

TEST(the_rule_and_its_gradients) {
  for (const DeltaSpec& spec : {kSpec, kMamba}) check_rule(spec);
}

TEST(a_row_has_the_same_bits_however_its_sequence_is_cut) {
  for (const DeltaSpec& spec : {kSpec, kMamba}) check_bits(spec);
}

TEST(a_gpu_has_the_numbers_of_a_cpu) {
  if (kernels::device_ops() == nullptr || !at::hasCUDA()) {
    std::printf("  no GPU, or a build without CUDA: not compared\n");
    return;
  }
  const auto there = [](const DeltaRows& rows) {
    return DeltaRows{rows.x.cuda(), rows.decay.cuda(), rows.beta.cuda()};
  };
  for (const DeltaSpec& spec : {kSpec, kMamba, DeltaSpec{1, 2, 128, 128}, DeltaSpec{2, 2, 200, 64},
                                DeltaSpec{1, 2, 128, 64, false}}) {
    const DeltaRows rows = some_rows(spec), on_gpu = there(rows);
    const at::Tensor out = at::empty({kRows, spec.value_heads * spec.value_dim});
    const at::Tensor dout = at::randn_like(out);
    dout.narrow(0, kReal, kRows - kReal).zero_();
    ops::gated_delta_forward(spec, rows, kSegments, out);
    const DeltaRows gradients = DeltaRows::make(spec, kRows, rows.x.options());
    ops::gated_delta_backward(spec, rows, kSegments, dout, gradients);
    const at::Tensor gpu_out = at::full_like(out, NAN).cuda();
    ops::gated_delta_forward(spec, on_gpu, kSegments, gpu_out);
    check_near(gpu_out.cpu(), wide(out), 1e-5, "out on a GPU");
    const DeltaRows gpu_gradients = there(gradients);
    for (const at::Tensor& gradient : {gpu_gradients.x, gpu_gradients.decay, gpu_gradients.beta})
      gradient.fill_(NAN);
    ops::gated_delta_backward(spec, on_gpu, kSegments, dout.cuda(), gpu_gradients);
    check_near(gpu_gradients.x.cpu(), wide(gradients.x), 3e-5, "dx on a GPU");
    check_near(gpu_gradients.decay.cpu(), wide(gradients.decay), 3e-5, "by log decay on a GPU");
    check_near(gpu_gradients.beta.cpu(), wide(gradients.beta), 3e-5, "by beta on a GPU");

    const at::Tensor states = at::full({2, spec.value_heads, spec.key_dim, spec.value_dim}, NAN).cuda();
    const at::Tensor steps = at::full_like(gpu_out, NAN);
    ops::gated_delta_step(spec, on_gpu, {{0, 2, 1, true}}, states, steps);
    ops::gated_delta_step(spec, on_gpu, {{2, 30, 1, false}, {41, 37, 0, true}}, states, steps);
    ops::gated_delta_step(spec, on_gpu, {{32, 8, 1, false}, {78, 5, 0, false}}, states, steps);
    for (const auto& [begin, end] : {std::pair{0, 40}, std::pair{41, 83}})
      CHECK(at::equal(steps.narrow(0, begin, end - begin), gpu_out.narrow(0, begin, end - begin)));
  }
}

void check_convolution(bool silu, int64_t width) {
  const int64_t cols = 53;
  for_each_type([&](at::ScalarType type) {
    at::manual_seed(4);
    const at::Tensor x = at::randn({kRows, cols + 3}).to(type).narrow(1, 2, cols);
    const at::Tensor weight = at::randn({cols, width}).to(type);
    const at::Tensor bias = at::randn({cols}).to(type);
    const at::Tensor wide_x = leaf(x), wide_weight = leaf(weight), wide_bias = leaf(bias);
    const at::Tensor expected = by_sequence(
        [&](const std::vector<int64_t>& rows) {
          const auto length = static_cast<int64_t>(rows.size());
          const at::Tensor own = at::cat({at::zeros({width - 1, cols}, at::kDouble),
                                          wide_x.index_select(0, at::tensor(rows, at::kLong))});
          at::Tensor sum = at::zeros({length, cols}, at::kDouble);
          for (int64_t tap = 0; tap < width; ++tap)
            sum = sum + own.narrow(0, tap, length) * wide_weight.select(1, tap);
          sum = sum + wide_bias;
          return silu ? at::silu(sum) : sum;
        },
        cols);
    at::Tensor dy = at::randn({kRows, cols}).to(type == at::kDouble ? at::kDouble : at::kFloat);
    dy.narrow(0, kReal, kRows - kReal).zero_();
    expected.backward(wide(dy));

    const ops::ConvTaps taps(kSegments, kRows);
    const at::Tensor y = at::full({kRows, cols}, NAN, type);
    const ops::ConvWeight weights{ops::conv_taps(weight, bias), silu};
    ops::causal_conv_forward(x, weights, taps, 0, 50, y.narrow(0, 0, 50));
    ops::causal_conv_forward(x, weights, taps, 50, kRows, y.narrow(0, 50, kRows - 50));
    check_near(y, expected.detach(), limit(type), "y");
    const at::Tensor dx = at::full({kRows, cols}, NAN, type);
    const at::Tensor d_weight = ops::causal_conv_backward(x, weights, taps, dy, dx);
    check_near(dx, wide_x.grad(), limit(type), "dx");
    check_near(d_weight.narrow(0, ops::kConvWidth - width, width).t(), wide_weight.grad(), limit(type),
               "dweight");
    check_near(d_weight[ops::kConvWidth], wide_bias.grad(), limit(type), "dbias");
    CHECK(at::equal(ops::conv_taps(weight, {})[ops::kConvWidth], at::zeros_like(weights.taps[0])));
  });
}

TEST(the_convolution_and_its_gradients) {
  check_convolution(/*silu=*/true, ops::kConvWidth);
  check_convolution(/*silu=*/false, 3);
}

TEST(what_the_rule_reads_and_its_gradients) {
  for_each_type([&](at::ScalarType type) {
    const double beta_scale = type == at::kFloat ? 1 : 2;
    at::manual_seed(5);
    const auto random = [&](at::IntArrayRef sizes) { return at::randn(sizes).to(type); };
    const int64_t heads = kSpec.value_heads, keys = kSpec.key_heads * kSpec.key_dim;
    const at::Tensor x = random({kRows, kSpec.width()}), ba = random({kRows, 2 * heads});
    const DeltaGates gates{ba.narrow(1, 0, heads), ba.narrow(1, heads, heads), random({heads}),
                           random({heads}), beta_scale};
    const at::Tensor wide_x = leaf(x), b = leaf(gates.b), a = leaf(gates.a), a_log = leaf(gates.a_log),
                     dt_bias = leaf(gates.dt_bias);
    const auto unit = [&](int64_t begin) {
      const at::Tensor of = wide_x.narrow(1, begin, keys).unflatten(1, {kSpec.key_heads, kSpec.key_dim});
      return (of / (of.square().sum(2, true) + 1e-6).sqrt()).flatten(1);
    };
    const at::Tensor expected = at::cat({unit(0) / std::sqrt(static_cast<double>(kSpec.key_dim)), unit(keys),
                                         wide_x.narrow(1, 2 * keys, heads * kSpec.value_dim)},
                                        1);
    const at::Tensor log_decay = -a_log.exp() * at::softplus(a + dt_bias), beta = beta_scale * at::sigmoid(b);
    DeltaRows gradients = some_rows(kSpec, type == at::kDouble ? at::kDouble : at::kFloat);
    ((expected * wide(gradients.x)).sum() + (log_decay * wide(gradients.decay)).sum() +
     (beta * wide(gradients.beta)).sum())
        .backward();

    const DeltaRows out = DeltaRows::make(kSpec, kRows, x.options());
    ops::delta_inputs(kSpec, x, gates, out);
    check_near(out.x, expected.detach(), limit(type), "x");
    check_near(out.decay, log_decay.exp().detach(), limit(type), "decay");
    check_near(out.beta, beta.detach(), limit(type), "beta");
    const at::Tensor dba = at::full_like(ba, NAN);
    const at::Tensor da_log = at::ones({heads}, gradients.x.options()), ddt_bias = da_log.clone();
    ops::delta_inputs_backward(kSpec, x, gates, gradients, dba.narrow(1, 0, heads),
                               dba.narrow(1, heads, heads), da_log, ddt_bias);
    check_near(gradients.x, wide_x.grad(), limit(type), "dx");
    check_near(dba.narrow(1, 0, heads), b.grad(), limit(type), "db");
    check_near(dba.narrow(1, heads, heads), a.grad(), limit(type), "da");
    check_near(da_log - 1, a_log.grad(), limit(type), "da_log");
    check_near(ddt_bias - 1, dt_bias.grad(), limit(type), "ddt_bias");
  });
}

TEST(the_gated_norm_and_its_gradients) {
  for_each_type([&](at::ScalarType type) {
    for (const bool gate_first : {false, true}) {
      at::manual_seed(6);
      const int64_t heads = 3, dim = 37;
      const ops::GatedNormSpec spec{dim, 1e-3, gate_first};
      const auto accumulate = type == at::kDouble ? at::kDouble : at::kFloat;
      const at::Tensor x = at::randn({kRows, heads * dim}).to(accumulate);
      const at::Tensor gate = at::randn({kRows, heads * dim + 2}).to(type).narrow(1, 1, heads * dim);
      const at::Tensor weight = at::randn({gate_first ? heads * dim : dim}).to(type);
      const at::Tensor dout = at::randn_like(x).to(type);
      const at::Tensor wide_x = leaf(x), z = leaf(gate), w = leaf(weight);
      const at::Tensor of = (gate_first ? wide_x * at::silu(z) : wide_x).unflatten(1, {heads, dim});
      const at::Tensor normed = of / (of.square().mean(2, true) + 1e-3).sqrt();
      const at::Tensor expected = gate_first ? w * normed.flatten(1) : (w * normed).flatten(1) * at::silu(z);
      expected.backward(wide(dout));
      const at::Tensor out = at::empty_like(dout), dx = at::empty_like(x), dgate = at::empty_like(dout),
                       dweight = at::ones(weight.sizes(), x.options());
      ops::gated_norm_forward(spec, x, gate, weight, out);
      check_near(out, expected.detach(), limit(type), "out");
      ops::gated_norm_backward(spec, dout, x, gate, weight, dx, dgate, dweight);
      check_near(dx, wide_x.grad(), limit(type), "dx");
      check_near(dgate, z.grad(), limit(type), "dgate");
      check_near(dweight - 1, w.grad(), 3 * limit(type), "dweight");
    }
  });
}

TEST(what_mamba_2_reads_and_adds_and_their_gradients) {
  for_each_type([&](at::ScalarType type) {
    at::manual_seed(7);
    const auto random = [&](at::IntArrayRef sizes) { return at::randn(sizes).to(type); };
    const int64_t heads = kMamba.value_heads, dim = kMamba.value_dim;
    const at::Tensor x = random({kRows, kMamba.width()}), skip = random({heads});
    // About a third of the steps are the least one.
    const ops::MambaSteps steps{random({kRows, heads + 3}).narrow(1, 2, heads), random({heads}),
                                random({heads}), 0.5};
    const at::Tensor wide_x = leaf(x), dt = leaf(steps.dt), a_log = leaf(steps.a_log),
                     dt_bias = leaf(steps.dt_bias), wide_skip = leaf(skip);
    const at::Tensor step = at::softplus(dt + dt_bias).clamp_min(0.5), log_decay = -a_log.exp() * step;
    const at::Tensor v = wide_x.narrow(1, 0, heads * dim).unflatten(1, {heads, dim});
    const at::Tensor added = (v * wide_skip.unsqueeze(1)).flatten(1);
    DeltaRows gradients = some_rows(kMamba, type == at::kDouble ? at::kDouble : at::kFloat);
    const at::Tensor dout = at::randn({kRows, heads * dim}).to(gradients.x.scalar_type());
    ((wide_x * wide(gradients.x)).sum() + (log_decay * wide(gradients.decay)).sum() +
     (step * wide(gradients.beta)).sum() + (added * wide(dout)).sum())
        .backward();

    const DeltaRows out = DeltaRows::make(kMamba, kRows, x.options());
    ops::mamba_inputs(kMamba, x, steps, out);
    CHECK(at::equal(wide(out.x), wide(x)));
    check_near(out.decay, log_decay.exp().detach(), limit(type), "decay");
    check_near(out.beta, step.detach(), limit(type), "beta");
    const at::Tensor given = at::ones_like(dout);
    ops::mamba_skip(kMamba, out.x, skip, given);
    check_near(given - 1, added.detach(), limit(type), "skip");

    const at::Tensor d_dt = at::full({kRows, heads + 1}, NAN, type).narrow(1, 0, heads);
    const auto sums = [&] { return at::ones({heads}, gradients.x.options()); };
    const at::Tensor da_log = sums(), ddt_bias = sums(), d_skip = sums();
    ops::mamba_skip_backward(kMamba, out.x, skip, dout, gradients.x, d_skip);
    ops::mamba_inputs_backward(steps, gradients, d_dt, da_log, ddt_bias);
    check_near(gradients.x, wide_x.grad(), limit(type), "dx");
    check_near(d_dt, dt.grad(), limit(type), "ddt");
    check_near(da_log - 1, a_log.grad(), limit(type), "da_log");
    check_near(ddt_bias - 1, dt_bias.grad(), limit(type), "ddt_bias");
    check_near(d_skip - 1, wide_skip.grad(), 3 * limit(type), "dskip");
  });
}

TEST_MAIN()
