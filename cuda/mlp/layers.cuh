// SPDX-License-Identifier: Apache-2.0
// What both passes share: the arguments, weights in shared memory, and a layer of 16 rows in the registers of a warp.
// H: width of the hidden layers; fragments and accumulators as in common/mma.cuh, with g = lane / 4 and t = lane % 4.

#pragma once

#include "common/mma.cuh"
#include "mlp/args.h"

namespace nerfkit {
namespace {

constexpr int WARPS = 8, ROWS = 16 * WARPS;  // of a block: 16 rows per warp
constexpr int OUT = 16;                      // columns of the output, padded; WIDEST_OUTPUT of nerfkit/ops/mlp.py
constexpr int WIDEST = 128;                  // input columns, at most; WIDEST_INPUT of nerfkit/ops/mlp.py
constexpr int PAD = 8;  // elements behind each row of a shared matrix: 16 bytes shift the next row by four banks

template <class T>
struct MlpArrays {
  const T* inputs[MLP_INPUTS];  // [N, input_width[k]] each
  const T* parameters;          // [P]
  const T* grad_out;            // [N, n_out]
  T* out;                       // [N, n_out]
  T* grad_inputs[MLP_INPUTS];   // [N, input_width[k]] each, or null
  float* grad_parameters;       // [MLP_PARTS, P]
  int input_width[MLP_INPUTS];
  int64_t n_rows;  // N
  int n_in, n_out;
};

// Row addresses for ldmatrix of the 16 x 16 block at (row, column) of a matrix in shared memory: matrix [.., stride].
// by_columns: the second of the four 8 x 8 matrices is the right neighbour of the first; by_rows: the one below it.
template <class T>
__device__ __forceinline__ const T* by_columns(const T* matrix, int stride, int row, int column) {
  const int lane = threadIdx.x % 32;
  return matrix + (row + lane / 16 * 8 + lane % 8) * stride + column + lane / 8 % 2 * 8;
}
template <class T>
__device__ __forceinline__ const T* by_rows(const T* matrix, int stride, int row, int column) {
  const int lane = threadIdx.x % 32;
  return matrix + (row + lane / 8 % 2 * 8 + lane % 8) * stride + column + lane / 16 * 8;
}

// Right fragments of the transposed block: of a weight [out, in], outputs row .. row + 15.
template <class T>
__device__ __forceinline__ void load_right_transposed(const T* matrix, int stride, int row, int column,
                                                      unsigned (&to)[4]) {
  ldmatrix<false>(by_columns(matrix, stride, row, column), to);
}

// Right fragments of the block: columns column .. column + 15.
template <class T>
__device__ __forceinline__ void load_right(const T* matrix, int stride, int row, int column, unsigned (&to)[4]) {
  ldmatrix<true>(by_rows(matrix, stride, row, column), to);
}

// The left fragment of the transposed block: rows column .. column + 15, depth row .. row + 15.
template <class T>
__device__ __forceinline__ void load_left_transposed(const T* matrix, int stride, int row, int column,
                                                     unsigned (&to)[4]) {
  ldmatrix<true>(by_columns(matrix, stride, row, column), to);
}

// Two neighbouring accumulators [16, 8] += left [16, 16] right [16, 16].
template <class T>
__device__ __forceinline__ void add_products(float (&first)[4], float (&second)[4], const unsigned (&left)[4],
                                             const unsigned (&right)[4]) {
  mma(T(), first, left[0], left[1], left[2], left[3], right[0], right[1]);
  mma(T(), second, left[0], left[1], left[2], left[3], right[2], right[3]);
}

__device__ __forceinline__ float relu(float x) { return x < 0 ? 0.f : x; }  // NaN stays

// 16 rows of H values, as left fragments.
template <class T, int H>
struct RowFragments {
  unsigned value[H / 16][4];  // two half values each

  // f of accumulators [16, H].
  template <class F>
  __device__ __forceinline__ void from_sums(const float (&sum)[H / 8][4], const F& f) {
#pragma unroll
    for (int c = 0; c < H / 16; ++c)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int tile = 2 * c + i / 2, at = i % 2 * 2;
        value[c][i] = pack<T>(f(sum[tile][at]), f(sum[tile][at + 1]));
      }
  }
  __device__ __forceinline__ void to_shared(T* matrix, int stride) const {  // matrix [16, stride] of this warp
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int c = 0; c < H / 16; ++c)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        *reinterpret_cast<unsigned*>(matrix + (g + i % 2 * 8) * stride + 16 * c + i / 2 * 8 + 2 * t) = value[c][i];
  }
};

// Weights and biases in shared memory; the output's are padded with zeros to OUT rows.
template <class T, int H, int HIDDEN>
struct Weights {
  T* in;               // [H, in_stride], n_in columns
  T* middle;           // [H, H + PAD], if HIDDEN is 2
  T* out;              // [OUT, H + PAD]
  float* bias_in;      // [H]
  float* bias_middle;  // [H], if HIDDEN is 2
  float* bias_out;     // [OUT]
  int in_stride;

