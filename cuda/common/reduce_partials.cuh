// SPDX-License-Identifier: Apache-2.0
// The last stage of a reduction: every block wrote its sums, which are now added in their order, so that the result is
// the same every time.

#pragma once

#include "common/pdl.cuh"

namespace nerfkit {

// partials [parts, channels, taps + 1] -> grad_weight [channels, taps] and grad_bias [channels]. A block has SUMS of
// them, neighbours in memory. partials is not __restrict__: it changes after the launch, so that no load of it may move
// up, or past the cache that is coherent.
template <class T, int SUMS>
__global__ void __launch_bounds__(THREADS)
    reduce_partials(const acc_t<T>* partials, T* grad_weight, T* grad_bias, int parts, int64_t channels, int taps) {
  using A = acc_t<T>;
  static_assert(SUMS <= 32, "a warp has all of them");
  constexpr int APART = THREADS / SUMS, TOGETHER = 8;  // parts of a thread; loads on their way together
  constexpr int WARPS = THREADS / 32;
  __shared__ A of_warp[WARPS][SUMS];
  const int64_t sums = channels * (taps + 1), i = int64_t(blockIdx.x) * SUMS + threadIdx.x % SUMS;
  const int64_t channel = i / (taps + 1);
  T* const to = i % (taps + 1) < taps ? grad_weight + i - channel : grad_bias + channel;
  const int first = threadIdx.x / SUMS, own = i < sums ? (parts - first + APART - 1) / APART : 0;
  const A* from = partials + first * sums + i;
  pdl_trigger();
  pdl_wait();
  A sum = 0;
#pragma unroll 1
  for (int n = 0; n < own; n += TOGETHER) {
    A values[TOGETHER];
#pragma unroll
    for (int j = 0; j < TOGETHER; ++j, from += APART * sums) values[j] = n + j < own ? *from : A(0);
#pragma unroll
    for (int j = 0; j < TOGETHER; ++j) sum += values[j];
  }
  for (int apart = SUMS; apart < 32; apart *= 2) sum += __shfl_xor_sync(FULL_MASK, sum, apart);
  if (threadIdx.x % 32 < SUMS) of_warp[threadIdx.x * WARPS / THREADS][threadIdx.x % 32] = sum;
  __syncthreads();
  if (threadIdx.x >= SUMS || i >= sums) return;
  for (int warp = 1; warp < WARPS; ++warp) sum += of_warp[warp][threadIdx.x];
  *to = T(sum);
}

// Directly after the kernel that wrote the sums, if there are any: it is launched while that one still runs.
template <class T>
void launch_reduce_partials(const void* partials, void* grad_weight, void* grad_bias, int parts, int64_t channels,
                            int taps, Stream stream) {
  constexpr int FEW_PARTS = 128, SUMS = 32, LEAST = 8;  // LEAST: 32 bytes are the least that is read at once
  const bool few =
      parts <= FEW_PARTS;  // with more sums there are fewer blocks: all fit beside the kernel before, and wait
  pdl_launch(few ? reduce_partials<T, SUMS> : reduce_partials<T, LEAST>,
             blocks_for(channels * (taps + 1), few ? SUMS : LEAST), THREADS, 0, (cudaStream_t)stream,
             (const acc_t<T>*)partials, (T*)grad_weight, (T*)grad_bias, parts, channels, taps);
}

}  // namespace nerfkit
