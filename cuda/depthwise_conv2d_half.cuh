// SPDX-License-Identifier: Apache-2.0
// Half types on tensor cores, for kernels of 7 x 7 or of one row that keep the picture's size. A warp walks down a strip of
// one plane, 16 rows a step; the rows that the kernel covers stay in shared memory. One row of taps over 16 rows and 8
// columns is a product: 16 x 16 values of the window times the 16 x 8 band matrix that has the taps on its diagonals.
// Backward, the gradient of x is the same over grad_out with the kernel flipped. The weight's is one more product for each
// row of taps: window (transposed) times x, whose diagonals hold the taps' sums.
// A value that is not finite reaches all results that share its window of 16 columns, through products with zero.

#pragma once

#include <type_traits>

#include "depthwise_conv2d.h"
#include "tensor_cores.cuh"

namespace nerfkit {

template <class T>
struct HalfConv {
  const T* in;      // x, or grad_out for the backward pass
  const T* weight;  // [C, KH * KW]
  const T* bias;
  T* out;           // null if only the weight's gradient is wanted
  const T* x;       // backward: to be multiplied with the window
  float* partials;  // [parts, C, KH * KW + 1], or null
  Conv2dShape::Strides strides;
  int64_t units;  // planes or, channels last, groups of channels; times strips
  int channels, height, width, strips, segments, rows;
};

constexpr int STEP = 16, RING = 32;  // rows of a step; rows in shared memory

// Two columns a word. Planes lie 4 banks apart.
template <int COUNT, int WORDS>
struct alignas(16) Rows {
  unsigned row[COUNT][WORDS];
  unsigned apart[4];
};

template <bool CHANNELS_LAST>
struct HalfSize {
  static constexpr int COLUMNS = CHANNELS_LAST ? 32 : 64, PLANES = CHANNELS_LAST ? 16 : 4, THREADS = 32 * PLANES;
  static constexpr int WORDS = COLUMNS / 2 + 4;  // of a row: an odd number of 16 bytes, against bank conflicts
  struct alignas(16) Shared {
    Rows<RING, WORDS> ring[PLANES];    // column j is picture column x0 - KW / 2 + j
    Rows<STEP, WORDS> staged[PLANES];  // x on its way in, the result on its way out; column j is x0 + j
  };
};

struct Strip {
  int64_t base;  // of the plane or, channels last, of the picture at the group's first channel
  int64_t part;
  int x0, first, last, channel;
};

// Eight values from column `first` on, zero outside the picture. VECTOR: all in or all out, and aligned.
template <class T, bool VECTOR>
__device__ __forceinline__ uint4 load_eight(const T* row, int first, int width) {
  uint4 all = {};
  if constexpr (VECTOR) {
    if (first >= 0 && first < width) all = *reinterpret_cast<const uint4*>(row + first);
  } else {
    auto* values = reinterpret_cast<unsigned short*>(&all);
#pragma unroll
    for (int i = 0; i < 8; ++i)
      if (first + i >= 0 && first + i < width) values[i] = reinterpret_cast<const unsigned short*>(row)[first + i];
  }
  return all;
}

// Between global and shared memory, for one warp and its plane.
template <class T, int KW, bool VECTOR>
struct PlaneMover {
  using Size = HalfSize<false>;
  static constexpr int OVER = Size::COLUMNS / 8 + 2, ROWS_ITEMS = STEP * OVER / 32, X_ITEMS = STEP * Size::COLUMNS / 8 / 32;
  uint4 rows[ROWS_ITEMS], x[X_ITEMS];

  static __device__ __forceinline__ void sync() { __syncwarp(); }

  // Columns x0 - 8 .. of 16 rows of the window.
  __device__ __forceinline__ void fetch_rows(const HalfConv<T>& a, const Strip& at, int y0, int end) {
#pragma unroll
    for (int k = 0; k < ROWS_ITEMS; ++k) {
      const int item = threadIdx.x % 32 + 32 * k, y = y0 + item / OVER;
      rows[k] = {};
      const T* row = a.in + at.base + y * a.strides.row;
      if (y >= 0 && y < end) rows[k] = load_eight<T, VECTOR>(row, at.x0 - 8 + item % OVER * 8, a.width);
    }
  }

