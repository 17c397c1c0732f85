// SPDX-License-Identifier: Apache-2.0
// Half types on tensor cores, for kernels of 5 x 5, 7 x 7 or one row that keep the picture's size. A warp walks down
// two strips of one plane, 64 columns each, one row of both a step: 16 blocks of 8 columns. A row of taps over them is
// a product: 16 x 16 values of the window, a block a row, times the 16 x 8 band matrix that has the taps on its
// diagonals. It goes to the sums of the result row that it belongs to; KH rows of results are open at a time, and a row
// of the window is read once. Backward, the gradient of x is the same over grad_out with the kernel flipped. The
// weight's is one more product for each row of taps: window (transposed) times x, whose diagonals hold the taps' sums.
// A value that is not finite reaches all results that share its window of 16 columns, through products with zero.

#pragma once

#include "common/pdl.cuh"
#include "depthwise_conv2d/mma_planes_sums.cuh"

namespace nerfkit {

constexpr int PLANES = 4;  // of a block

// Steps between two waits for memory: the sums' places in registers are then known.
constexpr int group_rows(int kh) { return kh == 1 ? 8 : kh; }

template <int KH, bool BACKWARD>
using PlaneRows = HalfRow<BACKWARD>[group_rows(KH)][2];

// Two strips, one below the other.
struct PlaneStrips {
  int64_t base;  // of the plane
  int part, x0, first, channel;

  template <class T>
  __device__ __forceinline__ PlaneStrips(const HalfConv<T>& a, int64_t unit) {
    const int64_t line = unit / a.strips, piece = line / a.channels, picture = piece / a.pieces;
    const int strip = int(unit - line * a.strips);
    channel = int(line - piece * a.channels);
    base = picture * a.strides.batch + channel * a.strides.channel;
    part = int(piece * a.strips + strip);
    x0 = strip * STRIP, first = int(piece - picture * a.pieces) * 2 * a.rows;
  }
};

// What a thread copies of some rows: from where, and which picture rows there are; none if `column` is outside.
template <class T>
struct Copies {
  const T* from;
  int column, y, end;

  // From step `step` on, of `steps`; `above`: rows that the window begins above the results.
  __device__ __forceinline__ Copies(const HalfConv<T>& a, const PlaneStrips& at, const T* picture, int strip, int step,
                                    int above, int steps, int column)
      : column(column) {
    const int start = at.first + strip * a.rows - above;
    y = start + step;
    end = unsigned(column) < unsigned(a.width) ? min(a.height, start + steps) : 0;
    from = picture + at.base + y * a.strides.row + column;
  }

