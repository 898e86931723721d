// Kernels of causal_conv.cc, gated_delta_rule.cc, gated_norm.cc and mamba.cc.
#pragma once

#include "kernels/cpu/row_kernels.h"

namespace troupe::kernels {

constexpr int64_t kConvWidth = 4;      // rows that go into one of a causal convolution
constexpr int64_t kDeltaColumns = 32;  // of a state, which a kernel works on at a time
constexpr int64_t kMaxDeltaKeyDim = 256;
constexpr int64_t kDeltaCheckpoint = 32;  // rows between states that a backward pass keeps

// Rows of a depthwise causal convolution: y = f(sum over j of weight[j] * tap j + bias), tap kConvWidth - 1
// being the row itself, f silu or nothing. Weights float32 [kConvWidth + 1, cols], of which the last row is
// the bias.
struct ConvForward {
  bool silu;
  int64_t rows, cols;
  const void* const* taps;  // [rows, kConvWidth]
  const float* weight;
  Rows out;
};
// By the sum before f, from dout float32; dweight [kConvWidth + 1, cols] is added to.
struct ConvBackward {
  bool silu;
  int64_t rows, cols;
  const void* const* taps;
  const float* weight;
  const float* dout;
  int64_t dout_stride;
  float* dsum;  // [rows, cols]; may be dout
  float* dweight;
};
// One row of x: dx = sum over i < count of weight[tap[i]] * dsum[i].
struct ConvInput {
  int64_t cols, count;
  const float* const* dsum;
  const int32_t* tap;
  const float* weight;
  void* dx;
};
struct ConvKernels {
  void (*forward[kNumDtypes])(const ConvForward& args);
  void (*backward[kNumDtypes])(const ConvBackward& args);
  void (*backward_input[kNumDtypes])(const ConvInput& args);
};

// The heads of the gated delta rule, or of Mamba 2 (mamba.h): the same without erasure. A row has q and k of
// the key heads and v of the value heads: in this order, or without erasure v, k and q.
struct DeltaShape {
  int64_t key_heads, value_heads, key_dim, value_dim;
  bool erases = true;

