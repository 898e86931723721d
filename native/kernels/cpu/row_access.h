// Rows of typed numbers. Only for *.kernel.cc, as vector_math.h.
#pragma once

#include "kernels/cpu/row_kernels.h"
#include "kernels/cpu/vector_math.h"

namespace troupe::kernels::TROUPE_ISA {

template <typename T>
TROUPE_INLINE const T* row_of(const ConstRows& rows, int64_t r) {
  return static_cast<const T*>(rows.data) + r * rows.stride;
}
template <typename T>
TROUPE_INLINE T* row_of(const Rows& rows, int64_t r) {
  return static_cast<T*>(rows.data) + r * rows.stride;
}

}  // namespace troupe::kernels::TROUPE_ISA
