// SPDX-License-Identifier: Apache-2.0
// A thread takes a tile of one channel and loads a value once for all the taps of a column. Neighbouring threads take
// neighbouring columns or, channels last, neighbouring channels. The same over grad_out, with the kernel flipped, gives
// the gradients of x and of the weight in one pass.

#pragma once

#include <type_traits>

#include "depthwise_conv2d/block.cuh"

namespace nerfkit {
namespace {

constexpr int V = 4;         // columns of a tile
constexpr int FEW_ROWS = 4;  // of a tile, where there are few of them

// What neighbouring threads take: four columns each at a time, one by one, or one by one of neighbouring channels.
enum class Order { vectors, columns, channels };

// N columns of a row from `first` on, `column` apart, zero outside the picture. With vectors the V columns from
// first + (N - V) / 2 on are inside and aligned, as are those before and after them.
template <class T, int N, bool VECTORS>
__device__ __forceinline__ void load_row(const T* row, int first, int width, int column, acc_t<T> (&to)[N]) {
  using A = acc_t<T>;
  if constexpr (VECTORS) {
    constexpr int HALO = (N - V) / 2;
    const int middle = first + HALO;
    A left[V] = {}, center[V], right[V] = {};
    load(row + middle, center);
    if (HALO && middle > 0) load(row + middle - V, left);
    if (HALO && middle + V < width) load(row + middle + V, right);
#pragma unroll
    for (int i = 0; i < N; ++i)
      to[i] = i < HALO ? left[(i + V - HALO) % V] : i < HALO + V ? center[(i - HALO + V) % V] : right[(i - HALO) % V];
  } else if (first >= 0 && first + N <= width) {
    const T* from = row + int64_t(first) * column;
#pragma unroll
    for (int i = 0; i < N; ++i) to[i] = A(from[int64_t(i) * column]);
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i)
      to[i] = first + i >= 0 && first + i < width ? A(row[int64_t(first + i) * column]) : A(0);
  }
}

// A bit for each of N columns from `first` on that is inside.
template <int N>
__device__ __forceinline__ unsigned columns_inside(int first, int width) {
  unsigned bits = 0;
#pragma unroll
  for (int i = 0; i < N; ++i)
    if (unsigned(first + i) < unsigned(width)) bits |= 1u << i;
  return bits;
}

// N neighbours from `from` on, `column` apart, zeros where `inside` has no bit.
template <class T, int N>
__device__ __forceinline__ void load_inside(const T* from, unsigned inside, int column, T (&to)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) to[i] = inside >> i & 1 ? from[int64_t(i) * column] : T(0.f);
}

template <class T, bool VECTORS>
__device__ __forceinline__ void store_row(T* row, int first, int width, int column, const acc_t<T> (&from)[V]) {
  if constexpr (VECTORS) {
    store(row + first, from);
  } else {
#pragma unroll
    for (int i = 0; i < V; ++i)
      if (first + i < width) row[int64_t(first + i) * column] = T(from[i]);
  }
}

