// SPDX-License-Identifier: Apache-2.0
// Half types on tensor cores, channels last, for kernels of 7 x 7: the products of depthwise_conv2d_half.cuh, but a warp
// takes 16 rows and 32 columns of one channel a step, with the rows that the kernel covers in shared memory. A block has 16
// channels, which it takes apart on the way in and puts together on the way out.

#pragma once

#include "depthwise_conv2d_half.cuh"

namespace nerfkit {

constexpr int STEP = 16, RING = 32;             // rows of a step; rows in shared memory
constexpr int COLUMNS = 32, PAIRS = COLUMNS / 2;  // of a strip
constexpr int CHANNELS = 16, THREADS_CHANNELS = 32 * CHANNELS;

// Two columns a word. Channels lie 4 banks apart.
template <int COUNT>
struct alignas(16) ChannelRows {
  unsigned row[COUNT][PAIRS + MARGIN];
  unsigned apart[4];
};

struct alignas(16) ChannelsShared {
  ChannelRows<RING> ring[CHANNELS];    // from column x0 - MARGIN on
  ChannelRows<STEP> staged[CHANNELS];  // x on its way in, the result on its way out; from column x0 on
};

struct HalfChannelsStrip {
  int64_t base;  // of the picture at the group's first channel
  int part, x0, first, last, channel;

  // The groups of one strip are neighbours.
  template <class T>
  __device__ __forceinline__ HalfChannelsStrip(const HalfConv<T>& a, int unit) {
    const int groups = (a.channels + CHANNELS - 1) / CHANNELS;
    part = unit / groups;
    const int picture = part / (a.strips * a.pieces), piece = part % (a.strips * a.pieces);
    channel = unit % groups * CHANNELS;
    base = picture * a.strides.batch + channel;
    x0 = piece % a.strips * COLUMNS, first = piece / a.strips * a.rows, last = min(first + a.rows, a.height);
  }
};

// Between global and shared memory. An item is 8 channels of two neighbouring pixels.
template <class T>
struct ChannelsMover {
  static constexpr int OVER = PAIRS + MARGIN, ITEMS = (STEP * OVER * 2 + THREADS_CHANNELS - 1) / THREADS_CHANNELS;
  static_assert(STEP * PAIRS * 2 == THREADS_CHANNELS, "a thread takes one item of x and of the result");
  uint4 rows[ITEMS][2], x[2];

