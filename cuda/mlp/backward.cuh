// SPDX-License-Identifier: Apache-2.0
// Backward: the layers are computed again. Each warp takes its 16 rows back through the layers in registers; what a
// block's 128 rows have in front of each layer, and their gradients behind it, go to shared memory. From there the
// warps divide the gradients of the weights among them, products that sum over rows, whose accumulators stay in
// registers to the end of the kernel.

#pragma once

#include "mlp/layers.cuh"

namespace nerfkit {
namespace {

// grad [16, H] where the output `rows` of the ReLU is not 0, else 0; bias += its columns' sums over this lane's rows.
template <class T, int H>
__device__ __forceinline__ RowFragments<T, H> through_relu(float (&grad)[H / 8][4], const RowFragments<T, H>& rows,
                                                           float (&bias)[H / 4]) {
#pragma unroll
  for (int n = 0; n < H / 8; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const unsigned both = rows.value[n / 2][n % 2 * 2 + i / 2], mine = i % 2 ? both >> 16 : both;
      grad[n][i] = mine & 0x7fff ? grad[n][i] : 0.f;
      bias[2 * n + i % 2] += grad[n][i];
    }
  RowFragments<T, H> out;
  out.from_sums(grad, [](float x) { return x; });
  return out;
}

// Tiles 16 x 16 of the gradient of a weight [H, n_in] or [H, H] that a warp accumulates: those of 16 rows, and of the
// 16s of columns every STEPth. A weight of 64 rows has four warps' rows, so two warps share its columns.
template <int H>
struct WarpTiles {
  static constexpr int STEP = WARPS / (H / 16);
  int row, first;  // first row; first 16 columns
  __device__ __forceinline__ WarpTiles(int warp) : row(warp % (H / 16) * 16), first(warp / (H / 16)) {}
};

// sum [16, 16] += transposed grads [ROWS, 16 columns from `row` on] times values [ROWS, 16 columns from `column` on].
template <class T>
__device__ __forceinline__ void add_outer(float (&sum)[2][4], const T* grads, int grads_stride, int row,
                                          const T* values, int values_stride, int column) {
#pragma unroll
  for (int k = 0; k < ROWS; k += 16) {
    unsigned left[4], right[4];
    load_left_transposed(grads, grads_stride, k, row, left);
    load_right(values, values_stride, k, column, right);
    add_products<T>(sum[0], sum[1], left, right);
  }
}

// sum -> to [rows, width] at (row, column).
__device__ __forceinline__ void store_outer(const float (&sum)[2][4], float* to, int width, int row, int column,
                                            int rows) {
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int r = row + g + i / 2 % 2 * 8;
    if (r < rows) to[int64_t(r) * width + column + i / 4 * 8 + 2 * t + i % 2] = sum[i / 4][i % 4];
  }
}

// to [columns] = sums over all rows of the block; bias: this lane's, of columns 8 n + 2 t and + 1. workspace
// [WARPS, 8 N]. All threads of the block call it.
template <int N>
__device__ __forceinline__ void store_bias(float (&bias)[2 * N], float* workspace, float* to, int columns) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 2 * N; ++i) {
    for (int offset = 4; offset < 32; offset *= 2) bias[i] += __shfl_xor_sync(FULL_MASK, bias[i], offset);
    if (lane < 4) workspace[warp * 8 * N + i / 2 * 8 + 2 * lane + i % 2] = bias[i];
  }
  __syncthreads();
  for (int column = threadIdx.x; column < columns; column += 32 * WARPS) {
    float sum = 0;
    for (int w = 0; w < WARPS; ++w) sum += workspace[w * 8 * N + column];
    to[column] = sum;
  }
}

// Of shared memory.
template <class T, int H, int HIDDEN>
constexpr size_t backward_bytes(int n_in) {
  return Weights<T, H, HIDDEN>::bytes(n_in) +
         size_t(ROWS) * ((n_in + PAD) + 2 * HIDDEN * (H + PAD) + OUT + PAD) * sizeof(T);
}

template <int N>
__device__ __forceinline__ void clear(float (&sum)[N][4]) {
#pragma unroll
  for (int n = 0; n < N; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[n][i] = 0;
}

// grad [16, OUT] = rows `row` .. + 15 of grad_out, padded with zeros; bias += its columns' sums over this lane's rows.
template <class T>
__device__ __forceinline__ void load_grad_out(const MlpArrays<T>& a, int64_t row, float (&grad)[OUT / 8][4],
                                              float (&bias)[OUT / 4]) {
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
  for (int i = 0; i < 4 * (OUT / 8); ++i) {
    const int64_t n = row + g + i / 2 % 2 * 8;
    const int column = i / 4 * 8 + 2 * t + i % 2;
    grad[i / 4][i % 4] = n < a.n_rows && column < a.n_out ? float(a.grad_out[n * a.n_out + column]) : 0.f;
    bias[i / 4 * 2 + i % 2] += grad[i / 4][i % 4];
  }
}

// Rows `row` .. + 15 of the inputs' gradients: grad [16, H] times weight [H, stride], for the inputs that want one.
template <class T, int H>
__device__ __forceinline__ void store_grad_inputs(const MlpArrays<T>& a, int64_t row, const RowFragments<T, H>& grad,
                                                  const T* weight, int stride) {
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  for_columns(a, [&](int k, int column, int all) {
    if (!a.grad_inputs[k]) return;
    float of_x[2][4] = {};
    apply_back(of_x, grad, weight, stride, all);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int64_t n = row + g + i % 2 * 8;
      T* to = a.grad_inputs[k] + n * a.input_width[k] + column + i / 2 * 8 + 2 * t;
      if (n < a.n_rows) *reinterpret_cast<unsigned*>(to) = pack<T>(of_x[i / 2][i % 2 * 2], of_x[i / 2][i % 2 * 2 + 1]);
    }
  });
}

