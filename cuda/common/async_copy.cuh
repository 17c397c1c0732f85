// SPDX-License-Identifier: Apache-2.0
// Copies from global to shared memory that arrive later, of compute capability 8.0 and up; before, they arrive at once.

#pragma once

#include "common/gpu.cuh"

namespace nerfkit {

// 4, 8 or 16 bytes to an address of shared memory, aligned; or zeros, and `from` is not read. If LINE, L2 gets all of
// the 128 bytes around `from`, which other blocks will ask for.
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

// Asks for the line around `from` to be in L2. What it holds need not be written yet: L2 is where writes are seen.
__device__ __forceinline__ void prefetch_l2(const void* from) { asm volatile("prefetch.global.L2 [%0];" ::"l"(from)); }

// Ends a group of this thread's copies.
__device__ __forceinline__ void cp_async_commit() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Until at most the LATEST groups of this thread's copies are on their way.
template <int LATEST>
__device__ __forceinline__ void cp_async_wait() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(LATEST) : "memory");
#endif
}

}  // namespace nerfkit
