// The directions in which Muon moves matrices.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>

#include "optim/adamw.h"

// Muon (Jordan et al. 2024, kellerjordan.github.io/posts/muon; with weight decay and a scale by shape Liu et
// al. 2025, arXiv:2502.16982): momentum as a moving average of gradients, whose singular values a
// Newton-Schulz iteration brings near one.
namespace troupe {

// Coefficients of the iteration's polynomials, by the names of NVIDIA's emerging_optimizers (Megatron's and
// so verl's). Behind its last one a set begins again, or (kPolarExpress, kCans, kDeepSeekV4) repeats it; kAol
// ends. kCans and kAol leave margins that theirs do not: [Note: margins of coefficients].
enum class NewtonSchulz {
  kSimple,        // Jordan's; torch.optim.Muon's
  kQuintic,       // Cesista's, leloykun.github.io/ponder/muon-opt-coeffs
  kPolarExpress,  // Amsel et al. 2025, arXiv:2505.16932
  kCans,          // Grishina et al. 2025, arXiv:2506.10935
  kAol,           // Boissin et al., flash-newton-schulz
  kDeepSeekV4     // the first eight steep, then two that converge
};
// simple | quintic | polar_express | cans | aol | deepseekv4; kInvalidArgument for other names.
NewtonSchulz parse_newton_schulz(const std::string& name);

// Of a step of a matrix [out, in]: sqrt(max(out, in)), with which the root mean square of its elements does
// not depend on the shape; sqrt(out / in); sqrt(max(1, out / in)).
enum class MuonScale { kSpectral, kUnitRmsNorm, kShapeScaling };
// spectral | unit_rms_norm | shape_scaling; kInvalidArgument for other names.
MuonScale parse_muon_scale(const std::string& name);

// Defaults are Megatron's.
struct MuonOptions {
  double momentum = 0.95;
  bool nesterov = false;
  MuonScale scale = MuonScale::kSpectral;
  double extra_scale = 1;  // beside it
  NewtonSchulz coefficients = NewtonSchulz::kQuintic;
  int64_t iterations = 5;
  bool bfloat16 = true;  // products of the iteration; false: float32
};
// kInvalidArgument, naming the option; also for iterations that end among polynomials that have begun again:
// the first ones take singular values away from one, that of kAol even below zero.
void validate(const MuonOptions& options);

// The optimiser of an engine: AdamW on all parameters, or on those that are no matrices of linear layers.
struct OptimizerOptions : AdamWOptions {
  std::optional<MuonOptions> muon;
};

// [m, n] float32 of any strides -> U S' V^T of its singular value decomposition U S V^T, with S' near one;
// zeros of zeros. Products are of the shorter side: 4 m^2 n + 2 m^3 operations for each iteration, m <= n; on
// a CPU of those of a symmetric product (half of the first term, the second) up to 3/8 are left out.
at::Tensor orthogonalized(const at::Tensor& matrix, const MuonOptions& options);

// By which orthogonalized() of a matrix [out, in] is multiplied.
double muon_scale(int64_t out, int64_t in, const MuonOptions& options);

}  // namespace troupe
