// SPDX-License-Identifier: Apache-2.0
// What depthwise_conv1d_runs.cuh does not take. A block takes TILE samples; where their rays begin and end is found
// once and kept in shared memory. Neighbouring threads take neighbouring channels, V of them each; a tap that another
// thread has loaded comes from the L1 cache.

#include "common/reduce_partials.cuh"
#include "depthwise_conv1d/runs.cuh"

namespace nerfkit {
namespace {

constexpr int TILE = 512;         // samples
constexpr int MAX_BLOCKS = 2048;  // along the samples
constexpr int MAX_PARTS = 512;    // of them where each leaves a part of the weight's gradient

// Beginning and end of each sample's ray, counted from the first sample of the tile.
struct Spans {
  int first[TILE], last[TILE];
};

// The last ray that begins at or before sample n, between rays low and high.
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

__device__ __forceinline__ int nearby(int64_t distance) {  // to any sample of the tile, as far as it matters
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
    spans.first[i] = nearby(s.ray_offsets[ray] - base);
    spans.last[i] = nearby(s.ray_offsets[ray + 1] - base);
  }
  __syncthreads();
}

// K is the kernel's length, or 0 for one that is known at run time only.
template <class T, int V, int K>
__global__ void __launch_bounds__(THREADS) forward(const T* __restrict__ x, const T* __restrict__ weight,
                                                   const T* __restrict__ bias, T* __restrict__ out, Conv1dShape s) {
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
      for (int v = 0; v < V; ++v) sum[v] += value[v] * (K ? w[K ? u : 0][v] : A(weight[(c + v) * kernel + u]));
    }
    store(out + (base + i) * C + c, sum);
  }
}

