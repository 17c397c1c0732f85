// SPDX-License-Identifier: Apache-2.0
// How the values of a step come to the kernels of lltm_few.cuh, in two ways. float32 is copied to shared memory some
// steps ahead. Half types, which are too short for such copies, are read into registers a step or two before they
// count, from L2: lines of the input are asked for ahead, and what the forward pass wrote for few rays is there.

#pragma once

#include <type_traits>

#include "common/async_copy.cuh"
#include "lltm/large_state.cuh"

namespace nerfkit {
namespace {

template <class T>
constexpr bool FEW_COPIES = sizeof(T) == 4;
constexpr int FEW_INPUTS = 8, FEW_SAMPLES = 4;  // buffers of steps that are on their way, forward and backward
constexpr int FEW_LINES = 8;                    // steps that a line is asked for ahead

// ---- forward: the input of all rays of a block ----
//
// start() and end() are for one step after the other, AHEAD of the one that counts; start_first() calls both for the
// first ones. EARLY: start() comes before a step's products, which give reads the time to arrive. Copies have several
// steps for it, and come after the products that the next state waits for.

// What a thread brings of every step's input.
template <class T, int BLOCK, int RAYS, int I>
struct InputShare {
  static constexpr int COUNT = (RAYS * I + BLOCK - 1) / BLOCK;
  int n_input;
  const T* from[COUNT];  // of the step that is started next
  int length[COUNT];     // of the value's ray; 0 of a column that is not there

  __device__ __forceinline__ InputShare(const LltmArrays<T>& a, const RowOfBlock& own) : n_input(a.shape.n_input) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      const int column = place(i) % I, ray = place(i) / I % RAYS;
      const int64_t ray_first = __shfl_sync(FULL_MASK, own.first, ray);  // lane `ray` has that ray
      const int ray_length = __shfl_sync(FULL_MASK, own.length, ray);
      from[i] = a.input + ray_first * n_input + column, length[i] = column < n_input && is_there(i) ? ray_length : 0;
    }
  }
  static __device__ __forceinline__ int place(int i) { return threadIdx.x + i * BLOCK; }  // in a buffer
  static __device__ __forceinline__ bool is_there(int i) { return place(i) < RAYS * I; }
};

template <int BLOCK, int RAYS, int I>
class CopiedInputs {
 public:
  static constexpr int AHEAD = FEW_INPUTS - 1;
  static constexpr bool EARLY = false;
  using Buffers = float[FEW_INPUTS][RAYS * I];

  __device__ __forceinline__ CopiedInputs(const LltmArrays<float>& a, const RowOfBlock& own, Buffers& buffers)
      : buffers_(buffers), share_(a, own) {}

  __device__ __forceinline__ void start_first() {
#pragma unroll 1
    for (int step = 0; step < AHEAD; ++step) start(step);
  }
  __device__ __forceinline__ void start(int step) {
    float* to = buffers_[unsigned(step) % FEW_INPUTS];
#pragma unroll
    for (int i = 0; i < Share::COUNT; ++i) {
      if (share_.is_there(i)) cp_async_zfill<4>(to + share_.place(i), share_.from[i], step < share_.length[i]);
      share_.from[i] += share_.n_input;
    }
    cp_async_commit();
  }
  __device__ __forceinline__ void end(int) const {}

  // Until this thread's copies of step 0 have arrived; those of the next step. Others see them after a barrier.
  __device__ __forceinline__ void await_first() const { cp_async_wait<AHEAD - 1>(); }
  __device__ __forceinline__ void await_next() const { cp_async_wait<AHEAD - 2>(); }
  __device__ __forceinline__ const float* of(int step) const { return buffers_[unsigned(step) % FEW_INPUTS]; }

 private:
  using Share = InputShare<float, BLOCK, RAYS, I>;
  Buffers& buffers_;
  Share share_;
};

template <class T, int BLOCK, int RAYS, int I>
class ReadInputs {
 public:
  static constexpr int AHEAD = 2;
  static constexpr bool EARLY = true;
  using Buffers = float[FEW_INPUTS][RAYS * I];

