// SPDX-License-Identifier: Apache-2.0
// mma.sync m16n8k16: sum [16, 8] += left [16, 16] right [16, 8] of half values, from compute capability 8.0 on. In the
// fragments lane 4 g + t holds, two half values per register, of
//   the left fragment   (g, 2t .. 2t + 1), (g + 8, 2t ..), (g, 2t + 8 ..), (g + 8, 2t + 8 ..);
//   the right fragment  (2t .. 2t + 1, g), (2t + 8 .., g);
//   the accumulators    (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1), float32.

#pragma once

#include "common/gpu.cuh"

namespace nerfkit {

constexpr int TENSOR_CORES_MAJOR = 8;  // the compute capability from which the functions below do something

template <class T>
__device__ __forceinline__ unsigned pack(float low, float high) {
  const Vec<T, 2> both{{T(low), T(high)}};
  return reinterpret_cast<const unsigned&>(both);
}

__device__ __forceinline__ void mma(__half, float (&sum)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3,
                                    unsigned b0, unsigned b1) {
#if __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
#endif
}

__device__ __forceinline__ void mma(__nv_bfloat16, float (&sum)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3,
                                    unsigned b0, unsigned b1) {
#if __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
#endif
}

// movmatrix: an 8 x 8 matrix of half values in the lanes' registers, (g, 2t), (g, 2t + 1) of lane 4 g + t, transposed.
__device__ __forceinline__ unsigned movmatrix_trans(unsigned values) {
  unsigned out = 0;
#if __CUDA_ARCH__ >= 750
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(values));
#endif
  return out;
}

// ldmatrix.x4: four 8 x 8 matrices of half values, one per register: lane i gives the address of row i % 8 of matrix
// i / 8, in shared memory. Lane 4 g + t gets (g, 2t), (g, 2t + 1), or transposed (2t, g), (2t + 1, g).
template <bool TRANSPOSED>
__device__ __forceinline__ void ldmatrix(unsigned address, unsigned (&to)[4]) {
#if __CUDA_ARCH__ >= 750
  if constexpr (TRANSPOSED)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address)
                 : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address)
                 : "memory");
#endif
}

template <bool TRANSPOSED>
__device__ __forceinline__ void ldmatrix(const void* row, unsigned (&to)[4]) {
  ldmatrix<TRANSPOSED>(shared_address(row), to);
}

}  // namespace nerfkit