  static __device__ __forceinline__ void fetch(uint4 (&to)[2], const T* from, const HalfConv<T>& a, const HalfChannelsStrip& at,
                                               int half, int y, int column, int end) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const bool inside = y >= 0 && y < end && column + i >= 0 && column + i < a.width && at.channel + half * 8 < a.channels;
      to[i] = {};
      if (inside)
        to[i] = *reinterpret_cast<const uint4*>(from + at.base + y * a.strides.row + (column + i) * a.strides.column + half * 8);
    }
  }

  // The pair of channels that a half takes as its i-th: so that the two halves of a warp meet different banks.
  static __device__ __forceinline__ int pair_of(int half, int i) { return half ? i ^ 2 : i; }

  static __device__ __forceinline__ uint4 in_order(const unsigned (&pairs)[4], int half) {
    return half ? uint4{pairs[2], pairs[3], pairs[0], pairs[1]} : uint4{pairs[0], pairs[1], pairs[2], pairs[3]};
  }

  // Channels apart: a register holds two neighbouring columns of one channel.
  template <class Planes>
  static __device__ __forceinline__ void put(Planes& planes, const uint4 (&from)[2], int half, int row, int pair) {
    const auto &left = reinterpret_cast<const unsigned(&)[4]>(from[0]), &right = reinterpret_cast<const unsigned(&)[4]>(from[1]);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const unsigned l = half ? left[i ^ 2] : left[i], r = half ? right[i ^ 2] : right[i];
      const int channel = half * 8 + 2 * pair_of(half, i);
      planes[channel].row[row][pair] = __byte_perm(l, r, 0x5410);
      planes[channel + 1].row[row][pair] = __byte_perm(l, r, 0x7632);
    }
  }

  __device__ __forceinline__ void fetch_rows(const HalfConv<T>& a, const HalfChannelsStrip& at, int y0) {
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
      const int item = threadIdx.x + THREADS_CHANNELS * k, row = item / 2 / OVER;
      fetch(rows[k], a.in, a, at, item % 2, row < STEP ? y0 + row : -1, at.x0 - MARGIN + item / 2 % OVER * 2, a.height);
    }
  }

  __device__ __forceinline__ void put_rows(ChannelsShared& shared, int slot) {
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
      const int item = threadIdx.x + THREADS_CHANNELS * k, row = item / 2 / OVER;
      if (row < STEP) put(shared.ring, rows[k], item % 2, slot + row, item / 2 % OVER);
    }
  }

  __device__ __forceinline__ void fetch_x(const HalfConv<T>& a, const HalfChannelsStrip& at, int y0) {
    const int item = threadIdx.x;
    fetch(x, a.x, a, at, item % 2, y0 + item / 2 / PAIRS, at.x0 + item / 2 % PAIRS * 2, at.last);
  }

  __device__ __forceinline__ void put_x(ChannelsShared& shared) {
    const int item = threadIdx.x;
    put(shared.staged, x, item % 2, item / 2 / PAIRS, item / 2 % PAIRS);
  }

  static __device__ __forceinline__ void write(const ChannelsShared& shared, const HalfConv<T>& a, const HalfChannelsStrip& at,
                                               int y0) {
    const int item = threadIdx.x, half = item % 2, row = item / 2 / PAIRS, pair = item / 2 % PAIRS, x0 = at.x0 + pair * 2;
    if (y0 + row >= at.last || x0 >= a.width || at.channel + half * 8 >= a.channels) return;
    unsigned left[4], right[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int channel = half * 8 + 2 * pair_of(half, i);
      const unsigned even = shared.staged[channel].row[row][pair], odd = shared.staged[channel + 1].row[row][pair];
      left[i] = __byte_perm(even, odd, 0x5410), right[i] = __byte_perm(even, odd, 0x7632);
    }
    T* to = a.out + at.base + (y0 + row) * a.strides.row + x0 * a.strides.column + half * 8;
    *reinterpret_cast<uint4*>(to) = in_order(left, half);
    if (x0 + 1 < a.width) *reinterpret_cast<uint4*>(to + a.strides.column) = in_order(right, half);
  }
};

constexpr int BLOCKS = COLUMNS / 8;
using RingRows = unsigned[RING][PAIRS + MARGIN];
using StepRows = unsigned[STEP][PAIRS + MARGIN];

// 16 rows of a channel, the window's first row in `slot`: window (transposed) times x, and times ones for the bias.
template <class T, int K>
__device__ __forceinline__ void add_to_taps(const RingRows& ring, const StepRows& x, int slot, float (&sums)[K][4],
                                            float (&bias)[4]) {
  const int lane = threadIdx.x % 32;
  unsigned center[BLOCKS][2];
#pragma unroll
  for (int n = 0; n < BLOCKS; ++n) load_matrices<true>(&x[lane % 16][n * 4], center[n][0], center[n][1]);
#pragma unroll
  for (int u = 0; u < K; ++u) {
    const auto& row = ring[(slot + u + lane % 16) % RING];
    unsigned window[BLOCKS + 1][2];
#pragma unroll
    for (int n = 0; n <= BLOCKS; ++n) load_matrices<true>(&row[n * 4], window[n][0], window[n][1]);
#pragma unroll
    for (int n = BLOCKS - 1; n >= 0; --n) {  // in this order no register is spilled
      add_product(T(), sums[u], window[n][0], window[n + 1][0], window[n][1], window[n + 1][1], center[n][0], center[n][1]);
      const unsigned one = pack<T>(1.f, 1.f);
      if (u == K / 2) add_product(T(), bias, window[n][0], window[n + 1][0], window[n][1], window[n + 1][1], one, one);
    }
  }
}

// The results of 16 rows.
template <class T, int K>
__device__ __forceinline__ void convolve(const RingRows& ring, StepRows& results, int slot, float start,
                                         const unsigned (&band)[K][2]) {
  const int lane = threadIdx.x % 32;
  float out[BLOCKS][4];
#pragma unroll
  for (int n = 0; n < BLOCKS; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) out[n][i] = start;
#pragma unroll
  for (int u = 0; u < K; ++u) {
    const auto& row = ring[(slot + u + lane % 16) % RING];
    unsigned window[BLOCKS + 1][2];
#pragma unroll
    for (int n = 0; n <= BLOCKS; ++n) load_matrices<false>(&row[n * 4], window[n][0], window[n][1]);
#pragma unroll
    for (int n = 0; n < BLOCKS; ++n)
      add_product(T(), out[n], window[n][0], window[n][1], window[n + 1][0], window[n + 1][1], band[u][0], band[u][1]);
  }
#pragma unroll
  for (int n = 0; n < BLOCKS; ++n) {
    results[lane / 4][n * 4 + lane % 4] = pack<T>(out[n][0], out[n][1]);
    results[lane / 4 + 8][n * 4 + lane % 4] = pack<T>(out[n][2], out[n][3]);
  }
}

