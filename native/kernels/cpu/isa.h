// Instruction sets: which one this processor has, and tables of kernels for each.
#pragma once

// The instruction sets for which native/kernels/cpu/*.kernel.cc are compiled.
namespace troupe::kernels {

enum class Isa { kBase, kAvx2, kAvx512 };

// The best one that this processor has.
inline Isa best_isa() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    return Isa::kAvx512;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c") &&
      __builtin_cpu_supports("bmi2")) {
    return Isa::kAvx2;
  }
#endif
  return Isa::kBase;
}

}  // namespace troupe::kernels

// Declares the table `name` of each instruction set and returns the best one for this processor.
#if defined(__x86_64__)
#define TROUPE_DECLARE_TABLES(type, name) \
  namespace troupe::kernels::base {       \
  extern const type name;                 \
  }                                       \
  namespace troupe::kernels::avx2 {       \
  extern const type name;                 \
  }                                       \
  namespace troupe::kernels::avx512 {     \
  extern const type name;                 \
  }
#define TROUPE_PICK_TABLE(name) \
  (best_isa() == Isa::kAvx512 ? avx512::name : best_isa() == Isa::kAvx2 ? avx2::name : base::name)
#else
#define TROUPE_DECLARE_TABLES(type, name) \
  namespace troupe::kernels::base {       \
  extern const type name;                 \
  }
#define TROUPE_PICK_TABLE(name) (base::name)
#endif
