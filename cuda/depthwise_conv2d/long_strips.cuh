// SPDX-License-Identifier: Apache-2.0
// 7 x 7 in float32. A warp walks down a strip of 4 columns, a row of the window a step, with the sums of the rows of
// results that it adds to. All pictures are one strip, cut into equal pieces. A step is a turn of a loop: with seven in
// a row, so that each sum stays in its register, there are more instructions than the instruction cache holds. The sums
// move on by a register in every step without an instruction of their own, for the first product of a step has another
// register as its result than as its operand. The rows of x that the weight's gradient needs are read from shared
// memory at every step.

#pragma once

#include <cstdlib>

#include "common/pdl.cuh"
#include "depthwise_conv2d/cut_strips.h"
#include "depthwise_conv2d/long_strips_rows.cuh"

namespace nerfkit {

// Copies the weights of a block's 32 channels to shared memory, in order, and returns those of this lane's channel: if
// a lane loaded its own from global memory, each load would touch 32 lines.
template <int TAPS, int THREADS>
__device__ __forceinline__ const float* share_weights(const LongConv& a, int group, float* shared) {
  const int64_t first = int64_t(group) * 32 * TAPS, end = int64_t(a.channels) * TAPS;
#pragma unroll
  for (int k = 0; k < (32 * TAPS + THREADS - 1) / THREADS; ++k) {
    const int i = threadIdx.x + k * THREADS;
    if (i < 32 * TAPS) cp_async_zfill<sizeof(float)>(shared + i, a.weight + first + i, first + i < end);
  }
  cp_async_commit();
  cp_async_wait<0>();
  __syncthreads();
  return shared + threadIdx.x % 32 * TAPS;
}

// What a lane keeps of its columns.
template <class Strip, int K, bool BACKWARD>
struct LongSums {
  static constexpr int V = Strip::V, N = Strip::N, TAPS = K * K, HALF = K / 2;
  float weight[TAPS], start;
  float result[K - 1][V];  // of the row that the next step ends, then of those below
  float taps[TAPS + 1];    // of the weight's gradient, flipped, and of the bias's

  __device__ __forceinline__ LongSums(const float* from, float bias) : start(bias), result{}, taps{} {
#pragma unroll
    for (int k = 0; k < TAPS; ++k) weight[BACKWARD ? TAPS - 1 - k : k] = from[k];
  }

  // Of a row of the window, which is zero outside the picture.
  __device__ __forceinline__ void add_to_bias(const float (&window)[N]) {
    static_assert(V == 4);
    taps[TAPS] += (window[HALF] + window[HALF + 1]) + (window[HALF + 2] + window[HALF + 3]);
  }

