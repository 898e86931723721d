// Convolution, gated delta rule and gated norm in LibTorch operations.
#include "kernels/gated_delta_reference.h"

#include <ATen/ATen.h>

#include <utility>

#include "base/simulated.h"
#include "base/upload.h"
#include "kernels/ops.h"

namespace troupe::ops {

bool has_delta_kernels(const at::Tensor& x) {
  return x.is_cpu() && (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16);
}

void simulate_temporaries(const at::Tensor& x, int64_t count) {
  if (!on_cpu_threads(x.device())) at::empty({count, x.size(0), x.size(1)}, x.options().dtype(at::kFloat));
}

}  // namespace troupe::ops

namespace troupe::ops::reference {

namespace {

constexpr double kLengthEps = 1e-6;

at::Tensor wide(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? x : x.to(at::kFloat);
}

at::Tensor with_zero_row(const at::Tensor& x) {
  return at::cat({wide(x), at::zeros({1, x.size(1)}, wide(x).options())});
}

// [n, C] of one tap.
at::Tensor tap_rows(const at::Tensor& padded, const at::Tensor& taps, int64_t tap) {
  return padded.index_select(0, taps.select(1, tap));
}

at::Tensor conv_sum(const at::Tensor& padded, const at::Tensor& weight, const at::Tensor& taps) {
  at::Tensor sum = tap_rows(padded, taps, 0) * weight[0];
  for (int64_t tap = 1; tap < kConvWidth; ++tap) sum += tap_rows(padded, taps, tap) * weight[tap];
  return sum + weight[kConvWidth];
}

// The derivative of silu.
at::Tensor silu_slope(const at::Tensor& x) {
  const at::Tensor s = at::sigmoid(x);
  return s * (1 + x * (1 - s));
}

// [n, heads, dim] of columns [begin, begin + heads * dim).
at::Tensor heads_of(const at::Tensor& x, int64_t begin, int64_t heads, int64_t dim) {
  return x.narrow(1, begin, heads * dim).unflatten(1, {heads, dim});
}

// q, k and v of rows, of every value head.
struct Heads {
  at::Tensor q, k, v;  // [n, Hv, D]

