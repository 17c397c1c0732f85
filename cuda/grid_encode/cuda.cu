// SPDX-License-Identifier: Apache-2.0
// The gradient of points, and the launchers: which kernel takes what.

#include "grid_encode/backward.cuh"
#include "grid_encode/forward.cuh"

namespace nerfkit {
namespace {

// One thread per point; the levels are added in their order.
template <class P, class T, int V>
__global__ void __launch_bounds__(THREADS) grid_encode_grad_points(const T* __restrict__ grad_out,  // [N, L*F]
                                                                   const P* __restrict__ points,    // [N, 3]
                                                                   const T* __restrict__ table,     // [T, F]
                                                                   P* __restrict__ grad_points,     // [N, 3]
                                                                   int64_t n_points, GridLevels levels) {
  using A = acc_t<T>;
  const int64_t n = int64_t(blockIdx.x) * THREADS + threadIdx.x;
  if (n >= n_points) return;
  const int f = levels.n_features;
  P sum[3] = {};
  for (int l = 0; l < levels.n_levels; ++l) {
    const GridLevel level = level_of(levels, l);
    int cell[3];
    P u[3], d[8] = {}, grad_u[3];  // d: gradients of the corners' weights
    uint32_t row[8];
    cell_of(level, points + 3 * n, cell, u);
    rows_of(level, cell, row);
    for (int j = 0; j < f; j += V) {
      const T* level_table = table + levels.first_row[l] * f + j;
      A grad[V];
      load(grad_out + (n * levels.n_levels + l) * f + j, grad);
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        A value[V], dot = 0;
        load(level_table + int64_t(row[k]) * f, value);
#pragma unroll
        for (int v = 0; v < V; ++v) dot += grad[v] * value[v];
        d[k] += P(dot);
      }
    }
    corner_weights_bwd(u, d, grad_u);
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) sum[axis] += grad_u[axis] * P(level.resolution);
  }
#pragma unroll
  for (int axis = 0; axis < 3; ++axis) grad_points[3 * n + axis] = in_box(points[3 * n + axis]) ? sum[axis] : P(0);
}

// Calls f with a point, a table element and the features of one access.
template <class F>
void dispatch_grid(DType point_type, DType table_type, int n_features, bool aligned16, const F& f) {
  dispatch(table_type, [&](auto t) {
    using T = decltype(t);
    if (point_type == DType::f64) return f(double(), t, std::integral_constant<int, 1>());
    if constexpr (sizeof(T) < 8) {
      if (!aligned16) return f(float(), t, std::integral_constant<int, 1>());
      if (n_features % 4 == 0) return f(float(), t, std::integral_constant<int, 4>());
      if (n_features % 2 == 0) return f(float(), t, std::integral_constant<int, 2>());
    }
    return f(float(), t, std::integral_constant<int, 1>());
  });
}

}  // namespace

Status grid_encode(DType point_type, DType table_type, const void* points, const void* table, void* out,
                   int64_t n_points, const GridLevels& levels, Stream stream) {
  if (n_points == 0 || levels.n_features == 0) return 0;
  dispatch_grid(point_type, table_type, levels.n_features, aligned(table, 16), [&](auto p, auto t, auto width) {
    using P = decltype(p);
    using T = decltype(t);
    launch_forward<width.value>((const P*)points, (const T*)table, (T*)out, n_points, levels, (cudaStream_t)stream);
  });
  return launched();
}

Status grid_encode_bwd(DType point_type, DType table_type, const void* grad_out, const void* points, const void* table,
                       void* grad_points, void* grad_table, int64_t* fixed_point, void* largest, int64_t n_rows,
                       int64_t n_points, const GridLevels& levels, Stream stream) {
  const int64_t n_values = n_points * levels.n_levels * levels.n_features;
  if (n_points == 0) return 0;
  const auto on = (cudaStream_t)stream;
  const bool aligned16 = aligned(table, 16) && aligned(grad_out, 16);
  dispatch_grid(point_type, table_type, levels.n_features, aligned16, [&](auto p, auto t, auto width) {
    using P = decltype(p);
    using T = decltype(t);
    using A = acc_t<T>;
    constexpr int V = width.value;
    const auto* grad = (const T*)grad_out;
    const auto* at = (const P*)points;
    auto* fixed = (unsigned long long*)fixed_point;
    auto* bound = (unsigned long long*)largest;
    const TableSums<A> sums{(A*)grad_table, fixed, bound};
    if (grad_table && n_values && fixed) {
      grid_encode_find_largest<<<std::min(blocks_for(n_values), 1024u), THREADS, 0, on>>>(grad, bound, n_values);
      launch_grad_table<true, V>(grad, at, sums, n_points, levels, on);
      const int64_t n = n_rows * levels.n_features;
      grid_encode_from_fixed<<<blocks_for(n), THREADS, 0, on>>>(fixed, sums.table, bound, n_points, n);
    } else if (grad_table && n_values) {
      launch_grad_table<false, V>(grad, at, sums, n_points, levels, on);
    }
    if (grad_points)
      grid_encode_grad_points<P, T, V>
          <<<blocks_for(n_points), THREADS, 0, on>>>(grad, at, (const T*)table, (P*)grad_points, n_points, levels);
  });
  return launched();
}

}  // namespace nerfkit
