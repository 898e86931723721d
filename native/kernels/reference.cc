// Row operations in LibTorch operations.
#include "kernels/reference.h"

#include <ATen/ATen.h>

#include <optional>

#include "kernels/cpu/row_kernels.h"

namespace troupe::ops::reference {

namespace {

// To the type in which the arithmetic happens.
at::Tensor wide(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? x : x.to(at::kFloat);
}

at::Tensor scale_of(const at::Tensor& weight, bool unit_offset) {
  return unit_offset ? wide(weight) + 1.0 : wide(weight);
}

// With xhat the normalised rows and g the gradient by them: the gradient by what was normalised.
at::Tensor normalised_backward(const at::Tensor& g, const at::Tensor& xhat, const at::Tensor& rstd,
                               bool layer_norm) {
  at::Tensor inner = g - xhat * (g * xhat).mean({-1}, true);
  if (layer_norm) inner = inner - g.mean({-1}, true);
  return inner * rstd;
}

struct Heads {
  at::Tensor all;       // [n, Q+K, D], a view
  at::Tensor cos, sin;  // [n, 1, R/2]
};

Heads heads_of(const RotarySpec& spec, const at::Tensor& qkv, const at::Tensor& positions,
               const at::Tensor& cos, const at::Tensor& sin) {
  const int64_t count = spec.num_heads + spec.num_kv_heads;
  Heads heads;
  heads.all = qkv.narrow(1, 0, count * spec.head_dim).unflatten(1, {count, spec.head_dim});
  if (spec.rotary_dim == 0) return heads;
  const at::Tensor index = positions.to(at::kLong);
  heads.cos = cos.index_select(0, index).unsqueeze(1);
  heads.sin = sin.index_select(0, index).unsqueeze(1);
  return heads;
}

// [1, Q+K, D]
at::Tensor head_scales(const RotarySpec& spec, const at::Tensor& q_weight, const at::Tensor& k_weight) {
  const at::Tensor q = scale_of(q_weight, spec.norm_unit_offset).expand({spec.num_heads, spec.head_dim});
  const at::Tensor k = scale_of(k_weight, spec.norm_unit_offset).expand({spec.num_kv_heads, spec.head_dim});
  return at::cat({q, k}).unsqueeze(0);
}

at::Tensor rotated(const at::Tensor& x, const Heads& heads, double direction) {
  const int64_t half = heads.cos.size(2);
  const at::Tensor low = x.narrow(2, 0, half);
  const at::Tensor high = x.narrow(2, half, half);
  const at::Tensor rest = x.narrow(2, 2 * half, x.size(2) - 2 * half);
  const at::Tensor sin = heads.sin * direction;
  return at::cat({low * heads.cos - high * sin, high * heads.cos + low * sin, rest}, 2);
}

constexpr double kTanhInner = 0.7978845608028654;  // sqrt(2 / pi)
constexpr double kInverseSqrt2 = 0.7071067811865476;
constexpr double kInverseSqrt2Pi = 0.3989422804014327;

at::Tensor act(Activation kind, const at::Tensor& x) {
  switch (kind) {
    case Activation::kSilu: return x * at::sigmoid(x);
    case Activation::kGelu: return x * 0.5 * (1.0 + at::erf(x * kInverseSqrt2));
    case Activation::kGeluTanh: return x * 0.5 * (1.0 + at::tanh(kTanhInner * (x + 0.044715 * x * x * x)));
    case Activation::kQuickGelu: return x * at::sigmoid(kernels::kQuickGeluSlope * x);
    case Activation::kRelu: return at::relu(x);
    case Activation::kSquaredRelu: return at::relu(x).square();
    case Activation::kSigmoid: return at::sigmoid(x);
    case Activation::kClampedSwiglu: return {};  // of pairs, below
    case Activation::kXielu: return {};          // kernels/xielu.h
  }
  return {};
}

at::Tensor act_slope(Activation kind, const at::Tensor& x) {
  switch (kind) {
    case Activation::kSilu: {
      const at::Tensor s = at::sigmoid(x);
      return s * (1.0 + x * (1.0 - s));
    }
    case Activation::kGelu:
      return 0.5 * (1.0 + at::erf(x * kInverseSqrt2)) + x * kInverseSqrt2Pi * at::exp(-0.5 * x * x);
    case Activation::kGeluTanh: {
      const at::Tensor t = at::tanh(kTanhInner * (x + 0.044715 * x * x * x));
      return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * kTanhInner * (1.0 + 3 * 0.044715 * x * x);
    }
    case Activation::kQuickGelu: {
      const at::Tensor s = at::sigmoid(kernels::kQuickGeluSlope * x);
      return s * (1.0 + kernels::kQuickGeluSlope * x * (1.0 - s));
    }
    case Activation::kRelu: return x.gt(0).to(x.scalar_type());
    case Activation::kSquaredRelu: return 2 * at::relu(x);
    case Activation::kSigmoid: {
      const at::Tensor s = at::sigmoid(x);
      return s * (1.0 - s);
    }
    case Activation::kClampedSwiglu: return {};
    case Activation::kXielu: return {};
  }
  return {};
}

// The columns of the clamped SwiGLU.
struct Pairs {
  at::Tensor gate, up;  // [n, I], views

