// SPDX-License-Identifier: Apache-2.0
// For cuda.cu: element types, vector access, warp sums, launch sizes.

#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstdint>

#include "common/launch.h"

namespace nerfkit {

constexpr int THREADS = 256;  // of a block, where nothing else is said
constexpr unsigned FULL_MASK = 0xffffffffu;

// Calls f with a value of the element type.
template <class F>
void dispatch(DType dtype, const F& f) {
  switch (dtype) {
    case DType::f32:
      return f(float());
    case DType::f64:
      return f(double());
    case DType::f16:
      return f(__half());
    case DType::bf16:
      return f(__nv_bfloat16());
  }
}

template <class T, int V>
struct alignas(sizeof(T) * V) Vec {
  T v[V];
};

// Elements that one 16-byte access moves.
template <class T>
constexpr int VECTOR_WIDTH = 16 / int(sizeof(T));

template <class T, int V>
__device__ __forceinline__ void load(const T* from, acc_t<T> (&to)[V]) {
  const Vec<T, V> packed = *reinterpret_cast<const Vec<T, V>*>(from);
#pragma unroll
  for (int i = 0; i < V; ++i) to[i] = static_cast<acc_t<T>>(packed.v[i]);
}

template <class T, int V>
__device__ __forceinline__ void store(T* to, const acc_t<T> (&from)[V]) {
  Vec<T, V> packed;
#pragma unroll
  for (int i = 0; i < V; ++i) packed.v[i] = static_cast<T>(from[i]);
  *reinterpret_cast<Vec<T, V>*>(to) = packed;
}

// Shared memory by its 32-bit address, which takes one register and no conversion at each use.
__device__ __forceinline__ unsigned shared_address(const void* pointer) {
  return unsigned(__cvta_generic_to_shared(pointer));
}
// Sum over each group of `lanes` neighbouring lanes, a power of two; every lane gets it.
template <class A>
__device__ __forceinline__ A warp_sum(A value, int lanes) {
  for (int offset = lanes / 2; offset; offset /= 2) value += __shfl_xor_sync(FULL_MASK, value, offset);
  return value;
}

// Prefix sum over a group of `lanes` lanes, of which this is number `lane`: over the lower ones and this one.
template <class A>
__device__ __forceinline__ A warp_inclusive_sum(A value, int lane, int lanes) {
#pragma unroll
  for (int offset = 1; offset < lanes; offset *= 2) {
    const A other = __shfl_up_sync(FULL_MASK, value, offset, lanes);
    if (lane >= offset) value += other;
  }
  return value;
}

struct Gpu {
  int major;         // of the compute capability
  int processors;    // multiprocessors
  int shared_bytes;  // of shared memory that a block may have
};

inline Gpu current_gpu() {
  Gpu gpu;
  int device = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&gpu.major, cudaDevAttrComputeCapabilityMajor, device);
  cudaDeviceGetAttribute(&gpu.processors, cudaDevAttrMultiProcessorCount, device);
  cudaDeviceGetAttribute(&gpu.shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  return gpu;
}

// Allows a kernel as much dynamic shared memory as a block may have: not as much as this launch needs, for another
// thread may be about to launch it with more.
template <class Kernel>
void allow_shared(Kernel kernel, const Gpu& gpu) {
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, gpu.shared_bytes);
}

inline bool aligned(const void* pointer, size_t bytes) { return reinterpret_cast<uintptr_t>(pointer) % bytes == 0; }
inline unsigned blocks_for(int64_t work, int64_t per_block = THREADS) {
  return unsigned((work + per_block - 1) / per_block);
}
inline Status launched() { return static_cast<Status>(cudaGetLastError()); }

}  // namespace nerfkit
