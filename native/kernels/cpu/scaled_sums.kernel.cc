// Sums by their columns' scales, rounded once.
#include "kernels/cpu/code_gemm_kernels.h"

namespace troupe::kernels::TROUPE_ISA {

namespace {

typedef float Lanes __attribute__((vector_size(kGemmLanes * 4), aligned(4), may_alias));
typedef uint32_t Bits __attribute__((vector_size(kGemmLanes * 4)));
typedef uint16_t Halves __attribute__((vector_size(kGemmLanes * 2), aligned(2), may_alias));

void floats(const float* sums, const float* scales, int64_t vectors, float* c, bool add) {
  for (int64_t i = 0; i < vectors * kGemmLanes; i += kGemmLanes) {
    const Lanes value =
        *reinterpret_cast<const Lanes*>(sums + i) * *reinterpret_cast<const Lanes*>(scales + i);
    Lanes* const out = reinterpret_cast<Lanes*>(c + i);
    *out = add ? *out + value : value;
  }
}

void bfloat16s(const float* sums, const float* scales, int64_t vectors, uint16_t* c, bool add) {
  for (int64_t i = 0; i < vectors * kGemmLanes; i += kGemmLanes) {
    Lanes value = *reinterpret_cast<const Lanes*>(sums + i) * *reinterpret_cast<const Lanes*>(scales + i);
    Halves* const out = reinterpret_cast<Halves*>(c + i);
    if (add) value += reinterpret_cast<Lanes>(__builtin_convertvector(*out, Bits) << 16);
    const Bits bits = reinterpret_cast<Bits>(value);
    // Ties to even; what is not a number stays so.
    const Bits rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    const Bits nan = (bits >> 16) | 0x40;
    *out = __builtin_convertvector(value == value ? rounded : nan, Halves);
  }
}

}  // namespace

extern const ScaleKernels scale_table;
const ScaleKernels scale_table = {floats, bfloat16s};

}  // namespace troupe::kernels::TROUPE_ISA
