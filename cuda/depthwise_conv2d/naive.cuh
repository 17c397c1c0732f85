// SPDX-License-Identifier: Apache-2.0
// What is too large for 32-bit places along a row, or for the tiles of a grid: a thread a value, of any kernel.

#pragma once

#include "common/gpu.cuh"
#include "depthwise_conv2d/args.h"

namespace nerfkit {
namespace {

using Strides = Conv2dShape::Strides;

// The value that a thread makes, in an array of pictures of the given size.
struct OwnValue {
  int64_t place, batch, channel;
  int row, column;

  __device__ __forceinline__ OwnValue(const Conv2dShape& s, int height, int width)
      : place(int64_t(blockIdx.x) * THREADS + threadIdx.x) {
    const Strides at = s.strides(height, width);
    batch = place / at.batch, channel = place / at.channel % s.channels;
    row = int(place / at.row % height), column = int(place / at.column % width);
  }
};

template <class T>
__global__ void __launch_bounds__(THREADS)
    value_forward(const T* __restrict__ x, const T* __restrict__ weight, const T* __restrict__ bias,
                  T* __restrict__ out, Conv2dShape s, int64_t n) {
  const OwnValue own(s, s.y.out_size, s.x.out_size);
  if (own.place >= n) return;
  const Strides from = s.strides(s.y.size, s.x.size);
  const T* plane = x + own.batch * from.batch + own.channel * from.channel;
  const T* w = weight + own.channel * s.y.kernel * s.x.kernel;
  acc_t<T> sum = bias ? acc_t<T>(bias[own.channel]) : acc_t<T>(0);
  int u0, u1, v0, v1;
  taps_inside(s.y, own.row, u0, u1);
  taps_inside(s.x, own.column, v0, v1);
  for (int u = u0; u < u1; ++u)
    for (int v = v0; v < v1; ++v)
      sum += acc_t<T>(w[u * s.x.kernel + v]) *
             acc_t<T>(plane[(own.row * s.y.stride - s.y.padding + u * s.y.dilation) * from.row +
                            (own.column * s.x.stride - s.x.padding + v * s.x.dilation) * from.column]);
  out[own.place] = T(sum);
}

template <class T>
__global__ void __launch_bounds__(THREADS) value_to_x(const T* __restrict__ grad_out, const T* __restrict__ weight,
                                                      T* __restrict__ grad_x, Conv2dShape s, int64_t n) {
  const OwnValue own(s, s.y.size, s.x.size);
  if (own.place >= n) return;
  const Strides from = s.strides(s.y.out_size, s.x.out_size);
  const T* plane = grad_out + own.batch * from.batch + own.channel * from.channel;
  const T* w = weight + own.channel * s.y.kernel * s.x.kernel;
  acc_t<T> sum = 0;
  for (int u = 0; u < s.y.kernel; ++u)
    for (int v = 0; v < s.x.kernel; ++v) {
      int i, j;
      if (output_of(s.y, own.row, u, i) && output_of(s.x, own.column, v, j))
        sum += acc_t<T>(w[u * s.x.kernel + v]) * acc_t<T>(plane[i * from.row + j * from.column]);
    }
  grad_x[own.place] = T(sum);
}

// A block for a tap of a channel, or for its bias; taps from `first` on.
template <class T>
__global__ void __launch_bounds__(THREADS) value_to_weight(const T* __restrict__ grad_out, const T* __restrict__ x,
                                                           acc_t<T>* __restrict__ partials, Conv2dShape s, int first) {
  using A = acc_t<T>;
  __shared__ A of_warp[THREADS / 32];
  const int taps = s.y.kernel * s.x.kernel, tap = first + blockIdx.y;
  const int64_t c = blockIdx.x;
  const int u = tap < taps ? tap / s.x.kernel : 0, v = tap < taps ? tap % s.x.kernel : 0;
  const Strides from = s.strides(s.y.out_size, s.x.out_size), at = s.strides(s.y.size, s.x.size);
  const int64_t outputs = s.batch * s.y.out_size * s.x.out_size;
  A sum = 0;
  for (int64_t n = threadIdx.x; n < outputs; n += THREADS) {
    const int j = int(n % s.x.out_size), i = int(n / s.x.out_size % s.y.out_size);
    const int64_t b = n / s.x.out_size / s.y.out_size;
    const int p = i * s.y.stride - s.y.padding + u * s.y.dilation, q = j * s.x.stride - s.x.padding + v * s.x.dilation;
    const bool inside = p >= 0 && p < s.y.size && q >= 0 && q < s.x.size;
    if (tap < taps && !inside) continue;
    const A grad = A(grad_out[b * from.batch + c * from.channel + i * from.row + j * from.column]);
    sum += tap < taps ? grad * A(x[b * at.batch + c * at.channel + p * at.row + q * at.column]) : grad;
  }
  sum = warp_sum(sum, 32);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x) return;
  for (int i = 1; i < THREADS / 32; ++i) sum += of_warp[i];
  partials[c * (taps + 1) + tap] = sum;
}

}  // namespace
}  // namespace nerfkit