template <class T, int K, bool BACKWARD>
__global__ void __launch_bounds__(THREADS_CHANNELS, 1) half_channels(const HalfConv<T> a) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<ChannelsShared*>(memory);
  const HalfChannelsStrip at(a, blockIdx.x);
  const int plane = threadIdx.x / 32, channel = at.channel + plane;
  const bool real = channel < a.channels, to_sums = BACKWARD && a.partials, to_out = a.out;
  unsigned band[K][2] = {};
  float sums[BACKWARD ? K : 1][4] = {}, bias[4] = {};
  if (real) band_matrices<T, K, K, BACKWARD>(a.weight + int64_t(channel) * (K * K), band);
  const float start = !BACKWARD && real && a.bias ? float(a.bias[channel]) : 0.f;

  ChannelsMover<T> mover, second;
  mover.fetch_rows(a, at, at.first - K / 2);
  second.fetch_rows(a, at, at.first - K / 2 + STEP);
  mover.put_rows(shared, 0);
  second.put_rows(shared, STEP);
  if (to_sums) mover.fetch_x(a, at, at.first);
  int slot = 0;
  for (int y0 = at.first; y0 < at.last; y0 += STEP, slot ^= STEP) {
    if (to_sums) mover.put_x(shared);
    __syncthreads();
    const bool more = y0 + STEP < at.last;
    if (more) mover.fetch_rows(a, at, y0 - K / 2 + RING);  // arrives while this step is computed
    if (more && to_sums) mover.fetch_x(a, at, y0 + STEP);
    auto& ring = shared.ring[plane].row;
    auto& staged = shared.staged[plane].row;
    if constexpr (BACKWARD)
      if (to_sums) add_to_taps<T, K>(ring, staged, slot, sums, bias);
    __syncwarp();  // x has been read
    if (to_out) convolve<T, K>(ring, staged, slot, start, band);
    __syncthreads();
    if (to_out) mover.write(shared, a, at, y0);
    if (more) mover.put_rows(shared, slot);
    if (to_sums) __syncthreads();
  }
  if constexpr (BACKWARD)
    if (to_sums && real)
      write_sums<K, K>(sums, bias, reinterpret_cast<float*>(shared.staged[plane].row),
                       a.partials + (int64_t(at.part) * a.channels + channel) * (K * K + 1));
}

// Pieces of the height, so that the blocks come in full waves; a piece begins with two steps' worth of loading.
template <class T>
void share_out_channels(HalfConv<T>& a, int64_t batch, int processors) {
  constexpr int MOST_WAVES = 8;
  const int64_t groups = batch * blocks_for(a.channels, CHANNELS), steps = blocks_for(a.height, STEP);
  a.strips = int(blocks_for(a.width, COLUMNS));
  int64_t best = INT64_MAX;
  for (int waves = 1; waves <= MOST_WAVES; ++waves) {
    const int64_t pieces = std::min(steps, std::max<int64_t>(1, int64_t(waves) * processors / (groups * a.strips)));
    const int64_t each = (steps + pieces - 1) / pieces;
    const int64_t cost = (groups * a.strips * pieces + processors - 1) / processors * (each + 2);
    if (cost < best) best = cost, a.rows = int(each * STEP);
  }
  a.pieces = int(blocks_for(a.height, a.rows));
  a.units = groups * a.strips * a.pieces;
}

template <class T, int K, bool BACKWARD>
void launch_half_channels(const HalfConv<T>& a, cudaStream_t stream) {
  const auto kernel = half_channels<T, K, BACKWARD>;
  constexpr int SHARED = sizeof(ChannelsShared);
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED);
  kernel<<<unsigned(a.units), THREADS_CHANNELS, SHARED, stream>>>(a);
}

}  // namespace nerfkit
