// SPDX-License-Identifier: Apache-2.0
// Any kernel, dilation and number of channels. A block takes a tile of TILE samples; where their rays begin and end is
// found once and kept in shared memory. Neighbouring threads take neighbouring channels, V of them each; a tap that
// another thread has loaded comes from the L1 cache.

#pragma once

#include "common/gpu.cuh"
#include "depthwise_conv1d/args.h"

namespace nerfkit {
namespace {

constexpr int TILE = 512;  // samples of a block

// First and one past the last sample of each sample's ray, counted from the first sample of the tile.
struct Spans {
  int first[TILE], last[TILE];
};

// The last ray of low .. high that begins at or before sample n. offsets [R + 1].
__device__ __forceinline__ int64_t ray_of(const int64_t* offsets, int64_t n, int64_t low, int64_t high) {
  while (low < high) {
    const int64_t middle = (low + high + 1) / 2;
    if (offsets[middle] <= n)
      low = middle;
    else
      high = middle - 1;
  }
  return low;
}

// Clamped to what an int holds; a ray that far away is not within the reach of a kernel.
__device__ __forceinline__ int clamp_distance(int64_t distance) {
  constexpr int64_t FAR = 1 << 30;
  return int(distance < -FAR ? -FAR : distance > FAR ? FAR : distance);
}

// All threads of a block call this.
__device__ __forceinline__ void find_spans(Spans& spans, const Conv1dShape& s, int64_t base, int thread, int threads) {
  __shared__ int64_t ends[2];  // rays of the first and the last sample of the tile
  const int64_t count = s.n_samples - base < TILE ? s.n_samples - base : TILE;
  __syncthreads();
  if (thread < 2) ends[thread] = ray_of(s.ray_offsets, thread ? base + count - 1 : base, 0, s.n_rays - 1);
  __syncthreads();
  for (int i = thread; i < count; i += threads) {
    const int64_t ray = ray_of(s.ray_offsets, base + i, ends[0], ends[1]);
    spans.first[i] = clamp_distance(s.ray_offsets[ray] - base);
    spans.last[i] = clamp_distance(s.ray_offsets[ray + 1] - base);
  }
  __syncthreads();
}

// K is the kernel's length, or 0 for one that is known at run time only. FLIPPED: taps in reverse order, which makes
// the gradient of x from that of the output. Threads [samples, channels / V].
template <class T, int V, int K, bool FLIPPED = false>
__global__ void __launch_bounds__(THREADS) depthwise_conv1d_forward(const T* __restrict__ x,       // [N, C]
                                                                    const T* __restrict__ weight,  // [C, K]
                                                                    const T* __restrict__ bias,    // [C] or null
                                                                    T* __restrict__ out,           // [N, C]
                                                                    Conv1dShape s) {
  using A = acc_t<T>;
  __shared__ Spans spans;
  const int kernel = K ? K : s.kernel, c = (blockIdx.y * blockDim.x + threadIdx.x) * V, C = s.channels;
  const bool real = c < C;
  A w[K ? K : 1][V], start[V] = {};
  if (K && real) {
#pragma unroll
    for (int u = 0; u < K; ++u)
#pragma unroll
      for (int v = 0; v < V; ++v) w[u][v] = A(weight[(c + v) * K + u]);
  }
  if (bias && real) load(bias + c, start);
  const int64_t base = int64_t(blockIdx.x) * TILE;
  find_spans(spans, s, base, threadIdx.y * blockDim.x + threadIdx.x, blockDim.x * blockDim.y);
  for (int i = threadIdx.y; real && i < TILE && base + i < s.n_samples; i += blockDim.y) {
    A sum[V];
#pragma unroll
    for (int v = 0; v < V; ++v) sum[v] = start[v];
#pragma unroll
    for (int u = 0; u < kernel; ++u) {
      const int m = i + (u - kernel / 2) * s.dilation;
      if (m < spans.first[i] || m >= spans.last[i]) continue;
      A value[V];
      load(x + (base + m) * C + c, value);
#pragma unroll
      for (int v = 0; v < V; ++v)
        sum[v] += value[v] * (K ? w[K ? u : 0][v] : A(weight[(c + v) * kernel + (FLIPPED ? kernel - 1 - u : u)]));
    }
    store(out + (base + i) * C + c, sum);
  }
}

// The gradient of x at a sample needs the same neighbours of grad_out as that of the weight: one pass gives both.
template <class T, int V, int K>
__global__ void __launch_bounds__(THREADS, 2)
    depthwise_conv1d_backward(const T* __restrict__ grad_out,   // [N, C]
                              const T* __restrict__ x,          // [N, C]
                              const T* __restrict__ weight,     // [C, K]
                              T* __restrict__ grad_x,           // [N, C] or null
                              acc_t<T>* __restrict__ partials,  // [gridDim.x, C, K + 1] or null
                              Conv1dShape s) {
  using A = acc_t<T>;
  __shared__ Spans spans;
  __shared__ A rows[THREADS * V];
  const int c = (blockIdx.y * blockDim.x + threadIdx.x) * V, C = s.channels;
  const bool real = c < C;
  A w[K][V] = {}, sums[K + 1][V] = {};
  if (real) {
#pragma unroll
    for (int u = 0; u < K; ++u)
#pragma unroll
      for (int v = 0; v < V; ++v) w[u][v] = A(weight[(c + v) * K + u]);
  }
  for (int64_t base = int64_t(blockIdx.x) * TILE; base < s.n_samples; base += int64_t(gridDim.x) * TILE) {
    find_spans(spans, s, base, threadIdx.y * blockDim.x + threadIdx.x, blockDim.x * blockDim.y);
    for (int i = threadIdx.y; real && i < TILE && base + i < s.n_samples; i += blockDim.y) {
      A sum[V] = {}, value[V] = {};
      if (partials) load(x + (base + i) * C + c, value);
#pragma unroll
      for (int u = 0; u < K; ++u) {
        const int m = i - (u - K / 2) * s.dilation;  // the output that tap u of this sample goes to
        if (m < spans.first[i] || m >= spans.last[i]) continue;
        A grad[V];
        load(grad_out + (base + m) * C + c, grad);
#pragma unroll
        for (int v = 0; v < V; ++v) {
          sum[v] += grad[v] * w[u][v];
          sums[u][v] += grad[v] * value[v];
          if (u == K / 2) sums[K][v] += grad[v];
        }
      }
      if (grad_x) store(grad_x + (base + i) * C + c, sum);
    }
  }
  if (!partials) return;
  // The threads of one channel are summed in the order of threadIdx.y.
#pragma unroll
  for (int u = 0; u <= K; ++u) {
    __syncthreads();
#pragma unroll
    for (int v = 0; v < V; ++v) rows[(threadIdx.y * blockDim.x + threadIdx.x) * V + v] = sums[u][v];
    __syncthreads();
    if (threadIdx.y == 0 && real) {
#pragma unroll
      for (int v = 0; v < V; ++v) {
        A sum = 0;
        for (int y = 0; y < int(blockDim.y); ++y) sum += rows[(y * blockDim.x + threadIdx.x) * V + v];
        partials[(int64_t(blockIdx.x) * C + c + v) * (K + 1) + u] = sum;
      }
    }
  }
}

// The gradient of the weight for kernels of any length: one block per channel (blockIdx.x) and tap (blockIdx.y).
template <class T>
__global__ void __launch_bounds__(THREADS)
    depthwise_conv1d_any_grad_weight(const T* __restrict__ grad_out,   // [N, C]
                                     const T* __restrict__ x,          // [N, C]
                                     acc_t<T>* __restrict__ partials,  // [1, C, K + 1]
                                     Conv1dShape s) {
  using A = acc_t<T>;
  __shared__ A sums[THREADS / 32];
  const int c = blockIdx.x, u = blockIdx.y;  // u == kernel is the bias
  const int64_t shift = u < s.kernel ? int64_t(u - s.kernel / 2) * s.dilation : 0;
  A sum = 0;
  for (int64_t n = threadIdx.x; n < s.n_samples; n += THREADS) {
    const int64_t ray = ray_of(s.ray_offsets, n, 0, s.n_rays - 1), m = n + shift;
    if (m < s.ray_offsets[ray] || m >= s.ray_offsets[ray + 1]) continue;
    sum += A(grad_out[n * s.channels + c]) * (u < s.kernel ? A(x[m * s.channels + c]) : A(1));
  }
  sum = warp_sum(sum, 32);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x) return;
  for (int i = 1; i < THREADS / 32; ++i) sum += sums[i];
  partials[int64_t(c) * (s.kernel + 1) + u] = sum;
}

}  // namespace
}  // namespace nerfkit
