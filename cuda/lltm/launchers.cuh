// SPDX-License-Identifier: Apache-2.0
// Launchers of the kernels that cuda.cu chooses from. Those that give a bool launch nothing and say false
// where a block has too little shared memory for the sizes. Pointers' rows are aligned to 16 bytes (bind.cpp).

#pragma once

#include "common/mma.cuh"
#include "lltm/args.h"

namespace nerfkit {

struct LltmLaunch {
  DType dtype;
  Gpu gpu;
  cudaStream_t stream;
};

Status launch_state16_forward(const LltmLaunch&, const LltmForward<void>&);
Status launch_state16_backward(const LltmLaunch&, const LltmBackward<void>&);
template <class T>  // float, __half or __nv_bfloat16
bool launch_mma16_forward(const LltmLaunch&, const LltmForward<void>&);
bool launch_mma16_backward(const LltmLaunch&, const LltmGateBackward<void>&);
void launch_generic_forward(const LltmLaunch&, const LltmForward<void>&);
void launch_generic_backward(const LltmLaunch&, const LltmGateBackward<void>&);

// What mma16 and generic save, in this order in the workspace; T is const on the way back.
template <class T>
struct SavedGates {
  T* activated;  // [N, 3H], gates after activation: input gate, output gate, candidate; null: nothing is saved
  T* c;          // [N, H], the cell state after each sample
  T* before;     // [N, H], the hidden state before each sample
};

template <class T>
SavedGates<T> saved_gates(T* workspace, const LltmShape& s) {
  const int64_t rows = s.n_samples * s.n_state;
  return workspace ? SavedGates<T>{workspace, workspace + 3 * rows, workspace + 4 * rows} : SavedGates<T>{};
}

// The longest length of the 8 rays g of a warp: lanes 4 g + t have the same.
__device__ __forceinline__ int longest_ray(int length) {
  for (int offset = 4; offset < 32; offset *= 2) length = max(length, __shfl_xor_sync(FULL_MASK, length, offset));
  return length;
}

}  // namespace nerfkit
