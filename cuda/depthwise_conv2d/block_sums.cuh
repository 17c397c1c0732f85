// SPDX-License-Identifier: Apache-2.0
// How a block adds its threads' sums of the weight's gradient, in an order that never changes.

#pragma once

#include "common/gpu.cuh"

namespace nerfkit {

constexpr int THREADS_2D = 128;  // of a block
constexpr int WARPS_2D = THREADS_2D / 32;

// Shared memory: [warp][sum][lane]. Rows are 33 apart, so that threads that read one lane's sums use different banks.
template <class A, int SUMS>
using WarpSums = A[WARPS_2D][SUMS][33];

// Adds the sums of a warp's lanes, those of one channel, in the order of lanes 16, 8, 4, 2 and 1 apart. At every step
// the two lanes of a pair split the sums that they still have, so that each has half as many; `first` is the index of
// this lane's sums[0] then, and `count` how many are real.
template <int SUMS, int APART, class A, int ALL>
__device__ __forceinline__ void split_sums(A (&sums)[ALL], int& first, int& count) {
  constexpr int HALF = (SUMS + 1) / 2;
  const bool upper = threadIdx.x & APART;
#pragma unroll
  for (int k = 0; k < HALF; ++k) {
    const A own = sums[k], other = k + HALF < SUMS ? sums[k + HALF] : A(0);
    sums[k] = (upper ? other : own) + __shfl_xor_sync(FULL_MASK, upper ? own : other, APART);
  }
  first += upper ? HALF : 0, count = upper ? max(count - HALF, 0) : min(count, HALF);
  if constexpr (APART > 1) split_sums<HALF, APART / 2>(sums, first, count);
}

constexpr int sums_of_lane(int sums) {
  for (int lanes = 32; lanes > 1; lanes /= 2) sums = (sums + 1) / 2;
  return sums;
}

// partials [parts, channels, SUMS]: writes row `part` of this block's channels. Of the sums of a warp, lane i has those
// of channel first + i % lanes * apart; lanes is 1 or 32.
template <class A, int SUMS>
__device__ __forceinline__ void write_partials(A (&sums)[SUMS], WarpSums<A, SUMS>& warp_sums, A* partials, int part,
                                               int first, int lanes, int apart, int channels) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  __syncthreads();  // warp_sums may still be read
  if (lanes == 1) {
    int index = 0, count = SUMS;
    split_sums<SUMS, 16>(sums, index, count);
#pragma unroll
    for (int k = 0; k < sums_of_lane(SUMS); ++k)
      if (k < count) warp_sums[warp][index + k][0] = sums[k];
  } else {
#pragma unroll
    for (int k = 0; k < SUMS; ++k) warp_sums[warp][k][lane] = sums[k];
  }
  __syncthreads();
  for (int i = threadIdx.x; i < lanes * SUMS; i += THREADS_2D) {
    const int k = i % SUMS, c = first + i / SUMS * apart;
    if (c >= channels) break;
    A total = 0;
    for (int w = 0; w < WARPS_2D; ++w) total += warp_sums[w][k][i / SUMS];
    partials[(int64_t(part) * channels + c) * SUMS + k] = total;
  }
}

}  // namespace nerfkit
