// Fragments of matrices of a warp (nvcuda::wmma): a lane holds 8 of the 256 numbers, and asks the others for
// theirs.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <type_traits>

#include "cuda_bf16.h"
#include "cuda_on_host/grid.h"

namespace nvcuda::wmma {

struct row_major {};
struct col_major {};
struct matrix_a {};
struct matrix_b {};
struct accumulator {};
enum layout_t { mem_row_major, mem_col_major };

inline constexpr int kSide = 16, kLanes = static_cast<int>(troupe::test::cuda_on_host::kWarpSize);
inline constexpr int kPerLane = kSide * kSide / kLanes;

// Number i of a lane is number i * kLanes + lane of the matrix, by rows: not those that lie side by side,
// which a lane may as well store and read alone.
template <typename Use, int kM, int kN, int kK, typename T, typename Layout = void>
struct fragment {
  static_assert(kM == kSide && kN == kSide && kK == kSide);
  T held[kPerLane];
};

// What CUDA asks of an address and of the distance between lines.
template <typename T>
void check_matrix(const T* from, unsigned line) {
  if (reinterpret_cast<uintptr_t>(from) % 32 != 0 || line * sizeof(T) % 16 != 0)
    throw std::logic_error("a matrix of a fragment is not on a boundary of 32 bytes, or its lines of 16");
}

template <typename T>
int place(int i, unsigned line, bool by_rows) {
  const int at = i * kLanes + static_cast<int>(troupe::test::cuda_on_host::lane());
  const int row = at / kSide, col = at % kSide, ld = static_cast<int>(line);
  return by_rows ? row * ld + col : col * ld + row;
}

template <typename Use, typename T, typename Layout>
void fill_fragment(fragment<Use, kSide, kSide, kSide, T, Layout>& f, T value) {
  for (T& number : f.held) number = value;
}

// Lanes wait for each other ahead of a load or a store. What others have stored is there only after a
// barrier.
template <typename Use, typename T, typename Layout>
void load_matrix_sync(fragment<Use, kSide, kSide, kSide, T, Layout>& f, const T* from, unsigned line) {
  check_matrix(from, line);
  troupe::test::cuda_on_host::wait_for_warp();
  for (int i = 0; i < kPerLane; ++i) f.held[i] = from[place<T>(i, line, std::is_same_v<Layout, row_major>)];
}

template <typename T>
void store_matrix_sync(T* to, const fragment<accumulator, kSide, kSide, kSide, T>& f, unsigned line,
                       layout_t layout) {
  check_matrix(to, line);
  troupe::test::cuda_on_host::wait_for_warp();
  for (int i = 0; i < kPerLane; ++i) to[place<T>(i, line, layout == mem_row_major)] = f.held[i];
}

// Products of bfloat16 are exact in float32; their sum runs along the depth.
template <typename Rows, typename Cols>
void mma_sync(fragment<accumulator, kSide, kSide, kSide, float>& d,
              const fragment<matrix_a, kSide, kSide, kSide, __nv_bfloat16, Rows>& a,
              const fragment<matrix_b, kSide, kSide, kSide, __nv_bfloat16, Cols>& b,
              const fragment<accumulator, kSide, kSide, kSide, float>& c) {
  struct Operands {
    const __nv_bfloat16 *a, *b;
  };
  const Operands own{a.held, b.held};
  const uint64_t* const all = troupe::test::cuda_on_host::exchange(reinterpret_cast<uintptr_t>(&own));
  const auto number = [&](const __nv_bfloat16* Operands::*operand, int row, int col) {
    const int at = row * kSide + col;
    return __bfloat162float((reinterpret_cast<const Operands*>(all[at % kLanes])->*operand)[at / kLanes]);
  };
  float sums[kPerLane];
  for (int i = 0; i < kPerLane; ++i) {
    const int at = i * kLanes + static_cast<int>(troupe::test::cuda_on_host::lane());
    sums[i] = c.held[i];
    for (int k = 0; k < kSide; ++k)
      sums[i] += number(&Operands::a, at / kSide, k) * number(&Operands::b, k, at % kSide);
  }
  troupe::test::cuda_on_host::wait_for_warp();  // others read this lane's
  for (int i = 0; i < kPerLane; ++i) d.held[i] = sums[i];
}

}  // namespace nvcuda::wmma
