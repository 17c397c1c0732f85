// SPDX-License-Identifier: Apache-2.0
// The last stage of a reduction over blocks: their partial sums are added in a fixed order, so that the result is the
// same every time.

#pragma once

#include "common/pdl.cuh"

namespace nerfkit {

// The gradients of a depthwise convolution's weight and bias. A block has SUMS results, neighbours in memory; thread
// (i, j) adds every THREADS / SUMS-th partial sum of result j. partials is not __restrict__: the kernel before may
// still write it after the launch, so no load may move above pdl_wait or go through the non-coherent cache.
template <class T, int SUMS>
__global__ void __launch_bounds__(THREADS)
    reduce_partials(const acc_t<T>* partials,  // [n_partials, channels, taps + 1]
                    T* grad_weight,            // [channels, taps]
                    T* grad_bias,              // [channels]
                    int n_partials, int64_t channels, int taps) {
  using A = acc_t<T>;
  static_assert(SUMS <= 32, "each warp has all results");
  constexpr int STEP = THREADS / SUMS, UNROLL = 8;  // between a thread's partial sums; loads in flight
  constexpr int WARPS = THREADS / 32;
  __shared__ A warp_sums[WARPS][SUMS];
  const int64_t sums = channels * (taps + 1), i = int64_t(blockIdx.x) * SUMS + threadIdx.x % SUMS;
  const int64_t channel = i / (taps + 1);
  T* const to = i % (taps + 1) < taps ? grad_weight + i - channel : grad_bias + channel;
  const int first = threadIdx.x / SUMS, own = i < sums ? (n_partials - first + STEP - 1) / STEP : 0;
  const A* from = partials + first * sums + i;
  pdl_trigger();
  pdl_wait();
  A sum = 0;
#pragma unroll 1
  for (int n = 0; n < own; n += UNROLL) {
    A values[UNROLL];
#pragma unroll
    for (int j = 0; j < UNROLL; ++j, from += STEP * sums) values[j] = n + j < own ? *from : A(0);
#pragma unroll
    for (int j = 0; j < UNROLL; ++j) sum += values[j];
  }
  for (int offset = SUMS; offset < 32; offset *= 2) sum += __shfl_xor_sync(FULL_MASK, sum, offset);
  if (threadIdx.x % 32 < SUMS) warp_sums[threadIdx.x * WARPS / THREADS][threadIdx.x % 32] = sum;
  __syncthreads();
  if (threadIdx.x >= SUMS || i >= sums) return;
  for (int warp = 1; warp < WARPS; ++warp) sum += warp_sums[warp][threadIdx.x];
  *to = T(sum);
}

// Call it directly after the launch of the kernel that writes partials: with PDL it starts while that one still runs.
template <class T>
void launch_reduce_partials(const void* partials, void* grad_weight, void* grad_bias, int n_partials, int64_t channels,
                            int taps, Stream stream) {
  // Of few partial sums a block reduces 32 results: the fewer blocks fit beside the kernel before, and wait. Of many it
  // reduces 8, a sector of 32 bytes.
  constexpr int FEW = 128, MANY_RESULTS = 32, FEW_RESULTS = 8;
  const bool few = n_partials <= FEW;
  pdl_launch(few ? reduce_partials<T, MANY_RESULTS> : reduce_partials<T, FEW_RESULTS>,
             blocks_for(channels * (taps + 1), few ? MANY_RESULTS : FEW_RESULTS), THREADS, 0, (cudaStream_t)stream,
             (const acc_t<T>*)partials, (T*)grad_weight, (T*)grad_bias, n_partials, channels, taps);
}

}  // namespace nerfkit
