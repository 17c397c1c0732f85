// SPDX-License-Identifier: Apache-2.0
// A lane goes down a strip of V columns, with the sums of the K rows of results that a row of the image adds to. Rows
// come through shared memory, prefetched several steps before their use: the bytes in flight are then many even where
// the sums of the weight's gradient leave registers for few warps. A warp has rows of its own and never waits for
// another.

#pragma once

#include <type_traits>

#include "common/pdl.cuh"
#include "depthwise_conv2d/strips_channels.cuh"
#include "depthwise_conv2d/strips_planes.cuh"

namespace nerfkit {

template <class T, int K, Layout LAYOUT, Pass PASS>
using Strip = std::conditional_t<LAYOUT == Layout::planes, PlaneStrip<T, K, PASS>, ChannelsStrip<T, K, PASS>>;

// Copies the weights [32, K * K] of a block's channels to shared memory and returns those of this lane's channel: if a
// lane loaded its own from global memory, each load would touch 32 cache lines.
template <int TAPS, class T>
__device__ __forceinline__ const T* share_weights(const StripArgs<T>& a, int group, T* shared) {
  const int64_t first = int64_t(group) * 32 * TAPS, end = int64_t(a.channels) * TAPS;
  for (int i = threadIdx.x; i < 32 * TAPS; i += THREADS_2D) shared[i] = first + i < end ? a.weight[first + i] : T(0.f);
  __syncthreads();
  return shared + threadIdx.x % 32 * TAPS;
}

template <class T, int K, Layout LAYOUT, Pass PASS>
__global__ void __launch_bounds__(THREADS_2D, strip_shape(K, sizeof(T), LAYOUT, PASS).resident)
    depthwise_conv2d_strips(const StripArgs<T> a) {
  using A = acc_t<T>;
  using S = Strip<T, K, LAYOUT, PASS>;
  constexpr bool BACKWARD = PASS == Pass::backward, SHARE_WEIGHTS = LAYOUT == Layout::channels_last && K == 7;
  constexpr int V = S::V, CH = S::CH, N = S::N, TAPS = K * K, HALF = K / 2, DEPTH = ring_depth(K, sizeof(T), LAYOUT);
  if (BACKWARD) pdl_trigger();
  extern __shared__ __align__(16) unsigned char memory[];
  auto& slots = reinterpret_cast<typename S::Slot(*)[DEPTH]>(memory)[threadIdx.x / 32];
  const int part = blockIdx.x / a.across, group = blockIdx.x % a.across, c = S::channel(group);
  const bool real = c < a.channels, to_sums = BACKWARD && a.partials;
  const unsigned tiles_y = (a.height + a.rows - 1) / a.rows;
  int x0;
  const unsigned line = S::line(a, part, x0);
  const StripRows<K> rows(a, line, tiles_y);
  S strip(a, line / tiles_y * a.strides.batch + rows.first * a.strides.row + x0 * a.strides.column, x0, group);
  pdl_wait();
  A w[CH][TAPS], start[CH] = {}, sums[CH][TAPS + 1] = {};
  const auto read_weights = [](const T* weight, A(&to)[TAPS]) {  // flipped backward
#pragma unroll
    for (int k = 0; k < TAPS; ++k) to[BACKWARD ? TAPS - 1 - k : k] = A(weight[k]);
  };
  if constexpr (SHARE_WEIGHTS) {
    static_assert(CH == 1 && sizeof(slots) * WARPS_2D >= 32 * TAPS * sizeof(T));
    read_weights(share_weights<TAPS>(a, group, reinterpret_cast<T*>(memory)), w[0]);
    __syncthreads();  // the memory is now for the rows
  }
  for (int i = 0; i < DEPTH; ++i) strip.clear(slots[i]);
  __syncwarp();

  const int steps = a.rows + K - 1, to_read = to_sums ? rows.count : 0, to_write = a.out ? rows.count : 0;
  const auto prefetch = [&](int step, typename S::Slot& slot) {
    strip.prefetch(slot, rows.has(step), step < to_read);
    cp_async_commit();
  };
#pragma unroll
  for (int i = 0; i < DEPTH - 1; ++i) prefetch(i, slots[i]);

#pragma unroll
  for (int ch = 0; ch < CH; ++ch) {
    if (!SHARE_WEIGHTS) read_weights(a.weight + int64_t(real ? c + ch : 0) * TAPS, w[ch]);
    if (!BACKWARD && a.bias && real) start[ch] = A(a.bias[c + ch]);
  }

  // A step adds to the results of rows step - u; result row i has its accumulators, and its x, at index i % K.
  A sum[K][V][CH] = {}, center[K][V][CH] = {};
  for (int step0 = 0; step0 < steps; step0 += DEPTH) {
#pragma unroll
    for (int j = 0; j < DEPTH; ++j) {
      const int step = step0 + j;
      if (step >= steps) break;
      cp_async_wait<DEPTH - 2>();
      __syncwarp();  // all lanes' copies have arrived, and all have read the slot that the next copies go to
      prefetch(step + DEPTH - 1, slots[(j + DEPTH - 1) % DEPTH]);
      A window[N][CH];
      if (BACKWARD) strip.read_center(slots[j], center[j % K]);
      strip.read(slots[j], window);
      if (BACKWARD && unsigned(step - HALF) < unsigned(rows.count)) {
#pragma unroll
        for (int i = 0; i < V; ++i)
#pragma unroll
          for (int ch = 0; ch < CH; ++ch) sums[ch][TAPS] += window[HALF + i][ch];  // zero outside the image
      }
      // Results of neighbouring strips too: a branch around their products costs more than they do.
#pragma unroll
      for (int u = 0; u < K; ++u) {
        const int open = (j + DEPTH - u) % K;
#pragma unroll
        for (int v = 0; v < K; ++v)
#pragma unroll
          for (int i = 0; i < V; ++i)
#pragma unroll
            for (int ch = 0; ch < CH; ++ch) {
              sum[open][i][ch] = w[ch][u * K + v] * window[v + i][ch] + (u || v ? sum[open][i][ch] : start[ch]);
              if (BACKWARD) sums[ch][u * K + v] += center[open][i][ch] * window[v + i][ch];
            }
      }
      strip.write(unsigned(step - (K - 1)) < unsigned(to_write), sum[(j + 1) % K]);
    }
  }
  if constexpr (BACKWARD) {
    if (!to_sums) return;
    cp_async_wait<0>();  // the memory is now for the sums
    A flipped[CH][TAPS + 1];
#pragma unroll
    for (int ch = 0; ch < CH; ++ch)
#pragma unroll
      for (int k = 0; k <= TAPS; ++k) flipped[ch][k] = sums[ch][k < TAPS ? TAPS - 1 - k : TAPS];
    S::write_sums(flipped, memory, a, part, group);
  }
}

// False if a block of this GPU has too little shared memory.
template <class T, int K, Layout LAYOUT, Pass PASS>
bool launch_strips(const StripArgs<T>& a, const StripGrid& grid, const Gpu& gpu, cudaStream_t stream) {
  constexpr bool BACKWARD = PASS == Pass::backward;
  using Slot = typename Strip<T, K, LAYOUT, PASS>::Slot;
  constexpr size_t RING = sizeof(Slot) * ring_depth(K, sizeof(T), LAYOUT) * WARPS_2D;
  constexpr size_t SUMS = BACKWARD ? sizeof(WarpSums<acc_t<T>, K * K + 1>) : 0, SHARED = std::max(RING, SUMS);
  if (SHARED > size_t(gpu.shared_bytes)) return false;
  const auto kernel = depthwise_conv2d_strips<T, K, LAYOUT, PASS>;
  if (SHARED > 48 * 1024) cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(SHARED));
  const unsigned blocks = unsigned(grid.across * grid.shared);
  if (BACKWARD && K == 3)  // measured: launched early, it took up to a tenth longer
    kernel<<<blocks, THREADS_2D, SHARED, stream>>>(a);
  else
    pdl_launch(kernel, blocks, THREADS_2D, SHARED, stream, a);
  return true;
}