  constexpr int64_t keys() const { return key_heads * key_dim; }
  constexpr int64_t values() const { return value_heads * value_dim; }
  constexpr int64_t width() const { return 2 * keys() + values(); }
  constexpr int64_t q() const { return erases ? 0 : values() + keys(); }
  constexpr int64_t k() const { return erases ? keys() : values(); }
  constexpr int64_t v() const { return erases ? 2 * keys() : 0; }
};
// What the rule reads of rows: x (after the convolution), and two numbers per value head. Written: q and k of
// length one, q times key_dim^-1/2, and v, in float32 [rows, x_cols]; decay = exp(-exp(a_log) softplus(a +
// dt_bias)) and beta = beta_scale sigmoid(b), [rows, value_heads].
struct DeltaInputs {
  DeltaShape shape;
  int64_t rows;
  ConstRows x, b, a;
  const void* a_log;
  const void* dt_bias;
  float beta_scale;
  float* prepared;
  float* decay;
  float* beta;
};
// From the gradients of what was written, which dprepared holds (and gets that of x), dlog_decay that of log
// decay, and dbeta. da_log and ddt_bias [value_heads] are added to.
struct DeltaInputsBackward {
  DeltaShape shape;
  int64_t rows;
  ConstRows x, b, a;
  const void* a_log;
  const void* dt_bias;
  float beta_scale;
  float* dprepared;
  const float* dlog_decay;
  const float* dbeta;
  Rows db, da;
  float* da_log;
  float* ddt_bias;
};
struct DeltaInputKernels {
  void (*inputs[kNumDtypes])(const DeltaInputs& args);
  void (*inputs_backward[kNumDtypes])(const DeltaInputsBackward& args);
};

// The rule for one value head and up to kDeltaColumns columns of its state over rows one behind the other:
//   m = decay S^T k,  d = beta (v - m),  S = decay S + k d^T,  out = S^T q,
// without erasure m = 0.
struct DeltaScan {
  bool erases;
  int64_t rows, key_dim, columns;
  const float* q;  // of the head; v of these columns
  const float* k;
  const float* v;
  int64_t stride;  // of q, k and v
  const float* decay;
  const float* beta;
  int64_t gate_stride;
  const float* before;  // the state [key_dim, columns]; null: zeros
  int64_t before_stride;
  float* after;  // the same behind the last row; null: not wanted. May be `before`.
  int64_t after_stride;
  float* out;  // null: not wanted
  int64_t out_stride;
};
// Gradients of a scan: dq, dk, dlog_decay and dbeta are added to, dv is written. d_state [key_dim,
// kDeltaColumns]: by the state behind the last row, and then by that before the first. scratch:
// delta_scratch() floats.
struct DeltaScanBackward {
  DeltaScan scan;
  const float* dout;
  float* dq;
  float* dk;
  float* dv;
  float* dlog_decay;
  float* dbeta;
  float* d_state;
  float* scratch;
};
constexpr int64_t delta_scratch(int64_t rows, int64_t key_dim) {
  const int64_t kept = (rows + kDeltaCheckpoint - 1) / kDeltaCheckpoint;
  return (kept + kDeltaCheckpoint) * key_dim * kDeltaColumns + 2 * kDeltaCheckpoint * kDeltaColumns;
}
struct DeltaKernels {
  void (*scan)(const DeltaScan& args);
  void (*scan_backward)(const DeltaScanBackward& args);
};

// RMSNorm of each head of x [rows, heads * dim] float32, times weight [dim] and silu(gate); or with
// gate_first of x silu(gate), times weight [heads * dim].
struct GatedNorm {
  int64_t rows, heads, dim;
  bool gate_first;
  float eps;
  const float* x;
  ConstRows gate;
  const void* weight;
  Rows out;
};
// dx may be dout's memory only in the compute dtype float32. dweight, of the shape of weight, is added to.
struct GatedNormBackward {
  GatedNorm norm;  // without `out`
  ConstRows dout;
  float* dx;
  Rows dgate;
  float* dweight;
};
struct GatedNormKernels {
  void (*forward[kNumDtypes])(const GatedNorm& args);
  void (*backward[kNumDtypes])(const GatedNormBackward& args);
};

// What Mamba 2 reads of rows: x, and a step per value head, dt. Written: x in float32 [rows, x_cols]; beta =
// max(softplus(dt + dt_bias), least), decay = exp(-exp(a_log) beta), [rows, heads].
struct MambaInputs {
  int64_t rows, cols, heads;
  float least;
  ConstRows x, dt;
  const void* a_log;
  const void* dt_bias;
  float* prepared;
  float* decay;
  float* beta;
};
// From the gradients of log decay and beta. da_log and ddt_bias [heads] are added to.
struct MambaInputsBackward {
  int64_t rows, heads;
  float least;
  ConstRows dt;
  const void* a_log;
  const void* dt_bias;
  const float* dlog_decay;
  const float* dbeta;
  Rows ddt;
  float* da_log;
  float* ddt_bias;
};
// out += skip v of each head; v and out float32 [rows, heads * dim].
struct MambaSkip {
  int64_t rows, heads, dim;
  const float* v;
  int64_t v_stride;
  const void* skip;  // [heads]
  float* out;
};
// dv += skip dout; dskip [heads] += sum of dout v.
struct MambaSkipBackward {
  MambaSkip forward;  // without `out`
  const float* dout;
  float* dv;
  int64_t dv_stride;
  float* dskip;
};
struct MambaKernels {
  void (*inputs[kNumDtypes])(const MambaInputs& args);
  void (*inputs_backward[kNumDtypes])(const MambaInputsBackward& args);
  void (*skip[kNumDtypes])(const MambaSkip& args);
  void (*skip_backward[kNumDtypes])(const MambaSkipBackward& args);
};

const ConvKernels& conv_kernels();
const DeltaInputKernels& delta_input_kernels();
const DeltaKernels& delta_kernels();
const GatedNormKernels& gated_norm_kernels();
const MambaKernels& mamba_kernels();

}  // namespace troupe::kernels