// A block takes tiles of `lanes` channels, a thread V columns and R rows of one.
template <class T, int KH, int KW, int R, Order ORDER, bool BACKWARD>
__global__ void __launch_bounds__(THREADS_2D) tile(const Walk<T> a) {
  using A = acc_t<T>;
  constexpr int N = V + KW - 1, TAPS = KH * KW;
  constexpr bool VECTORS = ORDER == Order::vectors, CHANNELS = ORDER == Order::channels;
  // Some lanes of a warp are at an edge, others are not: one way for all, but where that costs registers.
  constexpr bool MASKS = (ORDER == Order::columns && !(BACKWARD && KW > 3)) || (CHANNELS && !BACKWARD);
  if (BACKWARD) pdl_trigger();
  const int part = blockIdx.x / a.across, group = blockIdx.x % a.across;
  const int lanes = CHANNELS ? a.lanes : 1, c = group * lanes + (CHANNELS ? threadIdx.x % lanes : 0);
  const int column = CHANNELS ? a.channels : 1, threads = CHANNELS ? THREADS_2D / lanes : THREADS_2D;
  const bool real = !CHANNELS || c < a.channels;
  const T* weight = a.weight + int64_t(c) * TAPS;
  A w[TAPS], sums[TAPS + 1] = {};
#pragma unroll
  for (int k = 0; k < TAPS; ++k) w[BACKWARD ? TAPS - 1 - k : k] = real ? A(weight[k]) : A(0);
  const A start = !BACKWARD && a.bias && real ? A(a.bias[c]) : A(0);
  const unsigned tiles_x = (a.width + V - 1) / V, tiles_y = (a.height + R - 1) / R;
  const unsigned tiles = real ? a.batch * tiles_y * tiles_x : 0;
  for (unsigned at = part * threads + threadIdx.x / lanes; at < tiles; at += a.shared * threads) {
    const unsigned line = at / tiles_x, b = line / tiles_y;
    const int x0 = int(at - line * tiles_x) * V, y0 = int(line - b * tiles_y) * R;
    const int64_t base = b * a.strides.batch + c * a.strides.channel;
    const unsigned inside = MASKS ? columns_inside<N>(x0 - KW / 2, a.width) : 0;
    // Of row y, from `before` columns before x0 on; zeros if the row is not `real`.
    const auto read = [&](const T* picture, int y, bool real, int before, auto& to) {
      const auto row = [&] { return picture + base + y * a.strides.row; };
      if constexpr (MASKS) {
        load_inside(row() + int64_t(x0 - before) * column, real ? inside >> (KW / 2 - before) : 0, column, to);
      } else {
        constexpr int COUNT = std::extent_v<std::remove_reference_t<decltype(to)>>;
        if (real) return load_row<T, COUNT, VECTORS>(row(), x0 - before, a.width, column, to);
#pragma unroll
        for (int j = 0; j < COUNT; ++j) to[j] = A(0);
      }
    };
    using Kept = std::conditional_t<MASKS, T, A>;  // converted before it is used: to convert is to wait
    A sum[R][V];
    Kept center[R][V];
#pragma unroll
    for (int r = 0; r < R; ++r) {
#pragma unroll
      for (int i = 0; i < V; ++i) sum[r][i] = start;
      read(a.x, y0 + r, BACKWARD && a.partials && y0 + r < a.height, 0, center[r]);
    }
    // Rows of the window on their way while one is in use, as the registers allow.
    constexpr int AHEAD = R == FEW_ROWS && !BACKWARD && KH > 1 ? std::min(R + KH - 2, 32 / N) : KW < 7;
    Kept rows[AHEAD + 1][N];
    const auto fetch = [&](int i, Kept(&to)[N]) {
      const int y = y0 + i - KH / 2;
      read(a.in, y, y >= 0 && y < a.height, KW / 2, to);
    };
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) fetch(i, rows[i]);
#pragma unroll
    for (int i = 0; i < R + KH - 1; ++i) {
      if (i + AHEAD < R + KH - 1) fetch(i + AHEAD, rows[(i + AHEAD) % (AHEAD + 1)]);
      A window[N];
#pragma unroll
      for (int j = 0; j < N; ++j) window[j] = A(rows[i % (AHEAD + 1)][j]);
#pragma unroll
      for (int u = 0; u < KH; ++u) {
        const int r = i - u;
        if (r < 0 || r >= R) continue;
#pragma unroll
        for (int v = 0; v < KW; ++v)
#pragma unroll
          for (int j = 0; j < V; ++j) {
            sum[r][j] += w[u * KW + v] * window[v + j];
            if (BACKWARD) sums[u * KW + v] += A(center[r][j]) * window[v + j];
          }
      }
      if (BACKWARD && i >= KH / 2 && i - KH / 2 < R) {
#pragma unroll
        for (int j = 0; j < V; ++j) sums[TAPS] += window[KW / 2 + j];  // zero outside the picture
      }
    }
#pragma unroll
    for (int r = 0; r < R; ++r)
      if (a.out && y0 + r < a.height)
        store_row<T, VECTORS>(a.out + base + (y0 + r) * a.strides.row, x0, a.width, column, sum[r]);
    if (!BACKWARD) break;  // the grid has a thread for every tile
  }
  if constexpr (BACKWARD) {
    if (!a.partials) return;
    A flipped[TAPS + 1];
#pragma unroll
    for (int k = 0; k <= TAPS; ++k) flipped[k] = sums[k < TAPS ? TAPS - 1 - k : TAPS];
    __shared__ WarpSums<A, TAPS + 1> of_warp;
    write_partials(flipped, of_warp, a.partials, part, group * lanes, lanes, 1, a.channels);
  }
}

}  // namespace
}  // namespace nerfkit