  static __host__ __device__ size_t bytes(int n_in) {
    return (size_t(H) * (n_in + PAD) + ((HIDDEN - 1) * H + OUT) * (H + PAD)) * sizeof(T) +
           (HIDDEN * H + OUT) * sizeof(float);
  }
  __device__ __forceinline__ Weights(unsigned char* memory, int n_in) : in_stride(n_in + PAD) {
    in = reinterpret_cast<T*>(memory);
    middle = in + H * in_stride;
    out = middle + (HIDDEN - 1) * H * (H + PAD);
    bias_in = reinterpret_cast<float*>(out + OUT * (H + PAD));
    bias_middle = bias_in + H;
    bias_out = bias_in + HIDDEN * H;
  }
  __device__ __forceinline__ void load(const T* from, int n_in, int n_out) {
    copy(from, in, in_stride, bias_in, n_in, H, H);
    from += (n_in + 1) * H;
    if (HIDDEN == 2) {
      copy(from, middle, H + PAD, bias_middle, H, H, H);
      from += (H + 1) * H;
    }
    copy(from, out, H + PAD, bias_out, H, n_out, OUT);
  }
  static __device__ __forceinline__ void copy(const T* from,  // weight [rows, width], then bias [rows]
                                              T* matrix,      // [all_rows, stride]
                                              int stride,
                                              float* bias,  // [all_rows]
                                              int width, int rows, int all_rows) {
    for (int i = threadIdx.x; i < all_rows * width; i += 32 * WARPS)
      matrix[i / width * stride + i % width] = i < rows * width ? from[i] : T(0.f);
    for (int i = threadIdx.x; i < all_rows; i += 32 * WARPS) bias[i] = i < rows ? float(from[rows * width + i]) : 0.f;
  }
};

// sum [16, 8 N] = bias [8 N] in every row.
template <int N>
__device__ __forceinline__ void start_with(float (&sum)[N][4], const float* bias) {
  const int t = threadIdx.x % 4;
#pragma unroll
  for (int n = 0; n < N; ++n) {
    sum[n][0] = sum[n][2] = bias[8 * n + 2 * t];
    sum[n][1] = sum[n][3] = bias[8 * n + 2 * t + 1];
  }
}

// sum [16, 8 N] += rows [16, H] times transposed weight [8 N, H].
template <class T, int H, int N>
__device__ __forceinline__ void apply(float (&sum)[N][4], const RowFragments<T, H>& rows, const T* weight, int stride) {
#pragma unroll
  for (int c = 0; c < H / 16; ++c)
#pragma unroll
    for (int n = 0; n < N; n += 2) {
      unsigned right[4];
      load_right_transposed(weight, stride, 8 * n, 16 * c, right);
      add_products<T>(sum[n], sum[n + 1], rows.value[c], right);
    }
}

// sum [16, 8 N] += rows [16, H] times weight [H, 8 N], the columns of it from `column` on.
template <class T, int H, int N>
__device__ __forceinline__ void apply_back(float (&sum)[N][4], const RowFragments<T, H>& rows, const T* weight,
                                           int stride, int column) {
#pragma unroll
  for (int c = 0; c < H / 16; ++c)
#pragma unroll
    for (int n = 0; n < N; n += 2) {
      unsigned right[4];
      load_right(weight, stride, 16 * c, column + 8 * n, right);
      add_products<T>(sum[n], sum[n + 1], rows.value[c], right);
    }
}

// Calls f(k, column of input k, column of the concatenation) for every 16 columns of the inputs.
template <class T, class F>
__device__ __forceinline__ void for_columns(const MlpArrays<T>& a, const F& f) {
  int all = 0;
#pragma unroll
  for (int k = 0; k < MLP_INPUTS; ++k)
    for (int column = 0; column < a.input_width[k]; column += 16, all += 16) f(k, column, all);
}

// sum [16, H] += rows first_row .. + 15 of the inputs times transposed weight [H, stride]. Stores the rows in saved
// [16, stride] if that is not null.
template <class T, int H>
__device__ __forceinline__ void first_layer(const MlpArrays<T>& a, int64_t first_row, const T* weight, int stride,
                                            float (&sum)[H / 8][4], T* saved) {
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  for_columns(a, [&](int k, int column, int all) {
    unsigned x[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int64_t row = first_row + g + i % 2 * 8;
      const T* from = a.inputs[k] + row * a.input_width[k] + column + i / 2 * 8 + 2 * t;
      x[i] = row < a.n_rows ? *reinterpret_cast<const unsigned*>(from) : 0;
      if (saved) *reinterpret_cast<unsigned*>(saved + (g + i % 2 * 8) * stride + all + i / 2 * 8 + 2 * t) = x[i];
    }
#pragma unroll
    for (int n = 0; n < H / 8; n += 2) {
      unsigned right[4];
      load_right_transposed(weight, stride, 8 * n, all, right);
      add_products<T>(sum[n], sum[n + 1], x, right);
    }
  });
}

}  // namespace
}  // namespace nerfkit
