// What multiplies packed operands of one dtype, and the form in which it takes the left one.
#pragma once

#include <type_traits>

#include "kernels/gemm_panels.h"

namespace troupe::ops::panels {

// float32, or bfloat16 by kernels of ours; where they are missing only steps() has a meaning.
class Multiplier {
 public:
  explicit Multiplier(at::ScalarType dtype)
      : values_per_word_(dtype == at::kBFloat16 ? 2 : 1),
        bfloat16_(dtype == at::kBFloat16 ? kernels::bfloat16_gemm_kernels() : nullptr) {}

  int64_t rows() const { return bfloat16_ != nullptr ? bfloat16_->rows : kGemmRows; }
  // Words for k values of a row or column.
  int64_t steps(int64_t k) const {
    return round_up((k + values_per_word_ - 1) / values_per_word_,
                    bfloat16_ != nullptr ? bfloat16_->group : 1);
  }

  // Whether the left operand is read as it lies.
  bool reads_rows() const { return values_per_word_ == 1; }
  // A block of up to rows() rows of the left operand; steps [s0, s1) of k.
  void pack_rows(const Source& a, int64_t first, int64_t there, int64_t k, int64_t s0, int64_t s1,
                 Word* target) const {
    if (bfloat16_ == nullptr || bfloat16_->pack_rows == nullptr) {
      return a.rows(first, there, k, s0, s1, kGemmRows, target);
    }
    bfloat16_->pack_rows(a.at(first, 0), a.row_bytes(), there, s0, s1 - s0, k, target);
  }
  // Whether it takes rows of float32 as if they were rounded to bfloat16.
  bool packs_floats() const { return bfloat16_ != nullptr && bfloat16_->pack_floats != nullptr; }
  void pack_floats(const float* a, int64_t ld, int64_t there, int64_t k, int64_t s0, int64_t s1,
                   Word* target) const {
    bfloat16_->pack_floats(a, ld, there, s0, s1 - s0, k, target);
  }
  void pack_columns(const Source& a, int64_t first, int64_t there, int64_t k, int64_t s0, int64_t s1,
                    Word* target) const {
    if (bfloat16_ == nullptr || bfloat16_->pack_columns == nullptr) {
      return a.columns(first, there, k, s0, s1, kGemmRows, target);
    }
    bfloat16_->pack_columns(a.at(0, first), a.row_bytes(), there, s0, s1 - s0, k, target);
  }

  template <typename Out>
  Kernel<Out> kernel() const {
    if constexpr (std::is_same_v<Out, uint16_t>) {
      return bfloat16_->round;
    } else {
      return bfloat16_ != nullptr ? bfloat16_->tile : kernels::gemm_kernels().tile;
    }
  }

  // Around the tiles of a thread.
  class Use {
   public:
    explicit Use(const Multiplier& multiplier) : kernels_(multiplier.bfloat16_) {
      if (kernels_ != nullptr && kernels_->enter != nullptr) kernels_->enter();
    }
    ~Use() {
      if (kernels_ != nullptr && kernels_->leave != nullptr) kernels_->leave();
    }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    const kernels::Bfloat16GemmKernels* kernels_;
  };

 private:
  int64_t values_per_word_;
  const kernels::Bfloat16GemmKernels* bfloat16_;
};

}  // namespace troupe::ops::panels
