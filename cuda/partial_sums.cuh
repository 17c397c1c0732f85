// SPDX-License-Identifier: Apache-2.0
// The last stage of a reduction: every block wrote its sums, which are now added in their order, so that the result is
// the same every time.

#pragma once

#include "gpu.cuh"

namespace nerfkit {

// partials [parts, channels, taps + 1] -> grad_weight [channels, taps] and grad_bias [channels], a warp for each sum.
template <class T>
__global__ void __launch_bounds__(THREADS) add_partials(const acc_t<T>* __restrict__ partials, T* __restrict__ grad_weight,
                                                        T* __restrict__ grad_bias, int parts, int64_t channels, int taps) {
  const int64_t sums = channels * (taps + 1), i = (int64_t(blockIdx.x) * THREADS + threadIdx.x) / 32;
  if (i >= sums) return;
  const int lane = threadIdx.x % 32;
  acc_t<T> sum = 0;
  for (int part = lane; part < parts; part += 32) sum += partials[part * sums + i];
  sum = sum_lanes(sum, 32);
  if (lane) return;
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
  add_partials<T><<<blocks_for(channels * (taps + 1) * 32), THREADS, 0, (cudaStream_t)stream>>>(
      (const acc_t<T>*)partials, (T*)grad_weight, (T*)grad_bias, parts, channels, taps);
}

}  // namespace nerfkit
