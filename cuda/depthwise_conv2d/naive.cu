// SPDX-License-Identifier: Apache-2.0
// Any kernel and any size, one thread per value: the definition, to be read first. It serves what is too large for
// 32-bit indices along a row or for the grid of another kernel.

#include "depthwise_conv2d/kernels.cuh"

namespace nerfkit {
namespace {

using Strides = Conv2dShape::Strides;

// The taps of output `at` that meet the input, as a range; the input of tap u is at * stride - padding + u * dilation.
__device__ void taps_inside(const Axis& axis, int at, int& first, int& last) {
  const int start = at * axis.stride - axis.padding, left = axis.size - 1 - start;
  first = start < 0 ? (-start + axis.dilation - 1) / axis.dilation : 0;
  last = left < 0 ? 0 : min(axis.kernel, left / axis.dilation + 1);
}

// The output that tap u of input `at` goes to; false if there is none.
__device__ bool output_of(const Axis& axis, int at, int u, int& output) {
  const int shifted = at + axis.padding - u * axis.dilation;
  output = shifted / axis.stride;
  return shifted >= 0 && shifted % axis.stride == 0 && output < axis.out_size;
}

// The value that a thread computes, in an array of images of the given size.
struct OwnValue {
  int64_t index, batch, channel;
  int row, column;

  __device__ OwnValue(const Conv2dShape& s, int height, int width)
      : index(int64_t(blockIdx.x) * THREADS + threadIdx.x) {
    const Strides at = s.strides(height, width);
    batch = index / at.batch, channel = index / at.channel % s.channels;
    row = int(index / at.row % height), column = int(index / at.column % width);
  }
};

}  // namespace

template <class T>
__global__ void __launch_bounds__(THREADS)
    depthwise_conv2d_naive_forward(const T* __restrict__ x,       // [B, C, H, W]
                                   const T* __restrict__ weight,  // [C, KH, KW]
                                   const T* __restrict__ bias,    // [C] or null
                                   T* __restrict__ out,           // [B, C, H_out, W_out], n values
                                   Conv2dShape s, int64_t n) {
  const OwnValue own(s, s.y.out_size, s.x.out_size);
  if (own.index >= n) return;
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
  out[own.index] = T(sum);
}

template <class T>
__global__ void __launch_bounds__(THREADS)
    depthwise_conv2d_naive_backward_x(const T* __restrict__ grad_out,  // [B, C, H_out, W_out]
                                      const T* __restrict__ weight,    // [C, KH, KW]
                                      T* __restrict__ grad_x,          // [B, C, H, W], n values
                                      Conv2dShape s, int64_t n) {
  const OwnValue own(s, s.y.size, s.x.size);
  if (own.index >= n) return;
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
  grad_x[own.index] = T(sum);
}

// One block per tap of a channel, and one for its bias; taps from `first` on.
template <class T>
__global__ void __launch_bounds__(THREADS)
    depthwise_conv2d_naive_backward_weight(const T* __restrict__ grad_out,   // [B, C, H_out, W_out]
                                           const T* __restrict__ x,          // [B, C, H, W]
                                           acc_t<T>* __restrict__ partials,  // [C, KH * KW + 1]
                                           Conv2dShape s, int first) {
  using A = acc_t<T>;
  __shared__ A warp_sums[THREADS / 32];
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
  if (threadIdx.x % 32 == 0) warp_sums[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x) return;
  for (int i = 1; i < THREADS / 32; ++i) sum += warp_sums[i];
  partials[c * (taps + 1) + tap] = sum;
}

template <class T>
void launch_naive_forward(const Conv2dArrays<T>& a, const Conv2dShape& s, cudaStream_t stream) {
  const int64_t n = s.batch * s.channels * s.y.out_size * s.x.out_size;
  depthwise_conv2d_naive_forward<<<blocks_for(n), THREADS, 0, stream>>>(a.in, a.weight, a.bias, a.out, s, n);
}

template <class T>
void launch_naive_backward(const Conv2dArrays<T>& a, const Conv2dShape& s, cudaStream_t stream) {
  constexpr int MOST_Y = 65535;  // blocks along y that CUDA takes
  const int64_t n = s.batch * s.channels * s.y.size * s.x.size;
  const int taps = s.y.kernel * s.x.kernel;
  if (a.out && n) depthwise_conv2d_naive_backward_x<<<blocks_for(n), THREADS, 0, stream>>>(a.in, a.weight, a.out, s, n);
  for (int tap = 0; a.partials && tap <= taps; tap += MOST_Y) {
    const dim3 grid(unsigned(s.channels), std::min(MOST_Y, taps + 1 - tap));
    depthwise_conv2d_naive_backward_weight<<<grid, THREADS, 0, stream>>>(a.in, a.x, a.partials, s, tap);
  }
}

#define FOR_TYPE(T)                                                                             \
  template void launch_naive_forward(const Conv2dArrays<T>&, const Conv2dShape&, cudaStream_t); \
  template void launch_naive_backward(const Conv2dArrays<T>&, const Conv2dShape&, cudaStream_t);
FOR_TYPE(float)
FOR_TYPE(double)
FOR_TYPE(__half)
FOR_TYPE(__nv_bfloat16)
#undef FOR_TYPE

}  // namespace nerfkit
