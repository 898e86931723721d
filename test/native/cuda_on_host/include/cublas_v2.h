// The one function of cuBLAS that kernels/cuda calls.
#pragma once

using cublasHandle_t = void*;
enum cublasOperation_t { CUBLAS_OP_N, CUBLAS_OP_T };
enum cudaDataType_t { CUDA_R_32F, CUDA_R_16BF };
enum cublasStatus_t { CUBLAS_STATUS_SUCCESS, CUBLAS_STATUS_INVALID_VALUE };
enum cublasComputeType_t { CUBLAS_COMPUTE_32F };
enum cublasGemmAlgo_t { CUBLAS_GEMM_DEFAULT };

inline const char* cublasGetStatusString(cublasStatus_t status) {
  return status == CUBLAS_STATUS_SUCCESS ? "success" : "an unsupported value or parameter";
}

// c [m, n] = alpha op(a) [m, k] op(b) [k, n] + beta c, of columns that are adjacent; c in float32.
cublasStatus_t cublasGemmEx(cublasHandle_t, cublasOperation_t op_a, cublasOperation_t op_b, int m, int n,
                            int k, const void* alpha, const void* a, cudaDataType_t type_a, int lda,
                            const void* b, cudaDataType_t type_b, int ldb, const void* beta, void* c,
                            cudaDataType_t type_c, int ldc, cublasComputeType_t, cublasGemmAlgo_t);
