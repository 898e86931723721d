// Registers of the instruction set at hand. Only for *.kernel.cc: a wider vector than the processor's goes
// through memory.
#pragma once

namespace troupe::kernels::TROUPE_ISA {

// Floats in one of them.
#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

}  // namespace troupe::kernels::TROUPE_ISA