  // Adds the products with a row of the window, and with K rows of x, the oldest first. `ended`: a row of results.
  __device__ __forceinline__ void add_row(const Strip& strip, const float (&window)[N], const unsigned char* centers,
                                          float (&ended)[V]) {
#pragma unroll
    for (int i = 0; i < K; ++i) {
      const int u = K - 1 - i;  // the window is at this row of result i's
      float now[V], center[V];
      if (BACKWARD) strip.read_center(centers + i * Strip::Ring::CENTER, center);
#pragma unroll
      for (int j = 0; j < V; ++j) now[j] = u ? result[i][j] : start;
#pragma unroll
      for (int v = 0; v < K; ++v)
#pragma unroll
        for (int j = 0; j < V; ++j) now[j] += weight[u * K + v] * window[v + j];
#pragma unroll
      for (int j = 0; j < V; ++j) (i ? result[i - 1] : ended)[j] = now[j];
      if constexpr (BACKWARD)
#pragma unroll
        for (int v = 0; v < K; ++v)
#pragma unroll
          for (int j = 0; j < V; ++j) taps[u * K + v] += center[j] * window[v + j];
    }
  }
};

template <int K, bool CHANNELS_LAST, bool BACKWARD>
constexpr int long_shared_bytes() {
  using Shape = LongShape<CHANNELS_LAST, BACKWARD>;
  using Ring = typename LongStrip<K, CHANNELS_LAST, BACKWARD>::Ring;
  const int rows = Shape::WARPS * Ring::BYTES, weights = CHANNELS_LAST ? 32 * K * K * int(sizeof(float)) : 0;
  return std::max({rows, weights, BACKWARD ? int(sizeof(WarpSums<float, K * K + 1, Shape::WARPS>)) : 0});
}

template <int K, bool CHANNELS_LAST, bool BACKWARD>
__global__ void __launch_bounds__(LongShape<CHANNELS_LAST, BACKWARD>::THREADS,
                                  LongShape<CHANNELS_LAST, BACKWARD>::RESIDENT) long_strips(const LongConv a) {
  using Shape = LongShape<CHANNELS_LAST, BACKWARD>;
  using Strip = LongStrip<K, CHANNELS_LAST, BACKWARD>;
  using Ring = typename Strip::Ring;
  constexpr int TAPS = K * K, AHEAD = Shape::AHEAD;
  if (BACKWARD) pdl_trigger();
  extern __shared__ __align__(16) unsigned char memory[];
  const int part = blockIdx.x / a.across, group = blockIdx.x % a.across, all_rows = a.batch * a.period;
  const Strip strip(a, part, group);
  const int first = int(min(int64_t(strip.line) * a.rows, int64_t(all_rows))), count = min(a.rows, all_rows - first);
  LongRows<Strip, BACKWARD> inputs(a, strip, first, count, K / 2);
  LongPlace<float> out(a, a.out + strip.result, first - (K - 1));
  pdl_wait();
  const bool real = strip.channel < a.channels;
  const float* weight = a.weight + int64_t(real ? strip.channel : 0) * TAPS;
  if constexpr (CHANNELS_LAST) weight = share_weights<TAPS, Shape::THREADS>(a, group, reinterpret_cast<float*>(memory));
  LongSums<Strip, K, BACKWARD> sums(weight, !BACKWARD && a.bias && real ? a.bias[strip.channel] : 0.f);
  __syncthreads();  // the memory is now for the rows
  for (int i = threadIdx.x; i < Shape::WARPS * Ring::BYTES / 16; i += Shape::THREADS)
    reinterpret_cast<uint4*>(memory)[i] = {};
  __syncthreads();
  const unsigned address = no_remat(shared_address(memory));
  inputs.start(address, strip, a);

  const int steps = a.rows + K - 1, to_write = a.out ? count : 0;
#pragma unroll(Shape::UNROLL)
  for (int step = 0; step < steps; ++step) {
    cp_async_wait<AHEAD - 1>();
    __syncwarp();  // all lanes' copies are there, and all have read the slots that the next copies go to
    inputs.copy(address, strip, a, step + AHEAD);
    float window[Strip::N], ended[Strip::V];
    strip.read_window(inputs.window_in(memory), window);
    const unsigned char* centers = inputs.centers_in(memory);
    inputs.advance();
    if (BACKWARD && unsigned(step - K / 2) < unsigned(count)) sums.add_to_bias(window);
    sums.add_row(strip, window, centers, ended);
    strip.write(out.at, a, out.inside(a) && unsigned(step - (K - 1)) < unsigned(to_write), ended);
    out.advance(a);
  }
  if constexpr (BACKWARD) {
    if (!a.partials) return;
    cp_async_wait<0>();  // the memory is now for the sums
    float flipped[TAPS + 1];
#pragma unroll
    for (int k = 0; k <= TAPS; ++k) flipped[k] = sums.taps[k < TAPS ? TAPS - 1 - k : TAPS];
    auto& of_warp = *reinterpret_cast<WarpSums<float, TAPS + 1, Shape::WARPS>*>(memory);
    constexpr int CHANNELS = CHANNELS_LAST ? 32 : 1;
    write_partials(flipped, of_warp, a.partials, part, group * CHANNELS, CHANNELS, 1, a.channels);
  }
}

// Returns the blocks that share a channel; a piece begins with the rows of its neighbour and with waiting.
template <bool CHANNELS_LAST, bool BACKWARD>
int64_t cut_long_strips(LongConv& a, int kernel, int processors) {
  using Shape = LongShape<CHANNELS_LAST, BACKWARD>;
  constexpr int START = 4, OF_BLOCK = CHANNELS_LAST ? Shape::WARPS : 32;  // START: steps' worth of waiting
  const int64_t rows = int64_t(a.batch) * a.period, resident = int64_t(processors) * Shape::RESIDENT;
  const auto steps_of = [&](int64_t rows) { return rows + kernel - 1 + START; };
  const Pieces best = cut_strips(rows, a.strips, a.across, OF_BLOCK, resident, rows / kernel, steps_of);
  a.rows = int(best.rows);
  return best.blocks / a.across;
}

// Returns the blocks that share a channel, or 0 if this is too large.
template <bool CHANNELS_LAST>
int64_t share_out_long_strips(LongConv& a, const Conv2dShape& s, bool backward, const Gpu& gpu) {
  constexpr int OUTSIDE = 16;  // columns beside a picture, rows of a piece that ends later: distances are int
  const int kernel = s.x.kernel;
  const Conv2dShape::Strides strides = s.strides(s.y.size, s.x.size);
  const int64_t period = s.y.size + kernel / 2, next_picture = strides.batch - (period - 1) * strides.row;
  if ((s.x.size + OUTSIDE) * strides.column > INT32_MAX || strides.row > INT32_MAX) return 0;
  if (s.batch > 1 && std::abs(next_picture) > INT32_MAX) return 0;
  if (2 * s.batch * (period + OUTSIDE) > INT32_MAX) return 0;
  a.channels = int(s.channels), a.batch = int(s.batch), a.height = s.y.size, a.width = s.x.size, a.period = int(period);
  a.picture = strides.batch, a.channel = strides.channel;
  a.row = int(strides.row), a.column = int(strides.column), a.next_picture = int(next_picture);
  a.strips = int(blocks_for(a.width, LongShape<CHANNELS_LAST, true>::COLUMNS));
  a.across = int(CHANNELS_LAST ? blocks_for(a.channels, 32) : a.channels);
  const int64_t parts = backward ? cut_long_strips<CHANNELS_LAST, true>(a, kernel, gpu.processors)
                                 : cut_long_strips<CHANNELS_LAST, false>(a, kernel, gpu.processors);
  return parts > INT32_MAX / 32 || a.across * parts > INT32_MAX ? 0 : parts;
}

template <int K, bool CHANNELS_LAST, bool BACKWARD>
void launch_long_strips(const LongConv& a, int64_t parts, cudaStream_t stream) {
  constexpr int BYTES = long_shared_bytes<K, CHANNELS_LAST, BACKWARD>();
  static_assert(BYTES <= 64 * 1024, "a block may have that of every GPU");
  const auto kernel = long_strips<K, CHANNELS_LAST, BACKWARD>;
  if (BYTES > 48 * 1024) cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, BYTES);
  pdl_launch(kernel, unsigned(a.across * parts), LongShape<CHANNELS_LAST, BACKWARD>::THREADS, BYTES, stream, a);
}

}  // namespace nerfkit
