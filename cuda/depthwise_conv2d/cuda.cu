// SPDX-License-Identifier: Apache-2.0
// Any kernel and any size, to be read first; strips take the cases that they are made for. A thread computes one value;
// of the weight's gradient, what its share of the outputs adds to a few sums.

#include "common/reduce_partials.cuh"
#include "depthwise_conv2d/kernels.cuh"

namespace nerfkit {
namespace {

using Strides = Conv2dShape::Strides;

// The taps of output `at` that meet the input, as a range; the input of tap u is at * stride - padding + u * dilation.
__device__ __forceinline__ void taps_inside(const Axis& axis, int at, int& first, int& last) {
  const int start = at * axis.stride - axis.padding, left = axis.size - 1 - start;
  first = start < 0 ? int((unsigned(-start) + unsigned(axis.dilation) - 1) / axis.dilation) : 0;
  last = left < 0 ? 0 : min(axis.kernel, left / axis.dilation + 1);
}

// The output that tap u of input `at` goes to; false if there is none.
__device__ __forceinline__ bool output_of(const Axis& axis, int at, int u, int& output) {
  const int shifted = at + axis.padding - u * axis.dilation;
  output = axis.stride == 1 ? shifted : shifted / axis.stride;
  return shifted >= 0 && output * axis.stride == shifted && output < axis.out_size;
}

// The value that a thread computes, in an array of images of the given size. Index: unsigned where it holds all
// indices.
template <class Index>
struct OwnValue {
  Index index;
  int64_t batch, channel;
  int row, column;

  __device__ __forceinline__ OwnValue(const Conv2dShape& s, int height, int width)
      : index(Index(blockIdx.x) * THREADS + threadIdx.x) {
    const Index channels = Index(s.channels), own = s.channels_last ? index / channels : index;
    const Index line = own / Index(width), image = line / Index(height);
    column = int(own - line * Index(width)), row = int(line - image * Index(height));
    batch = s.channels_last ? image : image / channels;
    channel = s.channels_last ? index - own * channels : image - Index(batch) * channels;
  }

