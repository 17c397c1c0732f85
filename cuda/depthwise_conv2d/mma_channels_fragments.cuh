// SPDX-License-Identifier: Apache-2.0
// The mma fragments of a warp of mma_channels.cu, of its four channels, a quad, and 16 columns: accumulators of rows of
// results that are not complete, or of the weight's gradient. A step's two rows of the window are 2 s and 2 s + 1.

#pragma once

#include "common/async_copy.cuh"
#include "common/mma.cuh"
#include "depthwise_conv2d/kernels.cuh"

namespace nerfkit {

template <class T>
struct MmaChannelsArgs : Conv2dArrays<T> {
  Conv2dShape::Strides strides;  // of all arrays of images, in elements
  int64_t units;                 // of work: groups of channels times strips times pieces
  int channels, height, width;
  int strips, pieces, rows;  // across a row; down a column; rows of a piece
  int images, period;        // rows from an image to the next, with zeros between
};

constexpr int SIDE = 7;  // of the kernel
constexpr int TAPS = SIDE * SIDE, SUMS = TAPS + 1;
constexpr int STRIP_COLUMNS = 16;
constexpr int QUADS = 8, BLOCK_CHANNELS = 4 * QUADS;  // of a block: copies of 8 quads are half cache lines

// Four channels of a pixel, a quad, in shared memory: [rows][quads][columns]. Eight quads of some pixels that 16 lanes
// read are 4 banks apart, so that they meet all banks. Between rows are APART bytes more.
template <int COLUMNS_, int ROWS_, int APART = 0>
struct QuadTile {
  static constexpr int COLUMNS = COLUMNS_, ROWS = ROWS_, BANKS = 4;
  // Of a quad's columns, in bytes; then of a row.
  static constexpr int PITCH = 8 * (COLUMNS + (BANKS + BANKS / 2 - COLUMNS % BANKS) % BANKS);
  static constexpr int ROW = PITCH * QUADS + APART, BYTES = ROW * ROWS;
  static_assert(PITCH % 16 == 0, "pairs of pixels are aligned");
};

// Accumulators of result rows q and q + 1 that were begun i steps ago, q = 2 (s - i), at index (s - i) % PAIRS. A
// column n has columns 2 n and 2 n + 1 of the results. Row g = 4 result row + 2 column + pair of channels has the
// pair's first channel, row g + 8 its second. The left operand are taps, of row d - result row for d = window row - q:
// of 8 columns of the window from 2 n on, four channels each, it has the row's pair of channels, and in that a zero.
// The right operand is a row of the window, as it lies in shared memory.
template <class T, Pass PASS>
struct ResultFragments {
  static constexpr bool FLIPPED = PASS == Pass::backward;
  static constexpr int PAIRS = (SIDE + 1) / 2;  // of rows; of columns
  unsigned band[SIDE + 1][4], sparsity;
  float start[2], out[PAIRS][4];

  static __device__ __forceinline__ int lane() { return threadIdx.x % 32; }
  static __device__ __forceinline__ int row() { return lane() / 16; }
  static __device__ __forceinline__ int column() { return lane() / 8 % 2; }
  static __device__ __forceinline__ int channels() { return lane() / 4 % 2 * 2; }  // and the next

  __device__ __forceinline__ ResultFragments(const MmaChannelsArgs<T>& a, int channel, bool real)
      : band{}, sparsity(channels() ? 0xeeeeeeeeu : 0x44444444u), start{}, out{} {
    if (!real) return;
    channel += channels();
    if (!FLIPPED && a.bias)
      for (int i = 0; i < 2; ++i) start[i] = float(a.bias[channel + i]);
    constexpr int STEP = FLIPPED ? -1 : 1;
    const int shift = lane() % 4 - column();
    const auto* tap = reinterpret_cast<const unsigned short*>(a.weight) + int64_t(channel) * TAPS +
                      (FLIPPED ? TAPS - 1 : 0) + STEP * (shift - row() * SIDE);
#pragma unroll
    for (int d = 0; d <= SIDE; ++d)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (unsigned(d - row()) < unsigned(SIDE) && unsigned(i / 2 * 4 + shift) < unsigned(SIDE))
          band[d][i] = unsigned(tap[i % 2 * TAPS + STEP * (d * SIDE + i / 2 * 4)]) << i % 2 * 16;
  }

  // Of this lane's row of matrices, in a row of the window.
  template <class Rows>
  static __device__ __forceinline__ unsigned offset(int quad) {
    return quad * Rows::PITCH + (lane() % 8 + lane() / 8) * 16;
  }
  // Of this lane's results; those of the second column of the accumulator are 16 bytes on.
  template <class Rows>
  static __device__ __forceinline__ unsigned result_offset(int quad) {
    return row() * Rows::ROW + quad * Rows::PITCH + (lane() % 4 * 4 + column()) * 8 + channels() * 2;
  }

