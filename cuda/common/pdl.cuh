// SPDX-License-Identifier: Apache-2.0
// Programmatic dependent launch (PDL), from compute capability 9.0 on: a kernel is launched while the one before it
// still runs, so that its blocks are resident, with addresses computed, when it ends.

#pragma once

#include "common/gpu.cuh"

namespace nerfkit {

// Lets the blocks of the next kernel, if it was launched by pdl_launch, become resident once all blocks of this one
// run.
__device__ __forceinline__ void pdl_trigger() {
#if __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}

// Waits until the kernels before this one have ended and their writes are visible. A kernel launched by pdl_launch
// reads and writes no memory before it, but may prefetch.
__device__ __forceinline__ void pdl_wait() {
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
}

// Whether `kernel` is compiled with pdl_wait, and the driver captures such launches in graphs.
template <class Kernel>
bool supports_pdl(Kernel* kernel) {
  constexpr int PTX = 90, DRIVER = 12030;  // compute capability 9.0, CUDA 12.3
  cudaFuncAttributes compiled;
  int driver = 0;
  return cudaDriverGetVersion(&driver) == cudaSuccess && driver >= DRIVER &&
         cudaFuncGetAttributes(&compiled, kernel) == cudaSuccess && compiled.ptxVersion >= PTX;
}

// Launches a kernel that calls pdl_wait() while the kernel before it may still run.
template <class... Parameters, class... Arguments>
void pdl_launch(void (*kernel)(Parameters...), dim3 blocks, dim3 threads, size_t shared, cudaStream_t stream,
                const Arguments&... arguments) {
  cudaLaunchAttribute early{cudaLaunchAttributeProgrammaticStreamSerialization};
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{blocks, threads, shared, stream};
  config.attrs = &early, config.numAttrs = supports_pdl(kernel);
  cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...);
}

}  // namespace nerfkit