template <class T, int H, int HIDDEN>
__global__ void __launch_bounds__(32 * WARPS, 1) mlp_backward(const MlpArrays<T> a) {
  constexpr int STRIDE = H + PAD, OUT_STRIDE = OUT + PAD, STEP = WarpTiles<H>::STEP;
  constexpr int IN_TILES = (WIDEST / 16 + STEP - 1) / STEP, TILES = (H / 16 + STEP - 1) / STEP;  // of a warp
  extern __shared__ __align__(16) unsigned char shared[];
  Weights<T, H, HIDDEN> weights(shared, a.n_in);
  const int in_stride = weights.in_stride;
  T* x = reinterpret_cast<T*>(shared + Weights<T, H, HIDDEN>::bytes(a.n_in));  // [ROWS, in_stride]
  T* hidden = x + ROWS * in_stride;                                            // [HIDDEN, ROWS, STRIDE]
  T* grads = hidden + HIDDEN * ROWS * STRIDE;     // [HIDDEN, ROWS, STRIDE] in front of the ReLU
  T* grads_out = grads + HIDDEN * ROWS * STRIDE;  // [ROWS, OUT_STRIDE]
  weights.load(a.parameters, a.n_in, a.n_out);
  __syncthreads();
  const int warp = threadIdx.x / 32;
  const WarpTiles<H> tiles(warp);
  float weight_in[IN_TILES][2][4] = {}, weight_middle[TILES][2][4] = {}, weight_out[2][4] = {};  // gradients
  float bias_in[H / 4] = {}, bias_middle[H / 4] = {}, bias_out[OUT / 4] = {};

  for (int64_t first = int64_t(blockIdx.x) * ROWS; first < a.n_rows; first += int64_t(gridDim.x) * ROWS) {
    const int64_t row = first + warp * 16;
    float sum[H / 8][4];
    RowFragments<T, H> at[HIDDEN], grad;
    start_with(sum, weights.bias_in);
    first_layer<T, H>(a, row, weights.in, in_stride, sum, x + warp * 16 * in_stride);
    at[0].from_sums(sum, relu);
    at[0].to_shared(hidden + warp * 16 * STRIDE, STRIDE);
    if constexpr (HIDDEN == 2) {
      start_with(sum, weights.bias_middle);
      apply(sum, at[0], weights.middle, STRIDE);
      at[1].from_sums(sum, relu);
      at[1].to_shared(hidden + (ROWS + warp * 16) * STRIDE, STRIDE);
    }

    RowFragments<T, OUT> grad_result;
    float result[OUT / 8][4];
    load_grad_out(a, row, result, bias_out);
    grad_result.from_sums(result, [](float v) { return v; });
    grad_result.to_shared(grads_out + warp * 16 * OUT_STRIDE, OUT_STRIDE);

    clear(sum);
    apply_back(sum, grad_result, weights.out, STRIDE, 0);
    if constexpr (HIDDEN == 2) {
      grad = through_relu<T, H>(sum, at[1], bias_middle);
      grad.to_shared(grads + (ROWS + warp * 16) * STRIDE, STRIDE);
      clear(sum);
      apply_back(sum, grad, weights.middle, STRIDE, 0);
    }
    grad = through_relu<T, H>(sum, at[0], bias_in);
    grad.to_shared(grads + warp * 16 * STRIDE, STRIDE);
    store_grad_inputs(a, row, grad, weights.in, in_stride);
    __syncthreads();

#pragma unroll
    for (int i = 0; i < IN_TILES; ++i)
      if ((tiles.first + i * STEP) * 16 < a.n_in)
        add_outer(weight_in[i], grads, STRIDE, tiles.row, x, in_stride, (tiles.first + i * STEP) * 16);
    if constexpr (HIDDEN == 2) {
#pragma unroll
      for (int i = 0; i < TILES; ++i)
        if ((tiles.first + i * STEP) * 16 < H)
          add_outer(weight_middle[i], grads + ROWS * STRIDE, STRIDE, tiles.row, hidden, STRIDE,
                    (tiles.first + i * STEP) * 16);
    }
    if (warp < H / 16)
      add_outer(weight_out, grads_out, OUT_STRIDE, 0, hidden + (HIDDEN - 1) * ROWS * STRIDE, STRIDE, 16 * warp);
    __syncthreads();
  }

  float* to =
      a.grad_parameters + blockIdx.x * (int64_t(a.n_in + 1) * H + (HIDDEN - 1) * (H + 1) * H + (H + 1) * a.n_out);
  float* workspace = reinterpret_cast<float*>(x);
#pragma unroll
  for (int i = 0; i < IN_TILES; ++i)
    if ((tiles.first + i * STEP) * 16 < a.n_in)
      store_outer(weight_in[i], to, a.n_in, tiles.row, (tiles.first + i * STEP) * 16, H);
  store_bias<H / 8>(bias_in, workspace, to + a.n_in * H, H);
  to += (a.n_in + 1) * H;
  if constexpr (HIDDEN == 2) {
#pragma unroll
    for (int i = 0; i < TILES; ++i)
      if ((tiles.first + i * STEP) * 16 < H)
        store_outer(weight_middle[i], to, H, tiles.row, (tiles.first + i * STEP) * 16, H);
    store_bias<H / 8>(bias_middle, workspace, to + H * H, H);
    to += (H + 1) * H;
  }
  if (warp < H / 16) store_outer(weight_out, to, H, 0, 16 * warp, a.n_out);
  store_bias<OUT / 8>(bias_out, workspace, to + H * a.n_out, a.n_out);
}

}  // namespace
}  // namespace nerfkit