// The gradient of x at a sample needs the same neighbours of grad_out as that of the weight: one pass gives both.
template <class T, int V, int K>
__global__ void __launch_bounds__(THREADS, 2)
    backward(const T* __restrict__ grad_out, const T* __restrict__ x, const T* __restrict__ weight,
             T* __restrict__ grad_x, acc_t<T>* __restrict__ partials, Conv1dShape s) {
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
  // The block's threads of one channel add up in the order of their rows.
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

// For kernels of any length: a thread a value, and a block a tap and channel.
template <class T>
__global__ void __launch_bounds__(THREADS)
    any_to_x(const T* __restrict__ grad_out, const T* __restrict__ weight, T* __restrict__ grad_x, Conv1dShape s) {
  __shared__ Spans spans;
  const int64_t base = int64_t(blockIdx.x) * TILE;
  find_spans(spans, s, base, threadIdx.x, THREADS);
  for (int64_t place = threadIdx.x; place < int64_t(TILE) * s.channels; place += THREADS) {
    const int i = int(place / s.channels), c = int(place % s.channels);
    if (base + i >= s.n_samples) break;
    acc_t<T> sum = 0;
    for (int u = 0; u < s.kernel; ++u) {
      const int m = i - (u - s.kernel / 2) * s.dilation;
      if (m >= spans.first[i] && m < spans.last[i])
        sum += acc_t<T>(grad_out[(base + m) * s.channels + c]) * acc_t<T>(weight[c * s.kernel + u]);
    }
    grad_x[(base + i) * s.channels + c] = T(sum);
  }
}

template <class T>
__global__ void __launch_bounds__(THREADS) any_to_weight(const T* __restrict__ grad_out, const T* __restrict__ x,
                                                         acc_t<T>* __restrict__ partials, Conv1dShape s) {
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

int parts_of(const Conv1dShape& s, int most = MAX_PARTS) {
  return int(std::clamp<int64_t>((s.n_samples + TILE - 1) / TILE, 1, most));
}

struct Block {
  dim3 threads;
  unsigned along_channels;
};

Block block_for(int channels, int width) {
  unsigned x = 1;
  while (x < 64 && int(x) * width < channels) x *= 2;
  return {dim3(x, THREADS / x), unsigned((channels + x * width - 1) / (x * width))};
}

// Calls f with an element, the channels of one access, the kernel's length, 0 if it is not listed, and whether by runs.
template <class F>
void dispatch_conv(DType dtype, const Conv1dShape& s, bool aligned16, const F& f) {
  dispatch(dtype, [&](auto t) {
    using T = decltype(t);
    auto with_kernel = [&](auto width, auto runs) {
      switch (s.kernel) {
        case 1:
          return f(t, width, std::integral_constant<int, 1>(), runs);
        case 3:
          return f(t, width, std::integral_constant<int, 3>(), runs);
        case 5:
          return f(t, width, std::integral_constant<int, 5>(), runs);
        case 7:
          return f(t, width, std::integral_constant<int, 7>(), runs);
        default:
          return f(t, std::integral_constant<int, 1>(), std::integral_constant<int, 0>(), std::false_type());
      }
    };
    const std::integral_constant<int, RUN_CHANNELS<T>> wide;
    if (s.channels % wide.value || !aligned16) return with_kernel(std::integral_constant<int, 1>(), std::false_type());
    s.dilation == 1 ? with_kernel(wide, std::true_type()) : with_kernel(wide, std::false_type());
  });
}

}  // namespace

Status depthwise_conv1d(DType dtype, const void* x, const void* weight, const void* bias, void* out,
                        const Conv1dShape& s, Stream stream) {
  if (s.n_samples == 0 || s.channels == 0) return 0;
  const auto on = (cudaStream_t)stream;
  const bool wide = aligned(x, 16) && aligned(weight, 16) && aligned(bias, 16) && aligned(out, 16);
  dispatch_conv(dtype, s, wide, [&](auto t, auto width, auto kernel, auto by_runs) {
    using T = decltype(t);
    if constexpr (by_runs.value) {
      const RunShape runs = run_shape<T>(s, parts_of(s, MAX_BLOCKS));
      convolve_runs<T, kernel.value>
          <<<run_grid<T>(runs), THREADS, 0, on>>>((const T*)x, (const T*)weight, (const T*)bias, (T*)out, runs);
    } else {
      const Block block = block_for(s.channels, width.value);
      const dim3 grid(blocks_for(s.n_samples, TILE), block.along_channels);
      forward<T, width.value, kernel.value>
          <<<grid, block.threads, 0, on>>>((const T*)x, (const T*)weight, (const T*)bias, (T*)out, s);
    }
  });
  return launched();
}

Status depthwise_conv1d_bwd(DType dtype, const void* grad_out, const void* x, const void* weight, void* grad_x,
                            void* grad_weight, void* grad_bias, void* scratch, const Conv1dShape& s, Stream stream) {
  if (s.channels == 0) return 0;
  const auto on = (cudaStream_t)stream;
  const bool wide = aligned(x, 16) && aligned(weight, 16) && aligned(grad_out, 16) && aligned(grad_x, 16);
  dispatch_conv(dtype, s, wide, [&](auto t, auto width, auto kernel, auto by_runs) {
    using T = decltype(t);
    auto* partials = (acc_t<T>*)scratch;
    int parts = s.n_samples == 0 ? 0 : kernel.value > 0 ? parts_of(s) : 1;
    if constexpr (by_runs.value) {
      if (s.n_samples) {
        const RunShape runs = run_shape<T>(s, parts);
        const dim3 grid = run_grid<T>(runs);
        parts = grid.x;
        convolve_runs_bwd<T, kernel.value><<<grid, THREADS, 0, on>>>(
            (const T*)grad_out, (const T*)x, (const T*)weight, (T*)grad_x, grad_weight ? partials : nullptr, runs);
      }
    } else if constexpr (kernel.value > 0) {
      if (s.n_samples) {
        const Block block = block_for(s.channels, width.value);
        const dim3 grid(parts, block.along_channels);
        backward<T, width.value, kernel.value><<<grid, block.threads, 0, on>>>(
            (const T*)grad_out, (const T*)x, (const T*)weight, (T*)grad_x, grad_weight ? partials : nullptr, s);
      }
    } else if (s.n_samples) {
      if (grad_x)
        any_to_x<<<blocks_for(s.n_samples, TILE), THREADS, 0, on>>>((const T*)grad_out, (const T*)weight, (T*)grad_x,
                                                                    s);
      if (grad_weight)
        any_to_weight<<<dim3(s.channels, s.kernel + 1), THREADS, 0, on>>>((const T*)grad_out, (const T*)x, partials, s);
    }
    if (grad_weight) launch_reduce_partials<T>(partials, grad_weight, grad_bias, parts, s.channels, s.kernel, stream);
  });
  return launched();
}

int64_t conv1d_scratch(const Conv1dShape& s) { return int64_t(parts_of(s)) * s.channels * (s.kernel + 1); }

}  // namespace nerfkit
