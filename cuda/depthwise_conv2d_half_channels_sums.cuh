// SPDX-License-Identifier: Apache-2.0
// What a warp of depthwise_conv2d_half_channels.cuh keeps of its four channels, a quad, and 16 columns: open rows of
// results, or sums of the weight's gradient. A step's two rows of the window are 2 s and 2 s + 1.

#pragma once

#include "depthwise_conv2d_half.cuh"

namespace nerfkit {

constexpr int QUAD_COLUMNS = 16;  // of a warp

// Where four channels of a pixel, a quad, are in shared memory: [rows][quads][columns]. 16 lanes that have 4 or 8 quads of
// some pixels meet all banks.
template <int QUADS_, int COLUMNS_, int ROWS_>
struct HalfQuads {
  static constexpr int QUADS = QUADS_, COLUMNS = COLUMNS_, ROWS = ROWS_;
  static constexpr int BANKS = QUADS < 8 ? 8 : 4;
  // Of a quad's columns, in bytes; then of a row.
  static constexpr int PITCH = 8 * (COLUMNS + (BANKS + BANKS / 2 - COLUMNS % BANKS) % BANKS);
  static constexpr int ROW = PITCH * QUADS, BYTES = ROW * ROWS;
  static_assert(PITCH % 16 == 0, "pairs of pixels are aligned");
};

// The two of a quad that a lane has of a sum's row: channel 2 (t % 2) and the next.
__device__ __forceinline__ int first_of_pair() { return threadIdx.x % 2 * 2; }

// Sums q = 2 s - u, in place q % (K + 1): their upper 8 rows are of result row q, the lower 8 of row q + 1; a row has two
// columns, 2 g and 2 g + 1, of four channels each. Of the left operand, rows are alike: K + 1 columns of the window, from
// column 2 g on. The right one has the tap (u, column - own column) where both are of the same channel.
template <class T, int K, bool FLIPPED>
struct HalfResults {
  static constexpr int PAIRS = (K + 1) / 2;  // of columns
  unsigned band[K][PAIRS];
  float start[2], out[K + 1][4];

  __device__ __forceinline__ HalfResults(const HalfConv<T>& a, int channel, bool real) : band{}, start{}, out{} {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    if (!real) return;
    if (!FLIPPED && a.bias)
      for (int i = 0; i < 2; ++i) start[i] = float(a.bias[channel + first_of_pair() + i]);
    if (g % 4 / 2 != t % 2) return;  // no tap of its own channel
    constexpr int STEP = FLIPPED ? -1 : 1;
    const int shift = t / 2 - g / 4;
    const auto* tap = reinterpret_cast<const unsigned short*>(a.weight) + int64_t(channel + g % 4) * (K * K) +
                      (FLIPPED ? K * K - 1 : 0) + STEP * shift;
#pragma unroll
    for (int u = 0; u < K; ++u)
#pragma unroll
      for (int i = 0; i < PAIRS; ++i)
        if (unsigned(2 * i + shift) < unsigned(K)) band[u][i] = unsigned(tap[STEP * (u * K + 2 * i)]) << g % 2 * 16;
  }

  // Of this lane's row of matrices, from the window's first row on.
  template <class Rows>
  static __device__ __forceinline__ unsigned offset(int quad) {
    const int lane = threadIdx.x % 32;
    return lane / 8 % 2 * Rows::ROW + quad * Rows::PITCH + (lane % 8 * 2 + lane / 16 * 2) * 8;
  }

  // j, known when compiled, is s up to a multiple of (K + 1) / 2.
  __device__ __forceinline__ void add(unsigned window, int j) {
    unsigned near[4], far[4];
    load_matrices<false>(window, near);
    if constexpr (PAIRS % 2)
      load_matrices<false>(window + 32, far[0], far[1]);
    else
      load_matrices<false>(window + 32, far);
#pragma unroll
    for (int u = 0; u < K; ++u) {
      auto& sum = out[(2 * j + K + 1 - u) % (K + 1)];
      if (u < 2) sum[0] = sum[1] = sum[2] = sum[3] = 0.f;
      add_product(T(), sum, near[0], near[1], near[2], near[3], band[u][0], band[u][1]);
    }
#pragma unroll
    for (int u = K - 1; u >= 0; --u) {  // the rows that are done come first
      auto& sum = out[(2 * j + K + 1 - u) % (K + 1)];
      if constexpr (PAIRS % 2)
        add_product(T(), sum, far[0], far[1], band[u][2]);
      else
        add_product(T(), sum, far[0], far[1], far[2], far[3], band[u][2], band[u][3]);
    }
  }

