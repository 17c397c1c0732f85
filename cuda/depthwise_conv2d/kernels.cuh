// SPDX-License-Identifier: Apache-2.0
// What the kernels of the GPU share: their arrays, and how a block adds its threads' sums of the weight's gradient.

#pragma once

#include "common/gpu.cuh"
#include "depthwise_conv2d/args.h"

namespace nerfkit {

enum class Pass { forward, backward };

// The arrays of one pass. The gradient of x is a convolution of grad_out, so that both passes have the same arrays.
template <class T>
struct Conv2dArrays {
  const T* in;  // forward x [B, C, H, W]; backward grad_out [B, C, H_out, W_out]; channels last if the shape says so
  const T* weight;     // [C, KH * KW]
  const T* bias;       // forward [C] or null; backward null
  T* out;              // forward out [B, C, H_out, W_out]; backward grad_x [B, C, H, W], or null: not wanted
  const T* x;          // backward x [B, C, H, W]; forward null
  acc_t<T>* partials;  // backward [parts, C, KH * KW + 1], the last of a row is the bias's, or null: not wanted
};

// strips_forward.cu and strips_backward.cu. If strips are made for the case, launches them and returns how many partial
// sums of the weight's gradient a channel then has (forward any number but 0); else 0.
template <class T, Pass PASS>
int64_t try_launch_strips(const Conv2dArrays<T>&, const Conv2dShape&, cudaStream_t);
int64_t strips_parts(const Conv2dShape&, int bytes);  // the most that the backward pass may return; bytes of an element

constexpr int THREADS_2D = 128;  // of a block
constexpr int WARPS_2D = THREADS_2D / 32;

// Shared memory: [warp][sum][lane]. Rows are 33 apart, so that threads that read one lane's sums use different banks.
template <class A, int SUMS>
using WarpSums = A[WARPS_2D][SUMS][33];

// Adds the sums of a block's threads in an order that never changes. Of those of a warp, lane i has the sums of channel
// c + i % lanes * apart; lanes is 1 or 32. The first `count` go to to [channels, distance].
template <class A, int SUMS>
__device__ __forceinline__ void write_partials(A (&sums)[SUMS], WarpSums<A, SUMS>& warp_sums, A* to, int64_t distance,
                                               int count, int64_t c, int lanes, int apart, int64_t channels) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  __syncthreads();  // warp_sums may still be read
#pragma unroll
  for (int k = 0; k < SUMS; ++k) {
    const A sum = lanes == 1 ? warp_sum(sums[k], 32) : sums[k];
    if (lane < lanes) warp_sums[warp][k][lane] = sum;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < lanes * SUMS; i += THREADS_2D) {
    const int k = i % SUMS;
    const int64_t channel = c + i / SUMS * apart;
    if (k >= count || channel >= channels) continue;
    A total = 0;
    for (int w = 0; w < WARPS_2D; ++w) total += warp_sums[w][k][i / SUMS];
    to[channel * distance + k] = total;
  }
}

}  // namespace nerfkit