  // window: an address in shared memory. j, known when compiled, is s up to a multiple of PAIRS.
  template <class Rows>
  __device__ __forceinline__ void add(unsigned window, int j) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      unsigned in[4];
      ldmatrix<false>(window + row * Rows::ROW, in);
#pragma unroll
      for (int i = PAIRS - 1; i >= 0; --i) {  // the rows that are done come first
        auto& sum = out[(j + PAIRS - i) % PAIRS];
        if (i == 0 && row == 0) sum[0] = sum[1] = start[0], sum[2] = sum[3] = start[1];
        mma_sparse(T(), sum, band[2 * i + row], sparsity, in);
      }
    }
  }

  // Of result row 2 s - SIDE + 1 or, by lane, the next: two channels in the first or second column of the accumulator.
  __device__ __forceinline__ unsigned result(int j, int second) const {
    const auto& sum = out[(j + 1) % PAIRS];
    return pack<T>(sum[second], sum[second + 2]);
  }
};

// Window (transposed) times x: the 16 values that a product adds are 8 pairs of columns in two rows. Rows of the
// accumulator are an even shift, first or second column of the pair and channel, of the window; columns the same of x
// without a shift. Where the channels are equal, it belongs to the tap shift + column of the window's pair - column of
// x's. One more product sums up the columns that count to the bias.
template <class T>
struct TapFragments {
  static constexpr int PRODUCTS = 2;           // of two shifts each: 0, 2, 4 and 6 columns
  static constexpr int TURN = (SIDE + 1) / 2;  // steps after which indices repeat
  float sums[SIDE][PRODUCTS][4], bias[4];
  unsigned even[TURN][2], odd[TURN][2];  // rows 2 s and 2 s + 1 of x, at index s % TURN; 2 s + 1 and 2 s + 2

  __device__ __forceinline__ TapFragments() : sums{}, bias{}, even{}, odd{} {}

  // In pairs of columns. The inner two are in one product, which then has the columns that count to the bias.
  static __device__ __forceinline__ int shift(int product, int high) { return product ? 1 + high : 3 * high; }

  // Of this lane's row of matrices, of the window and of x.
  template <class Rows>
  static __device__ __forceinline__ unsigned offset(int quad, int product) {
    const int lane = threadIdx.x % 32, pair = lane % 8 + shift(product, lane / 8 % 2);
    return lane / 16 * Rows::ROW + quad * Rows::PITCH + pair * 16;
  }
  template <class Rows>
  static __device__ __forceinline__ unsigned center_offset(int quad) {
    const int lane = threadIdx.x % 16;
    return lane / 8 * Rows::ROW + quad * Rows::PITCH + (lane % 8 * 2) * 8;
  }

  // Addresses of rows of the window and of x. `first`, `second`: whether those of the window count to the bias. `zero`
  // is 0, but not when compiled: values that are in two pairs then have two registers, next to their neighbours in
  // both.
  __device__ __forceinline__ void add(unsigned outer, unsigned inner, unsigned center, int j, bool first, bool second,
                                      unsigned zero) {
    unsigned in[PRODUCTS][4];
    auto &now = even[j % TURN], &before = even[(j + TURN - 1) % TURN], &between = odd[(j + TURN - 1) % TURN];
    ldmatrix<true>(center, now[0], now[1]);
    ldmatrix<true>(outer, in[0]), ldmatrix<true>(inner, in[1]);
    between[0] = before[1] | zero, between[1] = now[0] | zero;
#pragma unroll
    for (int u = 0; u < SIDE; ++u) {
      const auto& x = u % 2 ? odd[(j + TURN - (u + 1) / 2) % TURN] : even[(j + TURN - u / 2) % TURN];
#pragma unroll
      for (int p = 0; p < PRODUCTS; ++p) mma(T(), sums[u][p], in[p][0], in[p][1], in[p][2], in[p][3], x[0], x[1]);
    }
    mma(T(), bias, in[1][0], in[1][1], in[1][2], in[1][3], first ? ones(T()) : 0, second ? ones(T()) : 0);
  }

  static constexpr int SQUARE = 64, FLOATS = SQUARE + 4 * SUMS;  // of shared memory that `write` takes

  // square [FLOATS], shared memory, to partials [4, SUMS]: adds what belongs to a tap, in a fixed order.
  __device__ __forceinline__ void write(float* square, float* partials) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, v = lane / 4, channel = lane % 4;
    float* const taps = square + SQUARE;
#pragma unroll
    for (int u = 0; u < SIDE; ++u) {
      __syncwarp();
#pragma unroll
      for (int p = 0; p < PRODUCTS; ++p)
#pragma unroll
        for (int high = 0; high < 2; ++high)
          if (g % 4 / 2 == t % 2)
            square[(2 * shift(p, high) + g / 4) * 8 + t / 2 * 4 + g % 4] =
                g % 2 ? sums[u][p][2 * high + 1] : sums[u][p][2 * high];
      __syncwarp();
      if (v < SIDE)
        taps[channel * SUMS + TAPS - 1 - (u * SIDE + v)] = square[v * 8 + channel] + square[(v + 1) * 8 + 4 + channel];
    }
    // The columns from SIDE / 2 on: those of shift 2, but the first columns of pairs, which are of shift 4.
    float sum = g < 4 ? bias[2] : bias[0];
    sum += __shfl_xor_sync(FULL_MASK, sum, 16);
    if (t == 0 && g < 4) taps[g * SUMS + TAPS] = sum;
    __syncwarp();
#pragma unroll
    for (int i = lane; i < 4 * SUMS; i += 32) partials[i] = taps[i];
  }
};

}  // namespace nerfkit
