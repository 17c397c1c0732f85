// SPDX-License-Identifier: Apache-2.0
// What a warp of depthwise_conv2d_half_channels.cuh keeps of its two channels: open rows of results, or sums of the weight's
// gradient. A step's two rows of the window are 2 s and 2 s + 1.

#pragma once

#include "depthwise_conv2d_half.cuh"

namespace nerfkit {

// Rows of words, each two channels of a pixel. Planes lie 4 banks apart.
template <int CH, int COLUMNS, int ROWS>
struct alignas(16) PairRows {
  static_assert(COLUMNS % 8 == 0 || COLUMNS == 4);
  unsigned word[ROWS][CH / 2][COLUMNS + 4];
};

// The values of channel 0 or 1 of two words.
__device__ __forceinline__ unsigned of_channel(int channel, unsigned low, unsigned high) {
  return __byte_perm(low, high, channel ? 0x7632 : 0x5410);
}

// A product's upper 8 rows are the blocks of window row 2 s, the lower 8 those of row 2 s + 1. Sums q = 2 s - u, in place
// q % (K + 1): the upper half of result row q's, the lower half of row q + 1's.
template <class T, int K, bool FLIPPED>
struct PairResults {
  unsigned band[2][K][2];
  float start[2], out[2][K + 1][4];

  __device__ __forceinline__ PairResults(const HalfConv<T>& a, int channel, bool real) : band{}, start{}, out{} {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      if (real) band_matrices<T, K, K, FLIPPED>(a.weight + int64_t(channel + c) * (K * K), band[c]);
      if (real && !FLIPPED && a.bias) start[c] = float(a.bias[channel + c]);
    }
  }

  // j, known when compiled, is s up to a multiple of (K + 1) / 2.
  __device__ __forceinline__ void add(const unsigned* upper, const unsigned* lower, int j) {
    const int at = threadIdx.x % 32 * 2;  // columns 2 t, 2 t + 1 of block g
    uint2 words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = *reinterpret_cast<const uint2*>((i % 2 ? lower : upper) + at + i / 2 * 8);
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      unsigned in[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) in[i] = of_channel(c, words[i].x, words[i].y);
#pragma unroll
      for (int u = 0; u < K; ++u) {
        auto& sum = out[c][(2 * j + K + 1 - u) % (K + 1)];
        if (u < 2) sum[0] = sum[1] = start[c], sum[2] = sum[3] = 0.f;
        add_product(T(), sum, in[0], in[1], in[2], in[3], band[c][u][0], band[c][u][1]);
      }
    }
  }

  // The result rows 2 s - K + 1 and the next.
  __device__ __forceinline__ void put(unsigned* first, unsigned* second, int j) const {
    const int at = threadIdx.x % 32 * 2;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const int own = (2 * j + 2 + row) % (K + 1), before = (2 * j + 1 + row) % (K + 1);
      uint2 both;
      both.x = pack<T>(out[0][own][0] + out[0][before][2], out[1][own][0] + out[1][before][2]);
      both.y = pack<T>(out[0][own][1] + out[0][before][3], out[1][own][1] + out[1][before][3]);
      *reinterpret_cast<uint2*>((row ? second : first) + at) = both;
    }
  }
};

// Window (transposed) times x: the 16 values that a product adds are those of 8 blocks, of two rows each. Pair q of rows of
// x, q and q + 1, is in place q % (K + 1). Product row g is the window's column 2 g, row g + 8 its column 2 g + 1.
template <class T, int K>
struct PairTaps {
  float sums[2][K][4], bias;  // of bias, lanes with t < 2 have channel 0, the others channel 1
  unsigned x[2][K + 1][2];

  __device__ __forceinline__ PairTaps() : sums{}, bias(0), x{} {}

  // Two rows of the window and two of x. `first`, `second`: whether those of the window count to the bias.
  __device__ __forceinline__ void add(const unsigned* upper, const unsigned* lower, const unsigned* x_upper,
                                      const unsigned* x_lower, int j, bool first, bool second) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    uint2 words[2][2];
#pragma unroll
    for (int b = 0; b < 2; ++b) {
      const int block = 8 * (t + 4 * b);
      const unsigned even = x_upper[block + g], odd = x_lower[block + g];
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const unsigned before = x[c][(2 * j + K - 1) % (K + 1)][b];
        x[c][(2 * j + K) % (K + 1)][b] = __byte_perm(before, even, c ? 0x7632 : 0x5432);
        x[c][2 * j % (K + 1)][b] = of_channel(c, even, odd);
      }
#pragma unroll
      for (int row = 0; row < 2; ++row)
        words[row][b] = *reinterpret_cast<const uint2*>((row ? lower : upper) + block + 2 * g);
    }
    float columns[4] = {};
    const unsigned one = pack<T>(1.f, 1.f), ones = (first ? one & 0xffff : 0) | (second ? one & 0xffff0000 : 0);
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      unsigned in[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint2 &up = words[0][i / 2], &low = words[1][i / 2];
        in[i] = i % 2 ? of_channel(c, up.y, low.y) : of_channel(c, up.x, low.x);
      }
#pragma unroll
      for (int u = 0; u < K; ++u) {
        const auto& other = x[c][(2 * j + K + 1 - u) % (K + 1)];
        add_product(T(), sums[c][u], in[0], in[1], in[2], in[3], other[0], other[1]);
      }
      const unsigned own = g / 4 == c ? ones : 0;
      add_product(T(), columns, in[0], in[1], in[2], in[3], own, own);
    }
    bias += columns[0] + columns[2];
  }

  // Adds the diagonals, a sum for each tap, in a fixed order, and of bias the columns MARGIN to MARGIN + 7. Takes 128 floats
  // of shared memory.
  __device__ __forceinline__ void write(float* square, float* partials) const {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int c = 0; c < 2; ++c) {
#pragma unroll
      for (int u = 0; u < K; ++u) {
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 4; ++i) square[(2 * g + i / 2) * 8 + 2 * t + i % 2] = sums[c][u][i];
        __syncwarp();
        if (lane >= K) continue;
        float total = 0;
#pragma unroll
        for (int n = 0; n < 8; ++n) total += square[(n + lane + MARGIN - K / 2) * 8 + n];
        partials[K * K - 1 - (u * K + lane)] = total;
      }
      const float total = sum_lanes(t == 2 * c && 2 * g >= MARGIN && 2 * g < MARGIN + 8 ? bias : 0.f, 32);
      if (lane == 0) partials[K * K] = total;
      partials += K * K + 1;
    }
  }
};

}  // namespace nerfkit
