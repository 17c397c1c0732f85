// SPDX-License-Identifier: Apache-2.0
// Kernels that are launched while the one before them still runs (programmatic dependent launch, from compute
// capability 9.0 on): their blocks are there, with addresses worked out, when it is done.

#pragma once

#include "common/gpu.cuh"

namespace nerfkit {

// Once all blocks of this kernel run, those of the next may come, if it was launched early, and wait beside them.
__device__ __forceinline__ void pdl_trigger() {
#if __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}

// Until the kernels before this one are done and what they wrote is seen. A kernel that is launched early reads and
// writes nothing before it, but may ask for lines.
__device__ __forceinline__ void pdl_wait() {
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
}

// Whether `kernel` is compiled so that it waits itself for the one before, and graphs of this driver can say so.
template <class Kernel>
bool supports_pdl(Kernel* kernel) {
  constexpr int PTX = 90, DRIVER = 12030;
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