  // N columns of the row `j` below, zero outside the picture. VECTOR: all in or all out, and aligned.
  template <int N, bool VECTOR>
  __device__ __forceinline__ void copy(unsigned* to, int j, const HalfConv<T>& a) const {
    const T* row = from + j * a.strides.row;
    const bool inside = unsigned(y + j) < unsigned(end);
    if constexpr (VECTOR) {
      cp_async_zfill<2 * N>(to, row, inside);
    } else {
      Vec<T, N> values;
#pragma unroll
      for (int i = 0; i < N; ++i) values.v[i] = inside && column + i < a.width ? row[i] : T(0.f);
      *reinterpret_cast<Vec<T, N>*>(to) = values;
    }
  }
};

// The rows of a group of steps, from global to shared memory: 64 columns of the window, the other 8, and x.
template <class T, int KH, bool VECTOR, bool BACKWARD>
__device__ __forceinline__ void fetch_rows(PlaneRows<KH, BACKWARD>& to, const HalfConv<T>& a, const PlaneStrips& at,
                                           int step0, bool with_x) {
  constexpr int ROWS = group_rows(KH), ABOVE = KH / 2;
  static_assert(4 * ROWS <= 32, "a lane copies once of what a group has beyond 64 columns");
  const int lane = threadIdx.x % 32, steps = a.rows + KH - 1;
  const Copies<T> window(a, at, a.in, lane / 16, step0, ABOVE, steps, at.x0 - MARGIN + lane % 16 * 4);
#pragma unroll
  for (int j = 0; j < ROWS; ++j) window.template copy<4, VECTOR>(to[j][lane / 16].window() + lane % 16 * 2, j, a);
  if (lane < 4 * ROWS) {
    const int j = lane / 4, strip = lane / 2 % 2, column = STRIP + lane % 2 * 4;
    const Copies<T> beyond(a, at, a.in, strip, step0 + j, ABOVE, steps, at.x0 - MARGIN + column);
    beyond.template copy<4, VECTOR>(to[j][strip].window() + column / 2, 0, a);
  }
  if (!BACKWARD || !with_x) return;
  const int strip = lane / 8 % 2, second = lane / 16;
  const Copies<T> x(a, at, a.x, strip, step0 + second, 0, a.rows, at.x0 + lane % 8 * 8);
#pragma unroll
  for (int j = 0; j < ROWS; j += 2)
    if (j + second < ROWS) x.template copy<8, VECTOR>(to[j + second][strip].center() + lane % 8 * 4, j, a);
}

// `second`: whether the second column is inside; a vector's is.
template <bool VECTOR, class T>
__device__ __forceinline__ void store_pair(T* to, unsigned both, bool second) {
  if constexpr (VECTOR) {
    *reinterpret_cast<unsigned*>(to) = both;
  } else {
    const auto& pair = reinterpret_cast<const Vec<T, 2>&>(both);
    to[0] = pair.v[0];
    if (second) to[1] = pair.v[1];
  }
}

// Blocks that a multiprocessor is to hold at a time.
constexpr int resident_planes(int kh, bool vector, bool backward) {
  if (!vector) return backward ? 3 : 4;
  return !backward ? (kh == 1 ? 8 : 6) : kh == 1 ? 6 : 4;
}

template <class T, int KH, int KW, bool VECTOR, bool BACKWARD>
__global__ void __launch_bounds__(32 * PLANES, resident_planes(KH, VECTOR, BACKWARD)) half_planes(const HalfConv<T> a) {
  constexpr int ROWS = group_rows(KH);
  if (BACKWARD) pdl_trigger();
  extern __shared__ __align__(16) unsigned char memory[];
  auto& ring = reinterpret_cast<PlaneRows<KH, BACKWARD>(*)[2]>(memory)[threadIdx.x / 32];
  const int64_t unit = int64_t(blockIdx.x) * PLANES + threadIdx.x / 32;
  if (unit >= a.units) return;
  const PlaneStrips at(a, unit);
  const int lane = threadIdx.x % 32, column = at.x0 + lane / 4 * 8 + lane % 4 * 2, steps = a.rows + KH - 1;
  const bool to_sums = BACKWARD && a.partials;
  // Of the two strips' results, those that this lane writes; a step completes row step - (KH - 1).
  const int written = a.out && column < a.width ? a.height - at.first : 0;
  const int above = min(max(written, 0), a.rows), below = min(max(written - a.rows, 0), a.rows);
  T* out = a.out + at.base + (at.first - (KH - 1)) * a.strides.row + column;
  T* out_below = out + a.rows * a.strides.row;
  pdl_wait();
  fetch_rows<T, KH, VECTOR, BACKWARD>(ring[0], a, at, 0, to_sums);
  cp_async_commit();
  PlaneSums<T, KH, KW, BACKWARD> sums(a, at.channel);
  for (int step0 = 0, turn = 0; step0 < steps; step0 += ROWS, turn ^= 1) {
    if (step0 + ROWS < steps) fetch_rows<T, KH, VECTOR, BACKWARD>(ring[turn ^ 1], a, at, step0 + ROWS, to_sums);
    cp_async_commit();
    cp_async_wait<1>();
    __syncwarp();
#pragma unroll
    for (int j = 0; j < ROWS; ++j) {
      const int step = step0 + j, row = step - (KH - 1);  // from `steps` on, rows of zeros
      if (to_sums) sums.add_to_taps(ring[turn][j], j, unsigned(step - KH / 2) < unsigned(a.rows));
      if (!a.out) continue;
      sums.add_to_results(ring[turn][j], j);
      if (unsigned(row) < unsigned(above)) store_pair<VECTOR>(out, sums.result(j, 0), column + 1 < a.width);
      if (unsigned(row) < unsigned(below)) store_pair<VECTOR>(out_below, sums.result(j, 1), column + 1 < a.width);
      out += a.strides.row, out_below += a.strides.row;
    }
    __syncwarp();
  }
  cp_async_wait<0>();
  if constexpr (BACKWARD)
    if (to_sums)
      write_sums<KH, KW>(sums.taps, sums.bias_of_lane(), reinterpret_cast<float*>(&ring),
                         a.partials + (int64_t(at.part) * a.channels + at.channel) * (KH * KW + 1));
}

// Pieces of the height, so that the blocks come in full waves; a strip begins with waiting and with its neighbours'
// rows.
template <class T>
void share_out_planes(HalfConv<T>& a, int64_t batch, int kh, bool backward, int processors) {
  constexpr int MOST_PIECES = 256, START = 8;  // START: rows' worth of waiting
  const int64_t resident = int64_t(processors) * resident_planes(kh, true, backward);
  a.strips = int(blocks_for(a.width, STRIP));
  int64_t least = INT64_MAX;
  for (int pieces = 1; pieces == 1 || (pieces <= MOST_PIECES && pieces * 2 * kh <= a.height); ++pieces) {
    const int rows = int(blocks_for(a.height, 2 * pieces));
    const int64_t blocks = (batch * a.channels * a.strips * pieces + PLANES - 1) / PLANES;
    const int64_t cost = (blocks + resident - 1) / resident * (rows + kh - 1 + START);
    if (cost < least) least = cost, a.rows = rows;
  }
  a.pieces = int(blocks_for(a.height, 2 * a.rows));
  a.units = batch * a.channels * a.strips * a.pieces;
}

template <class T, int KH, int KW, bool BACKWARD>
void launch_half_planes(const HalfConv<T>& a, bool vector, cudaStream_t stream) {
  constexpr int SHARED = sizeof(PlaneRows<KH, BACKWARD>[2]) * PLANES;
  const auto kernel = vector ? half_planes<T, KH, KW, true, BACKWARD> : half_planes<T, KH, KW, false, BACKWARD>;
  if (SHARED > 48 * 1024) cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED);
  pdl_launch(kernel, blocks_for(a.units, PLANES), 32 * PLANES, SHARED, stream, a);
}

}  // namespace nerfkit