  Heads(const DeltaSpec& spec, const at::Tensor& x) {
    const int64_t groups = spec.value_heads / spec.key_heads;
    q = heads_of(x, spec.q(), spec.key_heads, spec.key_dim).repeat_interleave(groups, 1);
    k = heads_of(x, spec.k(), spec.key_heads, spec.key_dim).repeat_interleave(groups, 1);
    v = heads_of(x, spec.v(), spec.value_heads, spec.value_dim);
  }
};

// [Hv, Dk, Dv] x [Hv, Dk] -> [Hv, Dv]
at::Tensor read_state(const at::Tensor& state, const at::Tensor& x) {
  return at::matmul(x.unsqueeze(1), state).squeeze(1);
}
at::Tensor product(const at::Tensor& k, const at::Tensor& d) {
  return k.unsqueeze(2) * d.unsqueeze(1);
}

struct Row {
  at::Tensor decayed, memory, delta, state;
};
Row row_of(const DeltaSpec& spec, const Heads& heads, const DeltaRows& rows, int64_t r,
           const at::Tensor& before) {
  Row row;
  row.decayed = before * rows.decay[r].view({-1, 1, 1});
  row.memory = spec.erases ? read_state(row.decayed, heads.k[r]) : at::zeros_like(heads.v[r]);
  row.delta = rows.beta[r].unsqueeze(1) * (heads.v[r] - row.memory);
  row.state = row.decayed + product(heads.k[r], row.delta);
  return row;
}

at::Tensor empty_state(const DeltaSpec& spec, const DeltaRows& rows) {
  return at::zeros({spec.value_heads, spec.key_dim, spec.value_dim}, rows.x.options());
}

// From the state before the rows to that behind them; out [n, Hv Dv].
at::Tensor scan(const DeltaSpec& spec, const DeltaRows& rows, at::Tensor state, const at::Tensor& out) {
  const Heads heads(spec, rows.x);
  for (int64_t r = 0; r < rows.x.size(0); ++r) {
    state = row_of(spec, heads, rows, r, state).state;
    if (out.defined()) out[r].copy_(read_state(state, heads.q[r]).flatten());
  }
  return state;
}

// Gradient by the state before the rows from that by the one behind them; writes the rows' gradients.
at::Tensor scan_backward(const DeltaSpec& spec, const DeltaRows& rows, const at::Tensor& before,
                         const at::Tensor& dout, at::Tensor d_state, const DeltaRows& gradients) {
  const Heads heads(spec, rows.x);
  std::vector<Row> kept;
  at::Tensor state = before;
  for (int64_t r = 0; r < rows.x.size(0); ++r) {
    kept.push_back(row_of(spec, heads, rows, r, state));
    state = kept.back().state;
  }
  const int64_t keys = spec.key_heads * spec.key_dim, groups = spec.value_heads / spec.key_heads;
  const auto of_key_heads = [&](const at::Tensor& all) {
    return all.unflatten(0, {spec.key_heads, groups}).sum(1).flatten();
  };
  for (int64_t r = rows.x.size(0); r-- > 0;) {
    const Row& row = kept[static_cast<size_t>(r)];
    const at::Tensor k = heads.k[r], d_out = dout[r].view({spec.value_heads, spec.value_dim});
    d_state = d_state + product(heads.q[r], d_out);
    const at::Tensor d_delta = read_state(d_state, k), dv = rows.beta[r].unsqueeze(1) * d_delta;
    at::Tensor d_decayed = d_state, dk = at::matmul(d_state, row.delta.unsqueeze(2)).squeeze(2);
    if (spec.erases) {
      d_decayed = d_decayed - product(k, dv);
      dk = dk - at::matmul(row.decayed, dv.unsqueeze(2)).squeeze(2);
    }
    const at::Tensor dx = gradients.x[r];
    dx.narrow(0, spec.q(), keys).copy_(of_key_heads(at::matmul(row.state, d_out.unsqueeze(2)).squeeze(2)));
    dx.narrow(0, spec.k(), keys).copy_(of_key_heads(dk));
    dx.narrow(0, spec.v(), dv.numel()).copy_(dv.flatten());
    gradients.beta[r].copy_((d_delta * (heads.v[r] - row.memory)).sum(1));
    gradients.decay[r].copy_((d_decayed * row.decayed).sum(at::IntArrayRef{1, 2}));
    d_state = d_decayed * rows.decay[r].view({-1, 1, 1});
  }
  return d_state;
}

}  // namespace

void causal_conv_forward(const at::Tensor& x, const ConvWeight& weight, const at::Tensor& taps,
                         const at::Tensor& y) {
  const at::Tensor sum = conv_sum(with_zero_row(x), weight.taps, taps);
  y.copy_(weight.silu ? at::silu(sum) : sum);
}

at::Tensor causal_conv_backward(const at::Tensor& x, const ConvWeight& weight, const at::Tensor& taps,
                                const at::Tensor& dy, const at::Tensor& dx) {
  const at::Tensor padded = with_zero_row(x);
  const at::Tensor dsum = weight.silu ? dy * silu_slope(conv_sum(padded, weight.taps, taps)) : dy;
  const at::Tensor d_padded = at::zeros_like(padded), d_weight = at::empty_like(weight.taps);
  for (int64_t tap = 0; tap < kConvWidth; ++tap) {
    d_weight[tap].copy_((dsum * tap_rows(padded, taps, tap)).sum(0));
    add_rows(d_padded, taps.select(1, tap), dsum * weight.taps[tap]);
  }
  d_weight[kConvWidth].copy_(dsum.sum(0));
  dx.copy_(d_padded.narrow(0, 0, x.size(0)));
  return d_weight;
}

void delta_inputs(const DeltaSpec& spec, const at::Tensor& x, const DeltaGates& gates, const DeltaRows& out) {
  const int64_t keys = spec.key_heads * spec.key_dim, values = spec.value_heads * spec.value_dim;
  const at::Tensor all = wide(x), both = heads_of(all, 0, 2 * spec.key_heads, spec.key_dim);
  at::Tensor unit = both * at::rsqrt(both.square().sum(2, true) + kLengthEps);
  unit.narrow(1, 0, spec.key_heads).mul_(std::pow(static_cast<double>(spec.key_dim), -0.5));
  out.x.narrow(1, 0, 2 * keys).copy_(unit.flatten(1));
  out.x.narrow(1, 2 * keys, values).copy_(all.narrow(1, 2 * keys, values));
  out.beta.copy_(at::sigmoid(wide(gates.b)) * gates.beta_scale);
  const at::Tensor step = at::softplus(wide(gates.a) + wide(gates.dt_bias));
  out.decay.copy_(at::exp(-at::exp(wide(gates.a_log)) * step));
}

void delta_inputs_backward(const DeltaSpec& spec, const at::Tensor& x, const DeltaGates& gates,
                           const DeltaRows& gradients, const at::Tensor& db, const at::Tensor& da,
                           const at::Tensor& da_log, const at::Tensor& ddt_bias) {
  const at::Tensor both = heads_of(wide(x), 0, 2 * spec.key_heads, spec.key_dim);
  const at::Tensor d = heads_of(gradients.x, 0, 2 * spec.key_heads, spec.key_dim);
  const at::Tensor inverse = at::rsqrt(both.square().sum(2, true) + kLengthEps);
  at::Tensor scale = inverse.clone();
  scale.narrow(1, 0, spec.key_heads).mul_(std::pow(static_cast<double>(spec.key_dim), -0.5));
  d.copy_(scale * (d - both * (d * both).sum(2, true) * inverse.square()));
  const at::Tensor beta = at::sigmoid(wide(gates.b));
  db.copy_(gates.beta_scale * gradients.beta * beta * (1 - beta));
  const at::Tensor sum = wide(gates.a) + wide(gates.dt_bias), rate = -at::exp(wide(gates.a_log));
  const at::Tensor by_step = gradients.decay * rate * at::sigmoid(sum);
  da.copy_(by_step);
  at::Tensor(da_log).add_((gradients.decay * rate * at::softplus(sum)).sum(0));
  at::Tensor(ddt_bias).add_(by_step.sum(0));
}

void gated_delta_forward(const DeltaSpec& spec, const DeltaRows& rows, const Segments& segments,
                         const at::Tensor& out) {
  std::vector<at::Tensor> states;
  out.zero_();
  for (const Segment& segment : segments) {
    const at::Tensor before =
        segment.prefix < 0 ? empty_state(spec, rows) : states[static_cast<size_t>(segment.prefix)];
    states.push_back(scan(spec, rows.rows(segment.begin, segment.size()), before,
                          out.narrow(0, segment.begin, segment.size())));
  }
}

void gated_delta_backward(const DeltaSpec& spec, const DeltaRows& rows, const Segments& segments,
                          const at::Tensor& dout, const DeltaRows& gradients) {
  for (const at::Tensor& gradient : {gradients.x, gradients.decay, gradients.beta}) gradient.zero_();
  std::vector<at::Tensor> states, d_states;
  for (const Segment& segment : segments) {
    states.push_back(segment.prefix < 0
                         ? scan(spec, rows.rows(segment.begin, segment.size()), empty_state(spec, rows), {})
                         : at::Tensor());
    d_states.push_back(empty_state(spec, rows));
  }
  for (size_t i = segments.size(); i-- > 0;) {  // a prefix comes before what has it
    const Segment& segment = segments[i];
    const auto prefix = static_cast<size_t>(segment.prefix);
    const at::Tensor by_before = scan_backward(spec, rows.rows(segment.begin, segment.size()),
                                               segment.prefix < 0 ? empty_state(spec, rows) : states[prefix],
                                               dout.narrow(0, segment.begin, segment.size()), d_states[i],
                                               gradients.rows(segment.begin, segment.size()));
    if (segment.prefix >= 0) d_states[prefix] = d_states[prefix] + by_before;
  }
}

void gated_delta_step(const DeltaSpec& spec, const DeltaRows& rows, const std::vector<StateRun>& runs,
                      const at::Tensor& states, const at::Tensor& out) {
  for (const StateRun& run : runs) {
    const at::Tensor state = states.select(0, run.slot);
    state.copy_(scan(spec, rows.rows(run.row, run.count), run.begins ? empty_state(spec, rows) : state,
                     out.narrow(0, run.row, run.count)));
  }
}

void gated_norm_forward(const GatedNormSpec& spec, const at::Tensor& x, const at::Tensor& gate,
                        const at::Tensor& weight, const at::Tensor& out) {
  const at::Tensor factor = at::silu(wide(gate));
  const at::Tensor heads = (spec.gate_first ? x * factor : x).unflatten(1, {-1, spec.dim});
  const at::Tensor normed = heads * at::rsqrt(heads.square().mean(2, true) + spec.eps);
  out.copy_(spec.gate_first ? normed.flatten(1) * wide(weight) : (normed * wide(weight)).flatten(1) * factor);
}

void gated_norm_backward(const GatedNormSpec& spec, const at::Tensor& dout, const at::Tensor& x,
                         const at::Tensor& gate, const at::Tensor& weight, const at::Tensor& dx,
                         const at::Tensor& dgate, const at::Tensor& dweight) {
  const std::vector<int64_t> by_head{-1, spec.dim};
  const at::Tensor z = wide(gate).unflatten(1, by_head), inputs = x.unflatten(1, by_head);
  const at::Tensor heads = spec.gate_first ? inputs * at::silu(z) : inputs;
  const at::Tensor rstd = at::rsqrt(heads.square().mean(2, true) + spec.eps), normed = heads * rstd;
  const at::Tensor grad = wide(dout).unflatten(1, by_head);
  if (spec.gate_first) {
    const at::Tensor g = grad * wide(weight).unflatten(0, by_head);
    at::Tensor(dweight).add_((grad * normed).sum(0).flatten());
    const at::Tensor dy = rstd * (g - normed * (g * normed).mean(2, true));
    dgate.copy_((dy * inputs * silu_slope(z)).flatten(1));
    dx.copy_((dy * at::silu(z)).flatten(1));
    return;
  }
  const at::Tensor scale = wide(weight);
  at::Tensor(dweight).add_((grad * normed * at::silu(z)).sum(at::IntArrayRef{0, 1}));
  dgate.copy_((grad * scale * normed * silu_slope(z)).flatten(1));
  const at::Tensor g = grad * scale * at::silu(z);
  dx.copy_((rstd * (g - normed * (g * normed).mean(2, true))).flatten(1));
}

void mamba_inputs(const DeltaSpec& spec, const at::Tensor& x, const MambaSteps& steps, const DeltaRows& out) {
  out.x.copy_(x);
  out.beta.copy_(at::softplus(wide(steps.dt) + wide(steps.dt_bias)).clamp_min(steps.least));
  out.decay.copy_(at::exp(-at::exp(wide(steps.a_log)) * out.beta));
}

void mamba_inputs_backward(const MambaSteps& steps, const DeltaRows& gradients, const at::Tensor& ddt,
                           const at::Tensor& da_log, const at::Tensor& ddt_bias) {
  const at::Tensor sum = wide(steps.dt) + wide(steps.dt_bias), rate = -at::exp(wide(steps.a_log));
  const at::Tensor step = at::softplus(sum);
  const at::Tensor by_sum =
      ((gradients.beta + gradients.decay * rate) * at::sigmoid(sum)).masked_fill(step < steps.least, 0);
  ddt.copy_(by_sum);
  at::Tensor(da_log).add_((gradients.decay * rate * step.clamp_min(steps.least)).sum(0));
  at::Tensor(ddt_bias).add_(by_sum.sum(0));
}

void mamba_skip(const DeltaSpec& spec, const at::Tensor& x, const at::Tensor& skip, const at::Tensor& out) {
  const at::Tensor v = heads_of(x, spec.v(), spec.value_heads, spec.value_dim);
  at::Tensor(out).add_((v * wide(skip).unsqueeze(1)).flatten(1));
}

void mamba_skip_backward(const DeltaSpec& spec, const at::Tensor& x, const at::Tensor& skip,
                         const at::Tensor& dout, const at::Tensor& dx, const at::Tensor& dskip) {
  const at::Tensor v = heads_of(x, spec.v(), spec.value_heads, spec.value_dim);
  const at::Tensor d = dout.unflatten(1, {spec.value_heads, spec.value_dim});
  heads_of(dx, spec.v(), spec.value_heads, spec.value_dim).add_(d * wide(skip).unsqueeze(1));
  at::Tensor(dskip).add_((d * v).sum(at::IntArrayRef{0, 2}));
}

}  // namespace troupe::ops::reference