  // Shifted by the padding, with the last values of the lane before.
  __device__ __forceinline__ void put_rows(Size::Shared& shared, int slot) {
    constexpr int P = KW / 2;
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < ROWS_ITEMS; ++k) {
      const int item = lane + 32 * k, eight = item % OVER;
      const uint4 wrapped = rows[k ? k - 1 : 0];
      const bool last = lane == 31;
      const unsigned z = __shfl_sync(ALL_LANES, last ? wrapped.z : rows[k].z, (lane + 31) % 32);
      const unsigned w = __shfl_sync(ALL_LANES, last ? wrapped.w : rows[k].w, (lane + 31) % 32);
      const unsigned six[6] = {z, w, rows[k].x, rows[k].y, rows[k].z, rows[k].w};
      unsigned to[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        constexpr int FIRST = (4 - P) / 2;
        to[j] = P % 2 ? __funnelshift_r(six[FIRST + j], six[FIRST + j + 1], 16) : six[FIRST + j];
      }
      auto& row = shared.ring[threadIdx.x / 32].row[slot + item / OVER];
      if (eight) *reinterpret_cast<uint4*>(&row[(eight - 1) * 4]) = {to[0], to[1], to[2], to[3]};
    }
  }

  __device__ __forceinline__ void fetch_x(const HalfConv<T>& a, const Strip& at, int y0) {
#pragma unroll
    for (int k = 0; k < X_ITEMS; ++k) {
      const int item = threadIdx.x % 32 + 32 * k, y = y0 + item / 8;
      x[k] = {};
      if (y < at.last) x[k] = load_eight<T, VECTOR>(a.x + at.base + y * a.strides.row, at.x0 + item % 8 * 8, a.width);
    }
  }

  __device__ __forceinline__ void put_x(Size::Shared& shared) {
#pragma unroll
    for (int k = 0; k < X_ITEMS; ++k) {
      const int item = threadIdx.x % 32 + 32 * k;
      *reinterpret_cast<uint4*>(&shared.staged[threadIdx.x / 32].row[item / 8][item % 8 * 4]) = x[k];
    }
  }

  static __device__ __forceinline__ void write(const Size::Shared& shared, const HalfConv<T>& a, const Strip& at, int y0) {
#pragma unroll
    for (int k = 0; k < X_ITEMS; ++k) {
      const int item = threadIdx.x % 32 + 32 * k, y = y0 + item / 8, first = at.x0 + item % 8 * 8;
      if (y >= at.last || first >= a.width) continue;
      const uint4 all = *reinterpret_cast<const uint4*>(&shared.staged[threadIdx.x / 32].row[item / 8][item % 8 * 4]);
      T* to = a.out + at.base + y * a.strides.row + first;
      if constexpr (VECTOR) {
        *reinterpret_cast<uint4*>(to) = all;
      } else {
        const auto* values = reinterpret_cast<const T*>(&all);
#pragma unroll
        for (int i = 0; i < 8; ++i)
          if (first + i < a.width) to[i] = values[i];
      }
    }
  }
};

// The same for a block and 16 channels of a picture: an item is 8 channels of two neighbouring pixels.
template <class T, int KW>
struct ChannelsMover {
  using Size = HalfSize<true>;
  static constexpr int OVER = Size::COLUMNS / 2 + 4, ROWS_ITEMS = (STEP * OVER * 2 + Size::THREADS - 1) / Size::THREADS;
  static constexpr int PAIRS = Size::COLUMNS / 2;
  static_assert(STEP * PAIRS * 2 == Size::THREADS, "a thread takes one item of x and of the result");
  uint4 rows[ROWS_ITEMS][2], x[2];

  static __device__ __forceinline__ void sync() { __syncthreads(); }