  // Where the image and channel of this value begin in images of the strides `at`, and the taps of the channel.
  template <class T>
  __device__ __forceinline__ const T* plane(const T* images, const Strides& at) const {
    return images + batch * at.batch + channel * at.channel;
  }
  template <class T>
  __device__ __forceinline__ const T* taps(const T* weight, const Conv2dShape& s) const {
    return weight + channel * s.y.kernel * s.x.kernel;
  }
};

template <class T, class Index>
__global__ void __launch_bounds__(THREADS)
    depthwise_conv2d_forward(const T* __restrict__ x,       // [B, C, H, W]
                             const T* __restrict__ weight,  // [C, KH, KW]
                             const T* __restrict__ bias,    // [C] or null
                             T* __restrict__ out,           // [B, C, H_out, W_out], n values
                             Conv2dShape s, int64_t n) {
  const OwnValue<Index> own(s, s.y.out_size, s.x.out_size);
  if (own.index >= n) return;
  const Strides from = s.strides(s.y.size, s.x.size);
  const T *plane = own.plane(x, from), *w = own.taps(weight, s);
  acc_t<T> sum = bias ? acc_t<T>(bias[own.channel]) : acc_t<T>(0);
  int u0, u1, v0, v1;
  taps_inside(s.y, own.row, u0, u1);
  taps_inside(s.x, own.column, v0, v1);
  for (int u = u0; u < u1; ++u) {
    const T* row = plane + (own.row * s.y.stride - s.y.padding + u * s.y.dilation) * from.row +
                   (own.column * s.x.stride - s.x.padding) * from.column;
    for (int v = v0; v < v1; ++v)
      sum += acc_t<T>(w[u * s.x.kernel + v]) * acc_t<T>(row[v * s.x.dilation * from.column]);
  }
  out[own.index] = T(sum);
}

template <class T, class Index>
__global__ void __launch_bounds__(THREADS)
    depthwise_conv2d_backward_x(const T* __restrict__ grad_out,  // [B, C, H_out, W_out]
                                const T* __restrict__ weight,    // [C, KH, KW]
                                T* __restrict__ grad_x,          // [B, C, H, W], n values
                                Conv2dShape s, int64_t n) {
  const OwnValue<Index> own(s, s.y.size, s.x.size);
  if (own.index >= n) return;
  const Strides from = s.strides(s.y.out_size, s.x.out_size);
  const T *plane = own.plane(grad_out, from), *w = own.taps(weight, s);
  acc_t<T> sum = 0;
  for (int u = 0; u < s.y.kernel; ++u) {
    int i, j;
    if (!output_of(s.y, own.row, u, i)) continue;
    for (int v = 0; v < s.x.kernel; ++v)
      if (output_of(s.x, own.column, v, j))
        sum += acc_t<T>(w[u * s.x.kernel + v]) * acc_t<T>(plane[i * from.row + j * from.column]);
  }
  grad_x[own.index] = T(sum);
}

// The weight's gradient. A block has `lanes` neighbouring channels (channels last 32, else 1), a part of the outputs,
// and SUMS of the taps in turn; behind the last tap comes the bias, as a tap that meets ones.
constexpr int SUMS = 10;

template <class T, class Index>
__global__ void __launch_bounds__(THREADS_2D)
    depthwise_conv2d_backward_weight(const T* __restrict__ grad_out,   // [B, C, H_out, W_out]
                                     const T* __restrict__ x,          // [B, C, H, W]
                                     acc_t<T>* __restrict__ partials,  // [parts, C, KH * KW + 1]
                                     Conv2dShape s, int lanes) {
  using A = acc_t<T>;
  __shared__ WarpSums<A, SUMS> warp_sums;
  const int taps = s.y.kernel * s.x.kernel, part = blockIdx.z, parts = gridDim.z;
  const int64_t first = int64_t(blockIdx.x) * lanes, c = first + threadIdx.x % lanes;
  const Strides from = s.strides(s.y.out_size, s.x.out_size), at = s.strides(s.y.size, s.x.size);
  const Index outputs = Index(s.batch) * s.y.out_size * s.x.out_size;
  for (int tap = blockIdx.y * SUMS; tap <= taps; tap += gridDim.y * SUMS) {
    int down[SUMS], right[SUMS];  // from an output to each tap's input, without padding
    A sums[SUMS] = {};
#pragma unroll
    for (int k = 0; k < SUMS; ++k) {
      const int u = (tap + k) / s.x.kernel;
      down[k] = u * s.y.dilation - s.y.padding, right[k] = (tap + k - u * s.x.kernel) * s.x.dilation - s.x.padding;
    }
    const Index step = Index(parts) * (THREADS_2D / lanes);
    for (Index n = part * (THREADS_2D / lanes) + threadIdx.x / lanes; n < outputs && c < s.channels; n += step) {
      const Index line = n / s.x.out_size, b = line / s.y.out_size;
      const int j = int(n - line * s.x.out_size), i = int(line - b * s.y.out_size);
      const A grad = A(grad_out[b * from.batch + c * from.channel + i * from.row + j * from.column]);
      const T* plane = x + b * at.batch + c * at.channel;
#pragma unroll
      for (int k = 0; k < SUMS; ++k) {
        const int p = i * s.y.stride + down[k], q = j * s.x.stride + right[k];
        const bool inside = unsigned(p) < unsigned(s.y.size) && unsigned(q) < unsigned(s.x.size);
        if (tap + k < taps && inside) sums[k] += grad * A(plane[p * at.row + q * at.column]);
        if (tap + k == taps) sums[k] += grad;
      }
    }
    write_partials(sums, warp_sums, partials + int64_t(part) * s.channels * (taps + 1) + tap, taps + 1, taps + 1 - tap,
                   first, lanes, 1, s.channels);
  }
}

// Blocks that share the outputs of a channel: enough to fill a GPU, each with several outputs a thread.
int64_t generic_parts(const Conv2dShape& s) {
  constexpr int64_t ENOUGH_BLOCKS = 2048, LEAST_OUTPUTS = 8 * THREADS_2D;
  const int64_t lanes = s.channels_last ? 32 : 1, chunks = (s.y.kernel * s.x.kernel + SUMS) / SUMS;
  const int64_t others = std::max<int64_t>(1, (s.channels + lanes - 1) / lanes * chunks);
  const int64_t outputs = s.batch * s.y.out_size * s.x.out_size;
  return std::max<int64_t>(1, std::min((ENOUGH_BLOCKS + others - 1) / others, outputs * lanes / LEAST_OUTPUTS));
}

// f(an index that holds n and a grid's last threads)
template <class F>
void with_index(int64_t n, const F& f) {
  n < INT32_MAX ? f(unsigned()) : f(int64_t());
}

template <class T>
void launch_forward(const Conv2dArrays<T>& a, const Conv2dShape& s, cudaStream_t stream) {
  const int64_t n = s.batch * s.channels * s.y.out_size * s.x.out_size;
  with_index(n, [&](auto index) {
    depthwise_conv2d_forward<T, decltype(index)>
        <<<blocks_for(n), THREADS, 0, stream>>>(a.in, a.weight, a.bias, a.out, s, n);
  });
}

// Returns the partial sums of a channel.
template <class T>
int64_t launch_backward(const Conv2dArrays<T>& a, const Conv2dShape& s, cudaStream_t stream) {
  constexpr int MOST_Y = 65535;  // blocks along y that CUDA takes
  const int64_t n = s.batch * s.channels * s.y.size * s.x.size, parts = generic_parts(s);
  if (a.out && n)
    with_index(n, [&](auto index) {
      depthwise_conv2d_backward_x<T, decltype(index)>
          <<<blocks_for(n), THREADS, 0, stream>>>(a.in, a.weight, a.out, s, n);
    });
  if (!a.partials) return parts;
  const int lanes = s.channels_last ? 32 : 1, chunks = (s.y.kernel * s.x.kernel + SUMS) / SUMS;
  const dim3 grid(blocks_for(s.channels, lanes), std::min(MOST_Y, chunks), unsigned(parts));
  with_index(s.batch * s.y.out_size * s.x.out_size + parts * THREADS_2D, [&](auto index) {
    depthwise_conv2d_backward_weight<T, decltype(index)>
        <<<grid, THREADS_2D, 0, stream>>>(a.in, a.x, a.partials, s, lanes);
  });
  return parts;
}

}  // namespace

Status depthwise_conv2d(DType dtype, const void* x, const void* weight, const void* bias, void* out,
                        const Conv2dShape& s, Stream stream) {
  const auto on = (cudaStream_t)stream;
  if (s.batch * s.channels * s.y.out_size * s.x.out_size == 0) return 0;
  dispatch(dtype, [&](auto element) {
    using T = decltype(element);
    const Conv2dArrays<T> a{(const T*)x, (const T*)weight, (const T*)bias, (T*)out, nullptr, nullptr};
    if constexpr (sizeof(T) <= 4)
      if (try_launch_strips<T, Pass::forward>(a, s, on)) return;
    launch_forward(a, s, on);
  });
  return launched();
}

Status depthwise_conv2d_bwd(DType dtype, const void* grad_out, const void* x, const void* weight, void* grad_x,
                            void* grad_weight, void* grad_bias, void* scratch, const Conv2dShape& s, Stream stream) {
  const auto on = (cudaStream_t)stream;
  if (s.channels == 0) return 0;
  dispatch(dtype, [&](auto element) {
    using T = decltype(element);
    auto* partials = grad_weight ? (acc_t<T>*)scratch : nullptr;
    const Conv2dArrays<T> a{(const T*)grad_out, (const T*)weight, nullptr, (T*)grad_x, (const T*)x, partials};
    int64_t parts = 0;
    if constexpr (sizeof(T) <= 4) parts = try_launch_strips<T, Pass::backward>(a, s, on);
    if (!parts) parts = launch_backward(a, s, on);
    const int taps = s.y.kernel * s.x.kernel;
    if (partials) launch_reduce_partials<T>(partials, grad_weight, grad_bias, int(parts), s.channels, taps, stream);
  });
  return launched();
}

int64_t conv2d_scratch(DType dtype, const Conv2dShape& s) {
  const int bytes = dtype == DType::f64 ? 8 : dtype == DType::f32 ? 4 : 2;
  const int64_t parts = std::max(generic_parts(s), strips_parts(s, bytes));
  return parts * s.channels * (s.y.kernel * s.x.kernel + 1);
}

}  // namespace nerfkit
