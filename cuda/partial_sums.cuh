// SPDX-License-Identifier: Apache-2.0
// The last stage of a reduction: every block wrote its sums, which are now added in their order, so that the result is
// the same every time.

#pragma once

#include "early_launch.cuh"

namespace nerfkit {

constexpr int SUMS_OF_BLOCK = 8;  // neighbours in memory: 32 bytes are the least that is read at once

// partials [parts, channels, taps + 1] -> grad_weight [channels, taps] and grad_bias [channels]. partials is not
// __restrict__: it changes after the launch, so that no load of it may move up, or past the cache that is coherent.
template <class T>
__global__ void __launch_bounds__(THREADS) add_partials(const acc_t<T>* partials, T* grad_weight, T* grad_bias, int parts,
                                                        int64_t channels, int taps) {
  using A = acc_t<T>;
  __shared__ A of_warp[THREADS / 32][SUMS_OF_BLOCK];
  const int64_t sums = channels * (taps + 1), i = int64_t(blockIdx.x) * SUMS_OF_BLOCK + threadIdx.x % SUMS_OF_BLOCK;
  const int64_t channel = i / (taps + 1);
  T* const to = i % (taps + 1) < taps ? grad_weight + i - channel : grad_bias + channel;
  constexpr int APART = THREADS / SUMS_OF_BLOCK, TOGETHER = 8;  // parts of a thread; loads on their way together
  const int first = threadIdx.x / SUMS_OF_BLOCK, own = i < sums ? (parts - first + APART - 1) / APART : 0;
  const A* from = partials + first * sums + i;
  invite_next_kernel();
  await_kernels_before();
  A sum = 0;
#pragma unroll 1
  for (int n = 0; n < own; n += TOGETHER) {
    A values[TOGETHER];
#pragma unroll
    for (int j = 0; j < TOGETHER; ++j, from += APART * sums) values[j] = n + j < own ? *from : A(0);
#pragma unroll
    for (int j = 0; j < TOGETHER; ++j) sum += values[j];
  }
  for (int apart = SUMS_OF_BLOCK; apart < 32; apart *= 2) sum += __shfl_xor_sync(ALL_LANES, sum, apart);
  if (threadIdx.x % 32 < SUMS_OF_BLOCK) of_warp[threadIdx.x / 32][threadIdx.x % 32] = sum;
  __syncthreads();
  if (threadIdx.x >= SUMS_OF_BLOCK || i >= sums) return;
  for (int warp = 1; warp < THREADS / 32; ++warp) sum += of_warp[warp][threadIdx.x];
  *to = T(sum);
}

// Directly after the kernel that wrote the sums, if there are any: it is launched while that one still runs.
template <class T>
void launch_add_partials(const void* partials, void* grad_weight, void* grad_bias, int parts, int64_t channels, int taps,
                         Stream stream) {
  launch_early(add_partials<T>, blocks_for(channels * (taps + 1), SUMS_OF_BLOCK), THREADS, 0, (cudaStream_t)stream,
               (const acc_t<T>*)partials, (T*)grad_weight, (T*)grad_bias, parts, channels, taps);
}

}  // namespace nerfkit