  static __device__ __forceinline__ void fetch(uint4 (&to)[2], const T* from, const HalfConv<T>& a, const Strip& at, int half,
                                               int y, int column, int end) {
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

  __device__ __forceinline__ void fetch_rows(const HalfConv<T>& a, const Strip& at, int y0, int end) {
#pragma unroll
    for (int k = 0; k < ROWS_ITEMS; ++k) {
      const int item = threadIdx.x + Size::THREADS * k, row = item / 2 / OVER;
      fetch(rows[k], a.in, a, at, item % 2, row < STEP ? y0 + row : -1, at.x0 - KW / 2 + item / 2 % OVER * 2, end);
    }
  }

  __device__ __forceinline__ void put_rows(Size::Shared& shared, int slot) {
#pragma unroll
    for (int k = 0; k < ROWS_ITEMS; ++k) {
      const int item = threadIdx.x + Size::THREADS * k, row = item / 2 / OVER;
      if (row < STEP) put(shared.ring, rows[k], item % 2, slot + row, item / 2 % OVER);
    }
  }

  __device__ __forceinline__ void fetch_x(const HalfConv<T>& a, const Strip& at, int y0) {
    const int item = threadIdx.x;
    fetch(x, a.x, a, at, item % 2, y0 + item / 2 / PAIRS, at.x0 + item / 2 % PAIRS * 2, at.last);
  }

  __device__ __forceinline__ void put_x(Size::Shared& shared) {
    const int item = threadIdx.x;
    put(shared.staged, x, item % 2, item / 2 / PAIRS, item / 2 % PAIRS);
  }

  static __device__ __forceinline__ void write(const Size::Shared& shared, const HalfConv<T>& a, const Strip& at, int y0) {
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

// This lane's part of the band matrices: value (k, n) of matrix u is tap (u, k - n).
template <class T, int KH, int KW, bool FLIPPED>
__device__ __forceinline__ void band_matrices(const T* taps, unsigned (&band)[KH][2]) {
  const int lane = threadIdx.x % 32, n = lane / 4;
#pragma unroll
  for (int u = 0; u < KH; ++u)
#pragma unroll
    for (int high = 0; high < 2; ++high) {
      T pair[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int tap = 8 * high + lane % 4 * 2 + i - n;
        const int place = u * KW + tap;
        pair[i] = tap >= 0 && tap < KW ? taps[FLIPPED ? KH * KW - 1 - place : place] : T(0.f);
      }
      band[u][high] = reinterpret_cast<const unsigned&>(pair);
    }
}

// 16 rows and N blocks of 8 columns from block `first` on; the window's first row is in `slot`. The result replaces x.
// sums: for each row of taps, window (transposed) times x; then times ones, for the bias.
template <class T, int KH, bool BACKWARD, int N, int WORDS>
__device__ __forceinline__ void convolve(const unsigned (&ring)[RING][WORDS], unsigned (&staged)[STEP][WORDS], int slot,
                                         int first, float start, bool to_out, bool to_sums, const unsigned (&band)[KH][2],
                                         float (&sums)[BACKWARD ? KH + 1 : 1][4]) {
  const int lane = threadIdx.x % 32;
  float out[N][4];
  unsigned x[N][2];
#pragma unroll
  for (int n = 0; n < N; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) out[n][i] = start;
    if (BACKWARD && to_sums) load_matrices<true>(&staged[lane % 16][(first + n) * 4], x[n][0], x[n][1]);
  }
#pragma unroll
  for (int u = 0; u < KH; ++u) {
    const auto& row = ring[(slot + u + lane % 16) % RING];
    unsigned window[N + 1][2];
    if (to_out) {
#pragma unroll
      for (int n = 0; n <= N; ++n) load_matrices<false>(&row[(first + n) * 4], window[n][0], window[n][1]);
#pragma unroll
      for (int n = 0; n < N; ++n)
        add_product(T(), out[n], window[n][0], window[n][1], window[n + 1][0], window[n + 1][1], band[u][0], band[u][1]);
    }
    if (BACKWARD && to_sums) {
#pragma unroll
      for (int n = 0; n <= N; ++n) load_matrices<true>(&row[(first + n) * 4], window[n][0], window[n][1]);
#pragma unroll
      for (int n = 0; n < N; ++n) {
        add_product(T(), sums[u], window[n][0], window[n + 1][0], window[n][1], window[n + 1][1], x[n][0], x[n][1]);
        const unsigned one = pack<T>(1.f, 1.f);
        float(&all)[4] = sums[BACKWARD ? KH : 0];
        if (u == KH / 2) add_product(T(), all, window[n][0], window[n + 1][0], window[n][1], window[n + 1][1], one, one);
      }
    }
  }
  if (!to_out) return;
  if (BACKWARD) __syncwarp();  // x has been read
#pragma unroll
  for (int n = 0; n < N; ++n) {
    staged[lane / 4][(first + n) * 4 + lane % 4] = pack<T>(out[n][0], out[n][1]);
    staged[lane / 4 + 8][(first + n) * 4 + lane % 4] = pack<T>(out[n][2], out[n][3]);
  }
}

// Adds the diagonals of a warp's sums, in a fixed order, in 128 floats of shared memory.
template <int KH, int KW>
__device__ __forceinline__ void write_sums(const float (&sums)[KH + 1][4], float* square, float* partials) {
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int u = 0; u <= KH; ++u) {
    __syncwarp();
    square[g * 8 + 2 * t] = sums[u][0], square[g * 8 + 2 * t + 1] = sums[u][1];
    square[(g + 8) * 8 + 2 * t] = sums[u][2], square[(g + 8) * 8 + 2 * t + 1] = sums[u][3];
    __syncwarp();
    const int v = u < KH ? lane : KW / 2;
    if (lane >= (u < KH ? KW : 1)) continue;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) sum += square[(i + v) * 8 + i];
    partials[u < KH ? KH * KW - 1 - (u * KW + v) : KH * KW] = sum;
  }
}

