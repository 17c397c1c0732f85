// SPDX-License-Identifier: Apache-2.0
// What the blocks of most ways share: their size, their arguments, and how they add up their sums of the weight's
// gradient.

#pragma once

#include "common/reduce_partials.cuh"
#include "depthwise_conv2d/args.h"

namespace nerfkit {

constexpr int THREADS_2D = 128;
constexpr int WARPS_2D = THREADS_2D / 32;

template <class T>
struct Walk {
  const T* in;      // x, or grad_out for the backward pass
  const T* weight;  // [C, KH * KW]
  const T* bias;
  T* out;              // null if only the weight's gradient is wanted
  const T* x;          // backward: to be multiplied with the window
  acc_t<T>* partials;  // [parts, C, KH * KW + 1], or null
  int channels, batch, height, width;
  int lanes, across,
      shared;  // channels of a block, blocks across the channels, blocks that share the tiles of a channel
  int rows;    // of a strip
  Conv2dShape::Strides strides;
};

// Of 32 lanes; rows are 33 apart, so that threads that read one lane's sums meet different banks.
template <class A, int SUMS, int WARPS = WARPS_2D>
using WarpSums = A[WARPS][SUMS][33];

// Value i of a lane's window: its own and, HALF to either side, what the lanes beside it have.
template <int HALF, class A, int V>
__device__ __forceinline__ A of_neighbours(const A (&before)[V], const A (&own)[V], const A (&after)[V], int i) {
  return i < HALF ? before[(i + V - HALF) % V] : i < HALF + V ? own[(i - HALF + V) % V] : after[(i - HALF) % V];
}

// Adds the sums of a warp's lanes, those of one channel, in the order of lanes 16, 8, 4, 2 and 1 apart. At every step
// the lanes of a pair share out the sums that they still have, so that there are half as many; `first` is the place of
// this lane's sums[0] then, and `count` how many are real.
template <int SUMS, int APART, class A, int ALL>
__device__ __forceinline__ void share_sums(A (&sums)[ALL], int& first, int& count) {
  constexpr int HALF = (SUMS + 1) / 2;
  const bool upper = threadIdx.x & APART;
#pragma unroll
  for (int k = 0; k < HALF; ++k) {
    const A own = sums[k], other = k + HALF < SUMS ? sums[k + HALF] : A(0);
    sums[k] = (upper ? other : own) + __shfl_xor_sync(FULL_MASK, upper ? own : other, APART);
  }
  first += upper ? HALF : 0, count = upper ? max(count - HALF, 0) : min(count, HALF);
  if constexpr (APART > 1) share_sums<HALF, APART / 2>(sums, first, count);
}

constexpr int sums_of_lane(int sums) {
  for (int lanes = 32; lanes > 1; lanes /= 2) sums = (sums + 1) / 2;
  return sums;
}

// Adds the block's sums in a fixed order. Lane i has those of channel first + i % lanes * apart; lanes is a power of
// two.
template <class A, int SUMS, int WARPS>
__device__ __forceinline__ void write_partials(A (&sums)[SUMS], WarpSums<A, SUMS, WARPS>& of_warp, A* partials,
                                               int part, int first, int lanes, int apart, int channels) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  __syncthreads();  // of_warp may still be read
  if (lanes == 1) {
    int place = 0, count = SUMS;
    share_sums<SUMS, 16>(sums, place, count);
#pragma unroll
    for (int k = 0; k < sums_of_lane(SUMS); ++k)
      if (k < count) of_warp[warp][place + k][0] = sums[k];
  } else {
#pragma unroll
    for (int k = 0; k < SUMS; ++k) {
      for (int offset = 16; offset >= lanes; offset /= 2) sums[k] += __shfl_xor_sync(FULL_MASK, sums[k], offset);
      if (lane < lanes) of_warp[warp][k][lane] = sums[k];
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < lanes * SUMS; i += 32 * WARPS) {
    const int k = i % SUMS, c = first + i / SUMS * apart;
    if (c >= channels) break;
    A total = 0;
    for (int w = 0; w < WARPS; ++w) total += of_warp[w][k][i / SUMS];
    partials[(int64_t(part) * channels + c) * SUMS + k] = total;
  }
}

}  // namespace nerfkit
