// SPDX-License-Identifier: Apache-2.0
// The usual convolution: 3 taps without dilation, channels in fours, float32 and half types. A warp takes tile after
// tile of consecutive samples. A thread takes four channels of a run of neighbouring samples and issues all their loads
// before it waits for any. Where rays begin is one bit per sample in shared memory; a search in ray_offsets finds the
// first of the warp's samples, after that the warp reads ray_offsets as it goes.

#pragma once

#include "common/gpu.cuh"
#include "depthwise_conv1d/args.h"

namespace nerfkit {
namespace {

constexpr int K = 3;  // taps
constexpr int V = 4;  // channels of a thread; eight halves would need twice the registers for weight and sums
template <class T>
constexpr int RUN = 64 / int(sizeof(T) * V);  // samples of a thread: 64 bytes
constexpr int WORDS =
    (32 * RUN<__half> + K - 1 + 31) / 32 + 1;  // bits of a tile and K / 2 on both sides; one to shift in

struct RunShape : Conv1dShape {
  int columns;    // lanes along the channels; the others of a warp are along the samples
  int tile;       // samples that a warp takes at a time: RUN for each lane along them
  int64_t slice;  // samples of a warp, a multiple of tile
};

// Index of the first of values [n], which rise, that is not below `value`: a 32-ary search by the lanes of a warp.
__device__ __forceinline__ int64_t first_from(const int64_t* values, int64_t n, int64_t value) {
  const int64_t lane = threadIdx.x % 32;
  int64_t first = 0;
  while (n > 0) {
    const int64_t stride = (n + 31) / 32, last = lane * stride + stride - 1;
    const int below = __popc(__ballot_sync(FULL_MASK, last < n && values[first + last] < value));
    first += below * stride;
    n = min(stride - 1, n - below * stride);
  }
  return first;
}

// Sets bit i of words [WORDS] where sample low + i begins a ray or is the end of all. `at` is the index of the first of
// ray_offsets from `low` on and becomes that of the next tile.
__device__ __forceinline__ void mark_begins(unsigned* words, const RunShape& s, int64_t low, int bits, int64_t& at) {
  const int lane = threadIdx.x % 32;
  const int64_t next = low + s.tile, end = min(low + bits, s.n_samples);
  auto mark = [&](uint64_t i) { atomicOr(&words[i / 32], 1u << i % 32); };
  __syncwarp();
  if (lane < WORDS) words[lane] = 0;
  __syncwarp();
  if (lane == 0 && s.n_samples < low + bits) mark(s.n_samples - low);
  for (int64_t i = at;;) {
    const int64_t begin = i + lane <= s.n_rays ? s.ray_offsets[i + lane] : s.n_samples;
    if (uint64_t(begin - low) < uint64_t(end - low)) mark(begin - low);
    const unsigned passed = __ballot_sync(FULL_MASK, begin < next);
    if (passed) at = i + __popc(passed);
    if (__any_sync(FULL_MASK, begin >= end)) break;
    i += 32;  // thousands of empty rays may begin at one sample
    i += first_from(s.ray_offsets + i, s.n_rays + 1 - i, __shfl_sync(FULL_MASK, begin, 31) + 1);
  }
  __syncwarp();
}

// Whether two rows of a run are of one ray: none begins between them.
__device__ __forceinline__ bool same_ray(unsigned begins, int a, int b) {
  return (begins & ((2u << (a < b ? b : a)) - (2u << (a < b ? a : b)))) == 0;
}

// A thread's channels of a sample, packed in registers: the compiler would convert bfloat16 to float too early.
template <class T>
using Packed = Vec<unsigned, V* int(sizeof(T)) / 4>;

template <class T>
__device__ __forceinline__ void widen(const Packed<T>& row, acc_t<T> (&to)[V]) {
  load(reinterpret_cast<const T*>(row.v), to);
}

// Channels c .. c + V - 1 of COUNT samples of x [N, C] from sample n on, zeros beyond both ends of x.
template <class T, int COUNT>
__device__ __forceinline__ void load_rows(const T* x, int64_t n, int c, const RunShape& s, Packed<T> (&rows)[COUNT]) {
  const int first = n < 0 ? int(-n) : 0, last = c < s.channels ? int(min(s.n_samples - n, int64_t(COUNT))) : 0;
  const T* from = x + n * s.channels + c;
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    rows[i] = {};
    if (i >= first && i < last) rows[i] = *reinterpret_cast<const Packed<T>*>(from + int64_t(i) * s.channels);
  }
}

// taps [V, K] = channels c .. c + V - 1 of weight [C, K].
template <class T>
__device__ __forceinline__ void load_taps(const T* weight, int c, const RunShape& s, acc_t<T> (&taps)[V][K]) {
#pragma unroll
  for (int i = 0; i < K; ++i) {
    acc_t<T> loaded[V] = {};
    if (c < s.channels) load(weight + c * K + i * V, loaded);
#pragma unroll
    for (int j = 0; j < V; ++j) taps[(i * V + j) / K][(i * V + j) % K] = loaded[j];
  }
}

// For the tiles of a warp: issue_loads(first sample of this thread), before anything waits, then f(first sample, bits
// of where rays begin, from K / 2 samples before it on).
template <class T, class Issue, class F>
__device__ __forceinline__ void for_tiles(const RunShape& s, const Issue& issue_loads, const F& f) {
  __shared__ unsigned all_words[THREADS / 32][WORDS];
  unsigned* words = all_words[threadIdx.x / 32];
  const int row = threadIdx.x % 32 / s.columns * RUN<T>, bits = s.tile + K - 1;
  int64_t n = (int64_t(blockIdx.x) * (THREADS / 32) + threadIdx.x / 32) * s.slice;
  const int64_t end = min(n + s.slice, s.n_samples);
  if (n >= end) return;
  int64_t at = first_from(s.ray_offsets, s.n_rays + 1, n - K / 2);
  for (; n < end; n += s.tile) {
    issue_loads(n + row);
    mark_begins(words, s, n - K / 2, bits, at);
    f(n + row, __funnelshift_r(words[row / 32], words[row / 32 + 1], row));
  }
}

template <class T>
__global__ void __launch_bounds__(THREADS, 3) depthwise_conv1d_runs_forward(const T* __restrict__ x,       // [N, C]
                                                                            const T* __restrict__ weight,  // [C, K]
                                                                            const T* __restrict__ bias,  // [C] or null
                                                                            T* __restrict__ out,         // [N, C]
                                                                            RunShape s) {
  using A = acc_t<T>;
  constexpr int COUNT = RUN<T>, ROWS = COUNT + K - 1;
  const int c = (blockIdx.y * s.columns + threadIdx.x % s.columns) * V;
  A taps[V][K], start[V] = {};
  load_taps(weight, c, s, taps);
  if (bias && c < s.channels) load(bias + c, start);
  Packed<T> rows[ROWS];
  for_tiles<T>(
      s, [&](int64_t n) { load_rows(x, n - K / 2, c, s, rows); },
      [&](int64_t n, unsigned begins) {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
          A sum[V];
#pragma unroll
          for (int v = 0; v < V; ++v) sum[v] = start[v];
#pragma unroll
          for (int u = 0; u < K; ++u) {
            if (!same_ray(begins, i + K / 2, i + u)) continue;
            A value[V];
            widen<T>(rows[i + u], value);
#pragma unroll
            for (int v = 0; v < V; ++v) sum[v] += value[v] * taps[v][u];
          }
          if (c < s.channels && n + i < s.n_samples) store(out + (n + i) * s.channels + c, sum);
        }
      });
}