template <class T, bool CHANNELS_LAST>
__device__ __forceinline__ Strip strip_of(const HalfConv<T>& a) {
  using Size = HalfSize<CHANNELS_LAST>;
  int64_t unit;
  if (CHANNELS_LAST)
    unit = blockIdx.x;
  else
    unit = int64_t(blockIdx.x) * Size::PLANES + threadIdx.x / 32;
  if (unit >= a.units) return {-1};
  const int groups = CHANNELS_LAST ? (a.channels + Size::PLANES - 1) / Size::PLANES : a.channels;
  // Channels last: the groups of one strip are neighbours. Otherwise the strips of one plane.
  const int64_t inner = CHANNELS_LAST ? groups : a.strips * a.segments, outer = unit / inner;
  const int within = int(unit - outer * inner);
  const int64_t picture = CHANNELS_LAST ? outer / (a.strips * a.segments) : outer / groups;
  const int piece = CHANNELS_LAST ? int(outer % (a.strips * a.segments)) : within;
  const int channel = CHANNELS_LAST ? within * Size::PLANES : int(outer % groups);
  const int first = piece / a.strips * a.rows;
  return {picture * a.strides.batch + channel * a.strides.channel, picture * a.strips * a.segments + piece,
          piece % a.strips * Size::COLUMNS, first, min(first + a.rows, a.height), channel};
}

// Blocks that a multiprocessor is to hold at a time.
constexpr int resident_blocks(bool channels_last, bool backward, bool vector = true) {
  return channels_last ? 1 : !backward ? 4 : vector ? 3 : 2;
}

