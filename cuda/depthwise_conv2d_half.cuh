// SPDX-License-Identifier: Apache-2.0
// What both ways for half types on tensor cores share, planes and channels last: the arguments, the band matrices that have
// a row of taps on their diagonals, and the sums of the weight's gradient, which are diagonals too.

#pragma once

#include "async_copy.cuh"
#include "depthwise_conv2d.h"
#include "partial_sums.cuh"
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
  int64_t units;  // of work: planes or, channels last, groups of channels; times strips and pieces
  int channels, height, width;
  int strips, pieces, rows;  // across a row; down a column; rows of a strip
  int pictures, period;      // channels last; period: rows from one to the next, with zeros between
  int quads;                 // channels last: four channels each, of a block
};

constexpr int MARGIN = 4;  // columns of a window before and after its 8

// This lane's part of the band matrices: value (k, n) of matrix u is tap (u, k - n + KW / 2 - MARGIN).
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
        const int v = 8 * high + lane % 4 * 2 + i - lane / 4 + KW / 2 - MARGIN, place = u * KW + v;
        pair.v[i] = v >= 0 && v < KW ? taps[FLIPPED ? KH * KW - 1 - place : place] : T(0.f);
      }
      band[u][high] = reinterpret_cast<const unsigned&>(pair);
    }
}

// Adds the diagonals of window (transposed) times x, a sum for each row of taps, in a fixed order; and of `bias` those of
// lanes 4 g. Takes 128 floats of shared memory.
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
  const float total = sum_lanes(t == 0 ? bias : 0.f, 32);
  if (lane == 0) partials[KH * KW] = total;
}

constexpr int STRIP = 64;  // columns of a strip

}  // namespace nerfkit
