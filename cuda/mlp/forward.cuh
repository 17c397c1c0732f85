// SPDX-License-Identifier: Apache-2.0
// Forward: a warp takes 16 rows through all layers in registers. The accumulators of one layer, [16, H] in mma layout,
// are lane for lane the left fragments of the next.

#pragma once

#include "mlp/layers.cuh"

namespace nerfkit {
namespace {

template <class T, int H, int HIDDEN>
__global__ void __launch_bounds__(32 * WARPS, 2) mlp_forward(const MlpArrays<T> a) {
  extern __shared__ __align__(16) unsigned char shared[];
  Weights<T, H, HIDDEN> weights(shared, a.n_in);
  weights.load(a.parameters, a.n_in, a.n_out);
  __syncthreads();
  const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  for (int64_t row = (int64_t(blockIdx.x) * WARPS + warp) * 16; row < a.n_rows; row += int64_t(gridDim.x) * ROWS) {
    float sum[H / 8][4];
    RowFragments<T, H> hidden;
    start_with(sum, weights.bias_in);
    first_layer<T, H>(a, row, weights.in, weights.in_stride, sum, nullptr);
    hidden.from_sums(sum, relu);
    if constexpr (HIDDEN == 2) {
      start_with(sum, weights.bias_middle);
      apply(sum, hidden, weights.middle, H + PAD);
      hidden.from_sums(sum, relu);
    }
    float result[OUT / 8][4];
    start_with(result, weights.bias_out);
    apply(result, hidden, weights.out, H + PAD);
#pragma unroll
    for (int i = 0; i < 4 * (OUT / 8); ++i) {
      const int64_t n = row + g + i / 2 % 2 * 8;
      const int column = i / 4 * 8 + 2 * t + i % 2;
      if (n < a.n_rows && column < a.n_out) a.out[n * a.n_out + column] = T(result[i / 4][i % 4]);
    }
  }
}

}  // namespace
}  // namespace nerfkit