template <class T, int KH, int KW, bool CHANNELS_LAST, bool VECTOR, bool BACKWARD>
__global__ void __launch_bounds__(HalfSize<CHANNELS_LAST>::THREADS, resident_blocks(CHANNELS_LAST, BACKWARD, VECTOR))
    convolve_half(const HalfConv<T> a) {
  using Size = HalfSize<CHANNELS_LAST>;
  using Mover = std::conditional_t<CHANNELS_LAST, ChannelsMover<T, KW>, PlaneMover<T, KW, VECTOR>>;
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<typename Size::Shared*>(memory);
  const Strip at = strip_of<T, CHANNELS_LAST>(a);
  if (at.base < 0) return;
  const int plane = threadIdx.x / 32, channel = at.channel + (CHANNELS_LAST ? plane : 0);
  const bool real = channel < a.channels, to_sums = BACKWARD && a.partials, to_out = a.out;
  const int end = min(at.last + KH / 2, a.height);

  unsigned band[KH][2] = {};
  float sums[BACKWARD ? KH + 1 : 1][4] = {};
  if (real) band_matrices<T, KH, KW, BACKWARD>(a.weight + int64_t(channel) * (KH * KW), band);
  const float start = !BACKWARD && real && a.bias ? float(a.bias[channel]) : 0.f;

  Mover mover, second;
  mover.fetch_rows(a, at, at.first - KH / 2, end);
  second.fetch_rows(a, at, at.first - KH / 2 + STEP, end);
  mover.put_rows(shared, 0);
  second.put_rows(shared, STEP);
  if (to_sums) mover.fetch_x(a, at, at.first);
  int slot = 0;
  for (int y0 = at.first; y0 < at.last; y0 += STEP, slot ^= STEP) {
    if (to_sums) mover.put_x(shared);
    Mover::sync();
    const bool more = y0 + STEP < at.last;
    if (more) mover.fetch_rows(a, at, y0 - KH / 2 + RING, end);  // arrives while this step is computed
    if (more && to_sums) mover.fetch_x(a, at, y0 + STEP);
    constexpr int N = 4;
    for (int block = 0; block < Size::COLUMNS / 8; block += N)
      convolve<T, KH, BACKWARD, N>(shared.ring[plane].row, shared.staged[plane].row, slot, block, start, to_out, to_sums, band,
                                   sums);
    Mover::sync();
    if (to_out) Mover::write(shared, a, at, y0);
    if (more) mover.put_rows(shared, slot);
    if (to_sums) Mover::sync();
  }
  if constexpr (BACKWARD)
    if (to_sums && real)
      write_sums<KH, KW>(sums, reinterpret_cast<float*>(shared.staged[plane].row),
                         a.partials + (at.part * a.channels + channel) * (KH * KW + 1));
}

// Segments of the height, so that the blocks come in full waves; a segment begins with two steps' worth of loading.
template <bool CHANNELS_LAST, class T>
void share_out(HalfConv<T>& a, int64_t batch, bool backward, int processors) {
  using Size = HalfSize<CHANNELS_LAST>;
  constexpr int PLANES = Size::PLANES, MOST_WAVES = 8;
  const int64_t groups = batch * (CHANNELS_LAST ? blocks_for(a.channels, PLANES) : a.channels);
  a.strips = int(blocks_for(a.width, Size::COLUMNS));
  const int64_t steps = blocks_for(a.height, STEP), resident = int64_t(processors) * resident_blocks(CHANNELS_LAST, backward);
  const int64_t whole = blocks_for(groups * a.strips, CHANNELS_LAST ? 1 : PLANES);  // blocks without segments
  int64_t best = INT64_MAX;
  for (int waves = 1; waves <= MOST_WAVES; ++waves) {
    const int64_t segments = std::min(steps, std::max<int64_t>(1, waves * resident / whole));
    const int64_t each = (steps + segments - 1) / segments, cost = (whole * segments + resident - 1) / resident * (each + 2);
    if (cost < best) best = cost, a.rows = int(each * STEP);
  }
  a.segments = int(blocks_for(a.height, a.rows));
  a.units = groups * a.strips * a.segments;
}

template <bool CHANNELS_LAST, class Kernel, class T>
void launch_half(Kernel kernel, const HalfConv<T>& a, cudaStream_t stream) {
  using Size = HalfSize<CHANNELS_LAST>;
  constexpr int SHARED = sizeof(typename Size::Shared);
  if (SHARED > 48 * 1024) cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED);
  kernel<<<blocks_for(a.units, CHANNELS_LAST ? 1 : Size::PLANES), Size::THREADS, SHARED, stream>>>(a);
}

}  // namespace nerfkit