// Whether the kernels are made for a case.
inline bool fits_strips(const Conv2dShape& s, int bytes, Pass pass) {
  const int k = same_size_side(s);
  const bool made = k == 3 || (k == 5 && (bytes == 4 || s.channels_last)) || (k == 7 && bytes == 4);
  if (!made || bytes > 4 || is_empty(s)) return false;
  if (!s.channels_last) return s.x.size % strip_shape(k, bytes, Layout::planes, pass).columns == 0;
  constexpr int OUTSIDE = 16;  // columns; distances along a row are int
  return s.channels * bytes % 16 == 0 && (s.x.size + OUTSIDE) * s.channels <= INT32_MAX;
}

template <class T, Pass PASS>
int64_t try_launch_strips(const Conv2dArrays<T>& arrays, const Conv2dShape& s, cudaStream_t stream) {
  if (!fits_strips(s, sizeof(T), PASS) || !all_aligned(arrays, 16)) return 0;
  const Gpu gpu = current_gpu();
  const StripGrid grid = strip_grid(s, sizeof(T), PASS, gpu.processors);
  if (grid.across * grid.shared > INT32_MAX || grid.shared > INT32_MAX / THREADS_2D) return 0;
  const StripArgs<T> a{arrays,   int(s.channels),  int(s.batch), s.y.size,
                       s.x.size, int(grid.across), grid.rows,    s.strides(s.y.size, s.x.size)};
  const auto launch = [&](auto side) {
    constexpr int K = decltype(side)::value;
    if (s.channels_last) return launch_strips<T, K, Layout::channels_last, PASS>(a, grid, gpu, stream);
    if constexpr (sizeof(T) == 4 || K == 3) return launch_strips<T, K, Layout::planes, PASS>(a, grid, gpu, stream);
    return false;  // fits_strips() leaves them to tensor cores
  };
  bool taken = false;
  if (s.x.kernel == 3) taken = launch(std::integral_constant<int, 3>());
  if (s.x.kernel == 5) taken = launch(std::integral_constant<int, 5>());
  if constexpr (sizeof(T) == 4)
    if (s.x.kernel == 7) taken = launch(std::integral_constant<int, 7>());
  return taken ? grid.shared : 0;
}

}  // namespace nerfkit