  __device__ __forceinline__ ReadInputs(const LltmArrays<T>& a, const RowOfBlock& own, Buffers& buffers)
      : buffers_(buffers), share_(a, own) {}

  __device__ __forceinline__ void start_first() {
#pragma unroll
    for (int i = 0; i < Share::COUNT; ++i)
      for (int step = AHEAD; step < min(FEW_LINES, share_.length[i]); ++step)
        prefetch_l2(share_.from[i] + step * share_.n_input);
#pragma unroll 1
    for (int step = 0; step < AHEAD; ++step) start(step), end(step);
  }
  __device__ __forceinline__ void start(int step) {
#pragma unroll
    for (int i = 0; i < Share::COUNT; ++i) {
      read_[i] = step < share_.length[i] ? *share_.from[i] : T(0.f);
      if (step + FEW_LINES < share_.length[i]) prefetch_l2(share_.from[i] + FEW_LINES * share_.n_input);
      share_.from[i] += share_.n_input;
    }
  }
  __device__ __forceinline__ void end(int step) {
    float* to = buffers_[unsigned(step) % FEW_INPUTS];
#pragma unroll
    for (int i = 0; i < Share::COUNT; ++i)
      if (share_.is_there(i)) to[share_.place(i)] = float(read_[i]);
  }

  __device__ __forceinline__ void await_first() const {}
  __device__ __forceinline__ void await_next() const {}
  __device__ __forceinline__ const float* of(int step) const { return buffers_[unsigned(step) % FEW_INPUTS]; }

 private:
  using Share = InputShare<T, BLOCK, RAYS, I>;
  Buffers& buffers_;
  Share share_;
  T read_[Share::COUNT];
};

template <class T, int BLOCK, int RAYS, int I>
using FewInputs = std::conditional_t<FEW_COPIES<T>, CopiedInputs<BLOCK, RAYS, I>, ReadInputs<T, BLOCK, RAYS, I>>;

// ---- backward: the samples of a thread's own unit ----
//
// start() asks for those of one step after the other, or for zeros, AHEAD steps before take() gives them.

constexpr int FEW_VALUES = 5;  // of a sample: gates i, o and g, c, gradient of h

template <int BLOCK>
class CopiedSamples {
 public:
  static constexpr int AHEAD = FEW_SAMPLES - 1;
  using Buffers = float[FEW_SAMPLES][FEW_VALUES][BLOCK];

  __device__ __forceinline__ explicit CopiedSamples(Buffers& buffers) : buffers_(buffers) {}

  __device__ __forceinline__ void start(int step, const float* const (&from)[FEW_VALUES], bool real) {
#pragma unroll
    for (int i = 0; i < FEW_VALUES; ++i) cp_async_zfill<4>(place(step, i), from[i], real);
    cp_async_commit();
  }
  __device__ __forceinline__ void take(int step, float (&to)[FEW_VALUES]) const {
    cp_async_wait<AHEAD - 1>();
#pragma unroll
    for (int i = 0; i < FEW_VALUES; ++i) to[i] = *place(step, i);
  }

 private:
  Buffers& buffers_;

  __device__ __forceinline__ float* place(int step, int i) const {
    return &buffers_[unsigned(step) % FEW_SAMPLES][i][threadIdx.x];
  }
};

template <class T>
class ReadSamples {
 public:
  static constexpr int AHEAD = 1;
  struct Buffers {};  // none

  __device__ __forceinline__ explicit ReadSamples(Buffers&) {}

  __device__ __forceinline__ void start(int, const T* const (&from)[FEW_VALUES], bool real) {
#pragma unroll
    for (int i = 0; i < FEW_VALUES; ++i) read_[i] = real ? *from[i] : T(0.f);
  }
  __device__ __forceinline__ void take(int, float (&to)[FEW_VALUES]) const {
#pragma unroll
    for (int i = 0; i < FEW_VALUES; ++i) to[i] = float(read_[i]);
  }

 private:
  T read_[FEW_VALUES];
};

template <class T, int BLOCK>
using FewSamples = std::conditional_t<FEW_COPIES<T>, CopiedSamples<BLOCK>, ReadSamples<T>>;

}  // namespace
}  // namespace nerfkit
