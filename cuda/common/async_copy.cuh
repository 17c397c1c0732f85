// SPDX-License-Identifier: Apache-2.0
// cp.async: asynchronous copies from global to shared memory, from compute capability 8.0 on; before, plain copies.

#pragma once

#include "common/gpu.cuh"

namespace nerfkit {

// BYTES (4, 8 or 16) from global memory to an aligned address of shared memory; zeros if not `real`, and `from` is not
// read. LINE: L2 prefetches the 128 bytes around `from`, which other blocks will read.
template <int BYTES, bool LINE = false>
__device__ __forceinline__ void cp_async_zfill(unsigned to, const void* from, bool real) {
#if __CUDA_ARCH__ >= 800
  const int bytes = real ? BYTES : 0;
  if constexpr (LINE)
    asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(BYTES), "r"(bytes)
                 : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(BYTES), "r"(bytes)
                 : "memory");
#else
  using Bytes = Vec<unsigned, BYTES / 4>;
  *static_cast<Bytes*>(__cvta_shared_to_generic(to)) = real ? *static_cast<const Bytes*>(from) : Bytes{};
#endif
}
template <int BYTES>
__device__ __forceinline__ void cp_async_zfill(void* to, const void* from, bool real) {
  cp_async_zfill<BYTES>(shared_address(to), from, real);
}

// Prefetches the line around `from` into L2. It may still be written meanwhile: L2 is coherent.
__device__ __forceinline__ void prefetch_l2(const void* from) { asm volatile("prefetch.global.L2 [%0];" ::"l"(from)); }

// Closes a group of this thread's copies.
__device__ __forceinline__ void cp_async_commit() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until at most PENDING groups of this thread's copies are in flight.
template <int PENDING>
__device__ __forceinline__ void cp_async_wait() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
#endif
}

}  // namespace nerfkit
