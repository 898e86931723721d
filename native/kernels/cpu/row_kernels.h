// Tables of the row kernels of ops.cc and adamw.cc; kernels/cuda fills the same ones.
#pragma once

#include <cstdint>

#include "kernels/cpu/stochastic_rounding.h"

// Row passes of ops.h on raw pointers. Arrays of the compute dtype are void*; strides and sizes are
// in elements. Optional arrays may be null.
namespace troupe::kernels {

// Index into the function tables.
enum Dtype { kFloat32 = 0, kBFloat16 = 1, kNumDtypes = 2 };

struct ConstRows {
  const void* data;
  int64_t stride;
};
struct Rows {
  void* data;
  int64_t stride;
};

struct NormArgs {
  int64_t rows, cols;
  float eps;
  float weight_offset;  // 1 for "unit offset" weights, else 0
  bool layer_norm;      // subtract the mean
};
struct NormForward {
  NormArgs norm;
  ConstRows x;
  const void* weight;
  const void* bias;  // optional
  Rows y;
  float* rstd;  // optional
  float* mean;  // optional
};
struct NormBackward {
  NormArgs norm;
  ConstRows dy, x;
  const void* weight;
  const float* rstd;
  const float* mean;  // layer_norm only
  Rows dx;
  bool accumulate;
  float* dweight;  // optional
  float* dbias;    // optional
};
struct NormKernels {
  void (*forward[kNumDtypes])(const NormForward& args);
  void (*backward[kNumDtypes])(const NormBackward& args);
};

// RMSNorm over `count` columns, of which `cols` are here (kernels/split_norm.h).
struct SplitNormArgs {
  int64_t rows, cols;
  float count;
  float eps, weight_offset;
  const void* weight;
  const float* squares;  // [rows], summed over all columns; not for sums
};
struct SplitNormSums {
  SplitNormArgs norm;
  ConstRows dy, x;  // without dy: of the squares of x
  float* sums;      // [rows]
};
struct SplitNormForward {
  SplitNormArgs norm;
  ConstRows x;
  Rows y;
};
struct SplitNormBackward {
  SplitNormArgs norm;
  ConstRows dy, x;
  const float* products;  // [rows], summed over all columns
  Rows dx;
  float* dweight;  // optional
};
struct SplitNormKernels {
  void (*sums[kNumDtypes])(const SplitNormSums& args);
  void (*forward[kNumDtypes])(const SplitNormForward& args);
  void (*backward[kNumDtypes])(const SplitNormBackward& args);
};

constexpr int64_t kMaxHeadDim = 1024;  // with qk-norm, which keeps a head on the stack

struct RotaryArgs {
  int64_t rows;
  int64_t q_heads, k_heads, head_dim;
  int64_t rotary_dim;  // of which so many turn
  bool qk_norm;        // where none do
  float eps, weight_offset;
  const int32_t* positions;  // [rows]
  const float* cos;          // [max_positions, rotary_dim / 2]
  const float* sin;
  const void* q_weight;  // [head_dim], qk_norm only
  const void* k_weight;
  int64_t rstd_stride;
};
struct RotaryForward {
  RotaryArgs rotary;
  Rows qkv;
  float* rstd;  // [rows, q_heads + k_heads], optional
};
struct RotaryBackward {
  RotaryArgs rotary;
  Rows dqkv;
  ConstRows qkv_pre;  // qk_norm only
  const float* rstd;
  float* dq_weight;  // optional
  float* dk_weight;
};
struct RotaryKernels {
  void (*forward[kNumDtypes])(const RotaryForward& args);
  void (*backward[kNumDtypes])(const RotaryBackward& args);
};

enum ActivationId {
  kSiluId,
  kGeluId,
  kGeluTanhId,
  kQuickGeluId,
  kReluId,
  kSquaredReluId,
  kSigmoidId,
  kClampedSwigluId
};

constexpr float kQuickGeluSlope = 1.702f;

// Of kClampedSwigluId.
constexpr float kSwigluSlope = 1.702f, kSwigluLimit = 7.0f;

struct ActivationForward {
  ActivationId kind;
  bool gated;
  int64_t rows, cols;  // of the output
  ConstRows x;
  Rows out;
};
struct ActivationBackward {
  ActivationId kind;
  bool gated;
  int64_t rows, cols;
  ConstRows dout, x;
  Rows dx;
  Rows out;  // optional
};
struct ActivationKernels {
  void (*forward[kNumDtypes])(const ActivationForward& args);
  void (*backward[kNumDtypes])(const ActivationBackward& args);
};

// kernels/xielu.h; alphas have the type of the rows.
struct XieluArgs {
  int64_t rows, cols;
  const void* alpha_p;
  const void* alpha_n;
  const float* beta;
  const float* eps;
  ConstRows x;
};
struct XieluForward {
  XieluArgs xielu;
  Rows out;
};
struct XieluBackward {
  XieluArgs xielu;
  ConstRows dout;
  Rows dx;
  Rows out;   // optional
  Rows sums;  // [rows, 2] float32, optional
};
struct XieluKernels {
  void (*forward[kNumDtypes])(const XieluForward& args);
  void (*backward[kNumDtypes])(const XieluBackward& args);
};

struct AdamWConstants {
  float grad_scale;
  float one_minus_beta1;
  float beta2, one_minus_beta2;
  float decay;                          // 1 - lr * weight_decay
  float step_size;                      // lr / (1 - beta1^t)
  float inverse_sqrt_bias_correction2;  // 1 / sqrt(1 - beta2^t)
  float eps;
};
struct OptimKernels {
  // One block of adamw_step; `compute` (bfloat16) may be null.
  void (*adamw)(const AdamWConstants& c, int64_t n, float* param, const float* grad, float* exp_avg,
                float* exp_avg_sq, void* compute);
  // The same where weights and moments are bfloat16, each rounded stochastically when it is written.
  void (*adamw_bfloat16)(const AdamWConstants& c, const RoundingStream& stream, int64_t n, void* param,
                         const float* grad, void* exp_avg, void* exp_avg_sq);
  // *sum += of the squares of x; sum lies where x does.
  void (*add_sum_of_squares)(const float* x, int64_t n, double* sum);
};

struct RowKernels {
  const NormKernels& norm;
  const RotaryKernels& rotary;
  const ActivationKernels& activation;
  const OptimKernels& optim;
  const SplitNormKernels& split_norm;
  const XieluKernels& xielu;
};

}  // namespace troupe::kernels
