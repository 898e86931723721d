// The choice of row kernels by instruction set.
#include "kernels/cpu_dispatch.h"

#include <algorithm>
#include <atomic>

#include "base/error.h"

TROUPE_DECLARE_TABLES(NormKernels, norm_table)
TROUPE_DECLARE_TABLES(RotaryKernels, rotary_table)
TROUPE_DECLARE_TABLES(ActivationKernels, activation_table)
TROUPE_DECLARE_TABLES(OptimKernels, optim_table)
TROUPE_DECLARE_TABLES(SplitNormKernels, split_norm_table)
TROUPE_DECLARE_TABLES(XieluKernels, xielu_table)

namespace troupe::kernels {

namespace {

const RowKernels base_kernels{base::norm_table,  base::rotary_table,     base::activation_table,
                              base::optim_table, base::split_norm_table, base::xielu_table};
#if defined(__x86_64__)
const RowKernels avx2_kernels{avx2::norm_table,  avx2::rotary_table,     avx2::activation_table,
                              avx2::optim_table, avx2::split_norm_table, avx2::xielu_table};
const RowKernels avx512_kernels{avx512::norm_table,  avx512::rotary_table,     avx512::activation_table,
                                avx512::optim_table, avx512::split_norm_table, avx512::xielu_table};
#endif

const RowKernels* kernels_of(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::kAvx512) return &avx512_kernels;
  if (isa == Isa::kAvx2) return &avx2_kernels;
#endif
  return &base_kernels;
}

std::atomic<const RowKernels*>& current() {
  static std::atomic<const RowKernels*> kernels{kernels_of(best_isa())};
  return kernels;
}

}  // namespace

const RowKernels& row_kernels() {
  return *current().load(std::memory_order_relaxed);
}

std::vector<Isa> supported_isas() {
  std::vector<Isa> isas{Isa::kBase};
  if (best_isa() >= Isa::kAvx2) isas.push_back(Isa::kAvx2);
  if (best_isa() >= Isa::kAvx512) isas.push_back(Isa::kAvx512);
  return isas;
}

void select_isa(Isa isa) {
  const std::vector<Isa> isas = supported_isas();
  require(std::find(isas.begin(), isas.end(), isa) != isas.end(), ErrorCode::kInvalidArgument,
          "[kernels] instruction set ", static_cast<int>(isa), " does not run on this processor");
  current().store(kernels_of(isa), std::memory_order_relaxed);
}

}  // namespace troupe::kernels
