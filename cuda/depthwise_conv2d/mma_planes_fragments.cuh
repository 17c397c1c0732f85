// SPDX-License-Identifier: Apache-2.0
// The mma fragments of a warp: band matrices that have a row of taps on their diagonals, accumulators of the rows of
// results that are not complete, and of the weight's gradient, whose sums are diagonals too.

#pragma once

#include "common/async_copy.cuh"
#include "common/mma.cuh"
#include "depthwise_conv2d/kernels.cuh"

namespace nerfkit {

template <class T>
struct MmaPlanesArgs : Conv2dArrays<T> {
  Conv2dShape::Strides strides;  // of all arrays of images, in elements
  int64_t units;                 // of work: images times channels times strips times pieces
  int channels, height, width;
  int strips, pieces, rows;  // across a row; down a column; rows of a strip
};

constexpr int MARGIN = 4;  // columns of a window before and after its 8

// This lane's fragment of the band matrices: value (k, n) of matrix u is tap (u, k - n + KW / 2 - MARGIN); taps [KH,
// KW].
template <class T, int KH, int KW, bool FLIPPED>
__device__ __forceinline__ void band_matrices(const T* taps, unsigned (&band)[KH][2]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int u = 0; u < KH; ++u)
#pragma unroll
    for (int high = 0; high < 2; ++high) {
      Vec<T, 2> pair;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int v = 8 * high + lane % 4 * 2 + i - lane / 4 + KW / 2 - MARGIN, index = u * KW + v;
        pair.v[i] = v >= 0 && v < KW ? taps[FLIPPED ? KH * KW - 1 - index : index] : T(0.f);
      }
      band[u][high] = reinterpret_cast<const unsigned&>(pair);
    }
}

// partials [KH * KW + 1]: adds the diagonals of window (transposed) times x, a sum for each row of taps, in a fixed
// order; and of `bias` those of lanes 4 g. square [16, 8] is shared memory.
template <int KH, int KW>
__device__ __forceinline__ void write_sums(const float (&sums)[KH][4], float bias, float* square, float* partials) {
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int u = 0; u < KH; ++u) {
    __syncwarp();
    square[g * 8 + 2 * t] = sums[u][0], square[g * 8 + 2 * t + 1] = sums[u][1];
    square[(g + 8) * 8 + 2 * t] = sums[u][2], square[(g + 8) * 8 + 2 * t + 1] = sums[u][3];
    __syncwarp();
    if (lane >= KW) continue;
    float total = 0;
#pragma unroll
    for (int n = 0; n < 8; ++n) total += square[(n + lane + MARGIN - KW / 2) * 8 + n];
    partials[KH * KW - 1 - (u * KW + lane)] = total;
  }
  const float total = warp_sum(t == 0 ? bias : 0.f, 32);
  if (lane == 0) partials[KH * KW] = total;
}

constexpr int STRIP = 64;  // columns of a strip

// A step's row of a strip in shared memory, two columns per word; CENTER: with x.
template <bool CENTER>
struct alignas(16) MmaRow {
  static constexpr int WINDOW = (STRIP + 2 * MARGIN) / 2, WORDS = WINDOW + (CENTER ? STRIP / 2 : 0);
  unsigned word[WORDS];
  __device__ __forceinline__ unsigned* window() { return word; }           // from column x0 - MARGIN on
  __device__ __forceinline__ unsigned* center() { return word + WINDOW; }  // from column x0 on
};

// j, known when compiled, is step % group_rows. Accumulators are fragments of 16 x 8: blocks of columns x columns.
template <class T, int KH, int KW, Pass PASS>
struct PlaneFragments {
  static constexpr bool BACKWARD = PASS == Pass::backward;
  unsigned band[KH][2];
  float start;
  float out[KH][4];                  // row r of the results in r % KH
  unsigned x[BACKWARD ? KH : 1][2];  // transposed
  float taps[BACKWARD ? KH : 1][4];  // window (transposed) times x
  float bias[4];                     // window (transposed) times ones

  __device__ __forceinline__ PlaneFragments(const MmaPlanesArgs<T>& a, int channel) : x{}, taps{}, bias{} {
    band_matrices<T, KH, KW, BACKWARD>(a.weight + int64_t(channel) * (KH * KW), band);
    start = !BACKWARD && a.bias ? float(a.bias[channel]) : 0.f;
  }

  // Matrices of 8 blocks and 8 columns are loaded together; this lane gives the address of one block's columns.
  __device__ __forceinline__ void add_to_taps(MmaRow<BACKWARD>* row, int j, bool own) {
    const int lane = threadIdx.x % 32;
    unsigned in[4];  // columns 0 to 7 of the upper strip's blocks, then 8 to 15, then those of the lower strip's
    ldmatrix<true>(row[lane / 8 % 2].center() + lane % 8 * 4, x[j % KH][0], x[j % KH][1]);
    ldmatrix<true>(row[lane / 16].window() + (lane % 8 + lane / 8 % 2) * 4, in);
#pragma unroll
    for (int u = 0; u < KH; ++u) {
      const auto& other = x[(j + KH - u) % KH];
      mma(T(), taps[u], in[0], in[1], in[2], in[3], other[0], other[1]);
    }
    const unsigned one = pack<T>(1.f, 1.f);
    if (own) mma(T(), bias, in[0], in[1], in[2], in[3], one, one);
  }

  __device__ __forceinline__ void add_to_results(MmaRow<BACKWARD>* row, int j) {
    const int lane = threadIdx.x % 32;
    unsigned in[4];  // columns 0 to 7 of the upper strip's blocks, of the lower strip's, then columns 8 to 15
    ldmatrix<false>(row[lane / 8 % 2].window() + (lane % 8 + lane / 16) * 4, in);
#pragma unroll
    for (int i = 0; i < 4; ++i) out[j % KH][i] = start;
#pragma unroll
    for (int u = 0; u < KH; ++u) mma(T(), out[(j + KH - u) % KH], in[0], in[1], in[2], in[3], band[u][0], band[u][1]);
  }

  // Of the columns of both halves, those of the middle.
  __device__ __forceinline__ float bias_of_lane() const { return threadIdx.x % 32 / 4 < MARGIN ? bias[2] : bias[0]; }

  // Of the row of results that step j completes: this lane's two columns of a strip.
  __device__ __forceinline__ unsigned result(int j, int strip) const {
    const auto& done = out[(j + 1) % KH];
    return pack<T>(done[2 * strip], done[2 * strip + 1]);
  }
};

}  // namespace nerfkit