  // Of result row 2 s - K + 1, or the next: two channels of column 2 g + t / 2.
  __device__ __forceinline__ unsigned result(int j, int row) const {
    const int own = (2 * j + 2 + row) % (K + 1), before = (2 * j + 1 + row) % (K + 1);
    const float low = out[own][0] + out[before][2], high = out[own][1] + out[before][3];
    return FLIPPED ? pack<T>(low, high) : pack<T>(low + start[0], high + start[1]);
  }
};

// Window (transposed) times x: the 16 values that a product adds are 8 pairs of columns in two rows. Rows of a sum are an
// even shift, first or second column of the pair and channel, of the window; columns the same of x without a shift. Where
// the channels are equal, it belongs to the tap shift + column of the window's pair - column of x's.
template <class T, int K>
struct HalfTaps {
  static constexpr int SHIFTS = (K + 1) / 2, PRODUCTS = (SHIFTS + 1) / 2;
  static_assert(K / 2 == 2 || K / 2 == 3, "where the bias finds its columns");
  static constexpr int TURN = (K + 1) / 2;  // steps after which places repeat
  float sums[K][PRODUCTS][4], bias;
  unsigned even[TURN][2], odd[TURN][2];  // rows 2 s and 2 s + 1 of x, in place s % TURN; 2 s + 1 and 2 s + 2

  __device__ __forceinline__ HalfTaps() : sums{}, bias(0), even{}, odd{} {}

  // Of this lane's row of matrices, of the window and of x.
  template <class Rows>
  static __device__ __forceinline__ unsigned offset(int quad) {
    const int lane = threadIdx.x % 32;
    return lane / 16 * Rows::ROW + quad * Rows::PITCH + (lane % 8 * 2 + lane / 8 % 2 * 2) * 8;
  }
  template <class Rows>
  static __device__ __forceinline__ unsigned center_offset(int quad) {
    const int lane = threadIdx.x % 16;
    return lane / 8 * Rows::ROW + quad * Rows::PITCH + (lane % 8 * 2) * 8;
  }

  // Rows of the window and of x. `first`, `second`: whether those of the window count to the bias. `zero` is not known when
  // compiled: values that are in two pairs then have two registers, next to their neighbours in both.
  // Of an odd number of shifts the last one's neighbour is whatever comes next; its sums belong to no tap.
  __device__ __forceinline__ void add(unsigned window, unsigned center, int j, bool first, bool second, unsigned zero) {
    unsigned in[PRODUCTS][4];
    auto &now = even[j % TURN], &before = even[(j + TURN - 1) % TURN], &between = odd[(j + TURN - 1) % TURN];
    load_matrices<true>(center, now[0], now[1]);
#pragma unroll
    for (int p = 0; p < PRODUCTS; ++p) load_matrices<true>(window + 32 * p, in[p]);
    between[0] = before[1] | zero, between[1] = now[0] | zero;
#pragma unroll
    for (int u = 0; u < K; ++u) {
      const auto& x = u % 2 ? odd[(j + TURN - (u + 1) / 2) % TURN] : even[(j + TURN - u / 2) % TURN];
#pragma unroll
      for (int p = 0; p < PRODUCTS; ++p) add_product(T(), sums[u][p], in[p][0], in[p][1], in[p][2], in[p][3], x[0], x[1]);
    }
    // The columns from K / 2 on: those of shift 2, but of 7 taps the first columns of pairs, which are of shift 4.
    const bool other = K / 2 == 3 && threadIdx.x % 32 < 16;
    if (first) bias += both(other ? in[1][0] : in[0][1]);
    if (second) bias += both(other ? in[1][2] : in[0][3]);
  }

  static __device__ __forceinline__ float both(unsigned pair) {
    const auto& values = reinterpret_cast<const Vec<T, 2>&>(pair);
    return float(values.v[0]) + float(values.v[1]);
  }

  static constexpr int SQUARE = 64, FLOATS = SQUARE + 4 * (K * K + 1);  // of shared memory that `write` takes

  // Adds what belongs to a tap, in a fixed order.
  __device__ __forceinline__ void write(float* square, float* partials) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, v = lane / 4, channel = lane % 4;
    float* const taps = square + SQUARE;
#pragma unroll
    for (int u = 0; u < K; ++u) {
      __syncwarp();
#pragma unroll
      for (int p = 0; p < PRODUCTS; ++p)
#pragma unroll
        for (int high = 0; high < 2; ++high)
          if (g % 4 / 2 == t % 2)
            square[(4 * p + 2 * high + g / 4) * 8 + t / 2 * 4 + g % 4] =
                g % 2 ? sums[u][p][2 * high + 1] : sums[u][p][2 * high];
      __syncwarp();
      if (v < K)
        taps[channel * (K * K + 1) + K * K - 1 - (u * K + v)] = square[v * 8 + channel] + square[(v + 1) * 8 + 4 + channel];
    }
    for (int apart = 1; apart < 4; apart *= 2) bias += __shfl_xor_sync(ALL_LANES, bias, apart);
    bias += __shfl_xor_sync(ALL_LANES, bias, 16);
    if (t == 0 && g < 4) taps[g * (K * K + 1) + K * K] = bias;
    __syncwarp();
#pragma unroll
    for (int i = lane; i < 4 * (K * K + 1); i += 32) partials[i] = taps[i];
  }
};

}  // namespace nerfkit
