// SPDX-License-Identifier: Apache-2.0
// The last stage of a reduction: every block wrote its sums, which are now added in their order, so that the result is
// the same every time.

#pragma once

#include "gpu.cuh"

namespace nerfkit {

constexpr int SUMS_OF_BLOCK = 8;  // neighbours in memory: 32 bytes are the least that is read at once

// partials [parts, channels, taps + 1] -> grad_weight [channels, taps] and grad_bias [channels].
template <class T>
__global__ void __launch_bounds__(THREADS) add_partials(const acc_t<T>* __restrict__ partials, T* __restrict__ grad_weight,
                                                        T* __restrict__ grad_bias, int parts, int64_t channels, int taps) {
  using A = acc_t<T>;
  __shared__ A of_warp[THREADS / 32][SUMS_OF_BLOCK];
  const int64_t sums = channels * (taps + 1), i = int64_t(blockIdx.x) * SUMS_OF_BLOCK + threadIdx.x % SUMS_OF_BLOCK;
  A sum = 0;
  if (i < sums)
    for (int part = threadIdx.x / SUMS_OF_BLOCK; part < parts; part += THREADS / SUMS_OF_BLOCK) sum += partials[part * sums + i];
  for (int apart = SUMS_OF_BLOCK; apart < 32; apart *= 2) sum += __shfl_xor_sync(ALL_LANES, sum, apart);
  if (threadIdx.x % 32 < SUMS_OF_BLOCK) of_warp[threadIdx.x / 32][threadIdx.x % 32] = sum;
  __syncthreads();
  if (threadIdx.x >= SUMS_OF_BLOCK || i >= sums) return;
  for (int warp = 1; warp < THREADS / 32; ++warp) sum += of_warp[warp][threadIdx.x];
  const int64_t channel = i / (taps + 1);
  const int tap = int(i % (taps + 1));
  if (tap < taps)
    grad_weight[channel * taps + tap] = T(sum);
  else
    grad_bias[channel] = T(sum);
}

template <class T>
void launch_add_partials(const void* partials, void* grad_weight, void* grad_bias, int parts, int64_t channels, int taps,
                         Stream stream) {
  add_partials<T><<<blocks_for(channels * (taps + 1), SUMS_OF_BLOCK), THREADS, 0, (cudaStream_t)stream>>>(
      (const acc_t<T>*)partials, (T*)grad_weight, (T*)grad_bias, parts, channels, taps);
}

}  // namespace nerfkit