  explicit Pairs(const at::Tensor& x)
      : gate(x.slice(1, 0, std::nullopt, 2)), up(x.slice(1, 1, std::nullopt, 2)) {}
};

constexpr double kSlope = kernels::kSwigluSlope, kLimit = kernels::kSwigluLimit;

void pairs_backward(const at::Tensor& dout, const at::Tensor& x, const at::Tensor& dx,
                    const at::Tensor& out) {
  const Pairs given(x), wanted(dx);
  const at::Tensor whole = wide(given.gate), factor = wide(given.up), grad = wide(dout);
  const at::Tensor gate = whole.clamp_max(kLimit), up = factor.clamp(-kLimit, kLimit) + 1.0;
  const at::Tensor s = at::sigmoid(kSlope * gate), value = gate * s;
  const at::Tensor slope = s + kSlope * value * (1.0 - s);
  if (out.defined()) out.copy_(value * up);
  wanted.gate.copy_((grad * up * slope).masked_fill(whole.gt(kLimit), 0));
  wanted.up.copy_((grad * value).masked_fill(factor.abs().gt(kLimit), 0));
}

}  // namespace

void norm_forward(const NormSpec& spec, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                  const at::Tensor& y, const at::Tensor& rstd, const at::Tensor& mean) {
  at::Tensor centered = wide(x);
  if (spec.kind == NormKind::kLayer) {
    const at::Tensor row_mean = centered.mean({1}, true);
    if (mean.defined()) mean.copy_(row_mean.squeeze(1));
    centered = centered - row_mean;
  }
  const at::Tensor scale = at::rsqrt((centered * centered).mean({1}, true) + spec.eps);
  if (rstd.defined()) rstd.copy_(scale.squeeze(1));
  at::Tensor out = centered * scale * scale_of(weight, spec.unit_offset);
  if (bias.defined()) out = out + wide(bias);
  y.copy_(out);
}

void norm_backward(const NormSpec& spec, const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                   const at::Tensor& rstd, const at::Tensor& mean, const at::Tensor& dx, bool accumulate,
                   const at::Tensor& dweight, const at::Tensor& dbias) {
  const bool layer_norm = spec.kind == NormKind::kLayer;
  const at::Tensor grad = wide(dy);
  const at::Tensor scale = rstd.unsqueeze(1);
  const at::Tensor xhat = (layer_norm ? wide(x) - mean.unsqueeze(1) : wide(x)) * scale;
  if (dweight.defined()) dweight.add_((grad * xhat).sum({0}));
  if (dbias.defined()) dbias.add_(grad.sum({0}));
  const at::Tensor gradient =
      normalised_backward(grad * scale_of(weight, spec.unit_offset), xhat, scale, layer_norm);
  dx.copy_(accumulate ? wide(dx) + gradient : gradient);
}

void qk_norm_rotary_forward(const RotarySpec& spec, const at::Tensor& qkv, const at::Tensor& positions,
                            const at::Tensor& cos, const at::Tensor& sin, const at::Tensor& q_weight,
                            const at::Tensor& k_weight, const at::Tensor& qk_rstd) {
  const Heads heads = heads_of(spec, qkv, positions, cos, sin);
  at::Tensor out = wide(heads.all);
  if (spec.qk_norm) {
    const at::Tensor rstd = at::rsqrt((out * out).mean({2}, true) + spec.norm_eps);
    if (qk_rstd.defined()) qk_rstd.copy_(rstd.squeeze(2));
    out = out * rstd * head_scales(spec, q_weight, k_weight);
  }
  heads.all.copy_(spec.rotary_dim > 0 ? rotated(out, heads, 1) : out);
}

void qk_norm_rotary_backward(const RotarySpec& spec, const at::Tensor& dqkv, const at::Tensor& qkv_pre,
                             const at::Tensor& positions, const at::Tensor& cos, const at::Tensor& sin,
                             const at::Tensor& q_weight, const at::Tensor& k_weight,
                             const at::Tensor& qk_rstd, const at::Tensor& dq_weight,
                             const at::Tensor& dk_weight) {
  const Heads heads = heads_of(spec, dqkv, positions, cos, sin);
  at::Tensor grad = wide(heads.all);
  if (spec.rotary_dim > 0) grad = rotated(grad, heads, -1);
  if (spec.qk_norm) {
    const int64_t count = spec.num_heads + spec.num_kv_heads;
    const at::Tensor rstd = qk_rstd.unsqueeze(2);
    const at::Tensor pre = qkv_pre.narrow(1, 0, count * spec.head_dim).unflatten(1, {count, spec.head_dim});
    const at::Tensor xhat = wide(pre) * rstd;
    const at::Tensor by_weight = (grad * xhat).sum({0});
    if (dq_weight.defined()) dq_weight.add_(by_weight.narrow(0, 0, spec.num_heads).sum({0}));
    if (dk_weight.defined()) dk_weight.add_(by_weight.narrow(0, spec.num_heads, spec.num_kv_heads).sum({0}));
    grad = normalised_backward(grad * head_scales(spec, q_weight, k_weight), xhat, rstd, false);
  }
  heads.all.copy_(grad);
}

void split_norm_squares(const at::Tensor& x, const at::Tensor& sums) {
  sums.copy_(wide(x).square().sum({1}));
}

void split_norm_forward(const NormSpec& spec, const at::Tensor& x, const at::Tensor& weight,
                        const at::Tensor& squares, int64_t count, const at::Tensor& y) {
  const at::Tensor rstd = at::rsqrt(squares / static_cast<double>(count) + spec.eps).unsqueeze(1);
  y.copy_(wide(x) * rstd * scale_of(weight, spec.unit_offset));
}

void split_norm_products(const NormSpec& spec, const at::Tensor& dy, const at::Tensor& x,
                         const at::Tensor& weight, const at::Tensor& sums) {
  sums.copy_((wide(dy) * scale_of(weight, spec.unit_offset) * wide(x)).sum({1}));
}

void split_norm_backward(const NormSpec& spec, const at::Tensor& dy, const at::Tensor& x,
                         const at::Tensor& weight, const at::Tensor& squares, const at::Tensor& products,
                         int64_t count, const at::Tensor& dx, const at::Tensor& dweight) {
  const double columns = static_cast<double>(count);
  const at::Tensor rstd = at::rsqrt(squares / columns + spec.eps).unsqueeze(1);
  const at::Tensor grad = wide(dy), xhat = wide(x) * rstd;
  if (dweight.defined()) dweight.add_((grad * xhat).sum({0}));
  const at::Tensor projection = products.unsqueeze(1) * rstd / columns;
  dx.copy_(rstd * (grad * scale_of(weight, spec.unit_offset) - xhat * projection));
}

void activation_forward(Activation kind, bool gated, const at::Tensor& x, const at::Tensor& out) {
  if (kind == Activation::kClampedSwiglu) {
    const Pairs pairs(x);
    const at::Tensor gate = wide(pairs.gate).clamp_max(kLimit);
    out.copy_(gate * at::sigmoid(kSlope * gate) * (wide(pairs.up).clamp(-kLimit, kLimit) + 1.0));
    return;
  }
  const int64_t width = out.size(1);
  const at::Tensor value = act(kind, wide(x.narrow(1, 0, width)));
  out.copy_(gated ? value * wide(x.narrow(1, width, width)) : value);
}

void activation_backward(Activation kind, bool gated, const at::Tensor& dout, const at::Tensor& x,
                         const at::Tensor& dx, const at::Tensor& out) {
  if (kind == Activation::kClampedSwiglu) return pairs_backward(dout, x, dx, out);
  const int64_t width = dout.size(1);
  const at::Tensor gate = wide(x.narrow(1, 0, width));
  const at::Tensor up = gated ? wide(x.narrow(1, width, width)).clone() : at::Tensor();
  const at::Tensor value = act(kind, gate);
  at::Tensor grad = wide(dout);
  const at::Tensor by_up = gated ? grad * value : at::Tensor();
  if (gated) grad = grad * up;
  // dx may be x: everything that reads x comes first.
  const at::Tensor by_gate = grad * act_slope(kind, gate);
  if (out.defined()) out.copy_(gated ? value * up : value);
  dx.narrow(1, 0, width).copy_(by_gate);
  if (gated) dx.narrow(1, width, width).copy_(by_up);
}

}  // namespace troupe::ops::reference
