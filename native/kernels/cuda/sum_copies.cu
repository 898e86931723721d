// Sums of rows that were copied for several segments.
#include "kernels/cuda/attention.h"
#include "kernels/cuda/device.cuh"

namespace troupe::kernels::cuda {

namespace {

constexpr int64_t kMaxThreads = 256;

// One block per row of the result.
__global__ void sum_copies_kernel(ConstRows copies, const int32_t* __restrict__ first,
                                  const int32_t* __restrict__ source, int64_t cols, Rows out, bool aligned) {
  const int64_t row = blockIdx.x;
  const int32_t begin = first[row], end = first[row + 1];
  BFloat16* target = row_of<BFloat16>(out, row);
  for (int64_t col = static_cast<int64_t>(threadIdx.x) * kPack; col < cols;
       col += static_cast<int64_t>(blockDim.x) * kPack) {
    Pack sum{};
    for (int32_t i = begin; i < end; ++i) {
      const Pack part = load_pack(row_of<BFloat16>(copies, source[i]) + col, cols - col, aligned);
#pragma unroll
      for (int k = 0; k < kPack; ++k) sum.v[k] += part.v[k];
    }
    store_pack(target + col, sum, cols - col, aligned);
  }
}

}  // namespace

void sum_copies(const at::Tensor& copies, const at::Tensor& first, const at::Tensor& source,
                const at::Tensor& out) {
  const int64_t rows = out.size(0), cols = out.size(1);
  if (rows == 0 || cols == 0) return;
  const bool aligned = aligned_rows<BFloat16>(copies.const_data_ptr(), copies.stride(0)) &&
                       aligned_rows<BFloat16>(out.const_data_ptr(), out.stride(0));
  launch_kernel(sum_copies_kernel, static_cast<unsigned>(rows), row_threads(cols, kMaxThreads),
                {copies.const_data_ptr(), copies.stride(0)}, first.const_data_ptr<int32_t>(),
                source.const_data_ptr<int32_t>(), cols, {out.mutable_data_ptr(), out.stride(0)}, aligned);
  check_launch("sum_copies");
}

}  // namespace troupe::kernels::cuda
