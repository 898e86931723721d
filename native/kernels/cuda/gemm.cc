// cuBLAS through LibTorch's handle.
#include "kernels/cuda/gemm.h"

#include <ATen/cuda/CUDAContext.h>
#include <cublas_v2.h>

#include <limits>

#include "base/error.h"

namespace troupe::kernels::cuda {

namespace {

// How cuBLAS, which thinks in columns, sees a row-major matrix or the transposed view of one.
struct Operand {
  cublasOperation_t transpose;
  int64_t leading;
};

Operand operand(const char* name, const at::Tensor& x) {
  if (x.stride(1) == 1 || x.size(1) == 1) return {CUBLAS_OP_N, std::max(x.stride(0), x.size(1))};
  require(x.stride(0) == 1 || x.size(0) == 1, ErrorCode::kInternal, "[gemm] expected ", name,
          " with adjacent columns or rows but got strides ", x.strides());
  return {CUBLAS_OP_T, std::max(x.stride(1), x.size(0))};
}

}  // namespace

void gemm(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out, bool accumulate) {
  const int64_t m = a.size(0), k = a.size(1), n = b.size(1);
  require(b.size(0) == k && out.size(0) == m && out.size(1) == n && out.stride(1) == 1 &&
              out.scalar_type() == at::kFloat && a.scalar_type() == b.scalar_type(),
          ErrorCode::kInternal, "[gemm] cannot multiply ", a.sizes(), " ", a.scalar_type(), " by ", b.sizes(),
          " ", b.scalar_type(), " into ", out.sizes(), " ", out.scalar_type());
  const Operand left = operand("a", a), right = operand("b", b);
  if (m == 0 || n == 0) return;
  const int64_t leading = std::max(out.stride(0), n);
  for (const int64_t size : {m, n, k, left.leading, right.leading, leading}) {
    require(size <= std::numeric_limits<int>::max(), ErrorCode::kInternal, "[gemm] a size of ", size,
            " is beyond cuBLAS");
  }
  const auto integer = [](int64_t size) { return static_cast<int>(size); };
  const cudaDataType_t type = a.scalar_type() == at::kBFloat16 ? CUDA_R_16BF : CUDA_R_32F;
  const float one = 1.0f, beta = accumulate ? 1.0f : 0.0f;
  // Row-major out = a b is column-major out^T = b^T a^T. The handle brings LibTorch's stream and workspace.
  const cublasStatus_t status =
      cublasGemmEx(at::cuda::getCurrentCUDABlasHandle(), right.transpose, left.transpose, integer(n),
                   integer(m), integer(k), &one, b.const_data_ptr(), type, integer(right.leading),
                   a.const_data_ptr(), type, integer(left.leading), &beta, out.mutable_data_ptr(), CUDA_R_32F,
                   integer(leading), CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
  require(status == CUBLAS_STATUS_SUCCESS, ErrorCode::kInternal, "[gemm] cuBLAS refused [", m, ", ", k,
          "] x [", k, ", ", n, "]: ", cublasGetStatusString(status));
}

}  // namespace troupe::kernels::cuda