template <class T>
__global__ void __launch_bounds__(THREADS, 2)
    depthwise_conv1d_runs_backward(const T* __restrict__ grad_out,   // [N, C]
                                   const T* __restrict__ x,          // [N, C]
                                   const T* __restrict__ weight,     // [C, K]
                                   T* __restrict__ grad_x,           // [N, C] or null
                                   acc_t<T>* __restrict__ partials,  // [gridDim.x, C, K + 1] or null
                                   RunShape s) {
  using A = acc_t<T>;
  constexpr int COUNT = RUN<T>, ROWS = COUNT + K - 1, WARPS = THREADS / 32;
  __shared__ A shared[WARPS][32 * V];
  const int c = (blockIdx.y * s.columns + threadIdx.x % s.columns) * V;
  A taps[V][K], sums[K + 1][V] = {};
  load_taps(weight, c, s, taps);
  Packed<T> grads[ROWS], rows[COUNT] = {};
  for_tiles<T>(
      s,
      [&](int64_t n) {
        load_rows(grad_out, n - K / 2, c, s, grads);
        if (partials) load_rows(x, n, c, s, rows);
      },
      [&](int64_t n, unsigned begins) {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
          A sum[V] = {}, value[V];
          widen<T>(rows[i], value);
#pragma unroll
          for (int u = 0; u < K; ++u) {
            const int to = i + K - 1 - u;  // the output that tap u of this sample goes to
            if (!same_ray(begins, i + K / 2, to)) continue;
            A grad[V];
            widen<T>(grads[to], grad);
#pragma unroll
            for (int v = 0; v < V; ++v) {
              sum[v] += grad[v] * taps[v][u];
              sums[u][v] += grad[v] * value[v];
              if (u == K / 2) sums[K][v] += grad[v];
            }
          }
          if (grad_x && c < s.channels && n + i < s.n_samples) store(grad_x + (n + i) * s.channels + c, sum);
        }
      });
  if (!partials) return;
  const int channel = blockIdx.y * s.columns * V + threadIdx.x;  // that this thread sums over the warps
  const bool adds = int(threadIdx.x) < s.columns * V && channel < s.channels;
#pragma unroll
  for (int u = 0; u <= K; ++u) {
    __syncthreads();
#pragma unroll
    for (int v = 0; v < V; ++v) {
      A sum = sums[u][v];
      for (int lanes = s.columns; lanes < 32; lanes *= 2) sum += __shfl_xor_sync(FULL_MASK, sum, lanes);
      if (int(threadIdx.x % 32) < s.columns) shared[threadIdx.x / 32][threadIdx.x % 32 * V + v] = sum;
    }
    __syncthreads();
    if (!adds) continue;
    A sum = 0;
#pragma unroll
    for (int warp = 0; warp < WARPS; ++warp) sum += shared[warp][threadIdx.x];
    partials[(int64_t(blockIdx.x) * s.channels + channel) * (K + 1) + u] = sum;
  }
}

// For at most max_blocks blocks along the samples.
template <class T>
RunShape run_shape(const Conv1dShape& s, int64_t max_blocks) {
  int columns = 1;
  while (columns < 32 && columns * V < s.channels) columns *= 2;
  const int tile = 32 / columns * RUN<T>;
  const int64_t warps = max_blocks * (THREADS / 32), tiles = (s.n_samples + warps * tile - 1) / (warps * tile);
  return {s, columns, tile, tiles * tile};
}

dim3 run_grid(const RunShape& s) {
  return dim3(blocks_for(s.n_samples, s.slice * (THREADS / 32)), blocks_for(s.channels, s.columns * V));
}

}  // namespace
}  // namespace nerfkit
