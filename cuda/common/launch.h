// SPDX-License-Identifier: Apache-2.0
// What bindings and kernels share. No torch header, so that kernels compile in a second.
//
// Every op has launchers of one signature for both devices: cpu.cpp and cuda.cu define the same functions, but for the
// few that only one device has (lltm_gates_bwd, lltm_is_state16, lltm_cell_small).
// bind.cpp, compiled once for each library, checks, allocates and calls them.

#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define HD __host__ __device__ __forceinline__
#else
#define HD inline __attribute__((always_inline))
#endif

namespace nerfkit {

enum class DType : int { f32, f64, f16, bf16 };

using Stream = void*;  // a cudaStream_t; unused on the CPU
using Status = int;    // a cudaError_t; 0 is success

const char* status_text(Status status);

// The type of accumulators: half types are computed in float32.
template <class T>
struct Accumulate {
  using type = float;
};
template <>
struct Accumulate<double> {
  using type = double;
};
template <class T>
using acc_t = typename Accumulate<T>::type;

}  // namespace nerfkit
