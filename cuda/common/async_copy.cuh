// SPDX-License-Identifier: Apache-2.0
// cp.async: asynchronous copies from global to shared memory, from compute capability 8.0 on; before, plain copies.

#pragma once

#include "common/gpu.cuh"

namespace nerfkit {

// BYTES (4, 8 or 16) from global memory to an aligned address of shared memory; zeros if not `real`, and `from` is not
// read.
template <int BYTES>
__device__ __forceinline__ void cp_async_zfill(void* to, const void* from, bool real) {
#if __CUDA_ARCH__ >= 800
  const int bytes = real ? BYTES : 0;
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared_address(to)), "l"(from), "n"(BYTES),
               "r"(bytes)
               : "memory");
#else
  using Bytes = Vec<unsigned, BYTES / 4>;
  *static_cast<Bytes*>(to) = real ? *static_cast<const Bytes*>(from) : Bytes{};
#endif
}

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
