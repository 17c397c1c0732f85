// SPDX-License-Identifier: Apache-2.0
// Features of points: grid_encode_forward_levels for F of one access, grid_encode_forward for any F.

#pragma once

#include "grid_encode/levels.cuh"

namespace nerfkit {
namespace {

// Points that all levels take before the next ones: 3 MB, which L2 holds beside the rows of a level.
constexpr int64_t CHUNK = 1 << 18;

// The four corners of a cell at its lower (even lane) or upper (odd lane) face along the first axis of memory.
template <class T, int V>
struct CellFace {
  float u[3];         // position in the cell
  Vec<T, V> rows[4];  // features of the corners (second, third axis)

  __device__ __forceinline__ void load(const MemoryOrder& order, const float (&point)[3], bool odd,
                                       const Vec<T, V>* from) {
    float along[3];
    int cell[3];
    order.permute(point, along);
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) cell_along(order.level.resolution, along[axis], cell[axis], u[axis]);
#pragma unroll
    for (int k = 0; k < 4; ++k) rows[k] = from[order.row(cell[0] + odd, cell[1] + (k >> 1), cell[2] + (k & 1))];
  }

  // sum = weights times features of the four corners.
  __device__ __forceinline__ void interpolate(bool odd, float (&sum)[V]) const {
    const float first = odd ? u[0] : 1 - u[0];
#pragma unroll
    for (int v = 0; v < V; ++v) sum[v] = 0;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float w = first * (k & 2 ? u[1] : 1 - u[1]) * (k & 1 ? u[2] : 1 - u[2]);
#pragma unroll
      for (int v = 0; v < V; ++v) sum[v] += w * float(rows[k].v[v]);
    }
  }
};

// F = V features, one access. One thread per point, G levels per block: G * V values are 32 bytes of `out`, a sector,
// staged in shared memory. Two lanes share their two points: each loads one face of both cells, so that the two rows of
// an edge, often in one sector, are asked for by one instruction.
template <class T, int V, int G>
__global__ void __launch_bounds__(THREADS) grid_encode_forward_levels(const float* __restrict__ points,  // [N, 3]
                                                                      const T* __restrict__ table,       // [T, V]
                                                                      T* __restrict__ out,               // [N, L*V]
                                                                      int64_t n_points, GridLevels levels) {
  constexpr int STRIDE = G | 1;  // odd, so that the threads of a warp write other banks
  __shared__ Vec<T, V> staged[THREADS * STRIDE];
  const int64_t first = tile_of_block() * THREADS, n = first + threadIdx.x;
  if (first >= n_points) return;
  const bool odd = threadIdx.x % 2;
  const int level0 = blockIdx.y * G, end = min(level0 + G, levels.n_levels);
  float point[2][3];  // of the even lane, of the odd lane
#pragma unroll
  for (int axis = 0; axis < 3; ++axis) {
    const float own = points[3 * min(n, n_points - 1) + axis], other = __shfl_xor_sync(FULL_MASK, own, 1);
    point[0][axis] = odd ? other : own, point[1][axis] = odd ? own : other;
  }
#pragma unroll 1
  for (int l = level0; l < end; ++l) {
    const MemoryOrder order(levels, l);
    const auto* rows = reinterpret_cast<const Vec<T, V>*>(table) + levels.first_row[l];
    CellFace<T, V> face[2];     // of both points
    float sum[2][V], total[V];  // over one face; over both, of this lane's point
#pragma unroll
    for (int i = 0; i < 2; ++i) face[i].load(order, point[i], odd, rows);
#pragma unroll
    for (int i = 0; i < 2; ++i) face[i].interpolate(odd, sum[i]);
#pragma unroll
    for (int v = 0; v < V; ++v)
      total[v] = (odd ? sum[1][v] : sum[0][v]) + __shfl_xor_sync(FULL_MASK, odd ? sum[0][v] : sum[1][v], 1);
    if (G > 1)
      store(staged[threadIdx.x * STRIDE + l - level0].v, total);
    else if (n < n_points)
      store(out + (n * levels.n_levels + l) * V, total);
  }
  if (G == 1) return;
  __syncwarp();
  const int lane = threadIdx.x % 32, g = lane % G, row0 = threadIdx.x - lane + lane / G;
  if (level0 + g >= end) return;
  auto* to = reinterpret_cast<Vec<T, V>*>(out) + (first + row0) * levels.n_levels + level0 + g;
#pragma unroll
  for (int i = 0; i < 32; i += 32 / G)
    if (first + row0 + i < n_points) to[i * levels.n_levels] = staged[(row0 + i) * STRIDE + g];
}

// Any F: one thread per point, level (blockIdx.y) and access of V features.
template <class P, class T, int V>
__global__ void __launch_bounds__(THREADS) grid_encode_forward(const P* __restrict__ points,  // [N, 3]
                                                               const T* __restrict__ table,   // [T, F]
                                                               T* __restrict__ out,           // [N, L*F]
                                                               int64_t n_points, GridLevels levels) {
  using A = acc_t<T>;
  const int f = levels.n_features, accesses = f / V, l = blockIdx.y;
  const int64_t thread = tile_of_block() * THREADS + threadIdx.x, n = thread / accesses;
  if (n >= n_points) return;
  const int j = int(thread % accesses) * V;
  const GridLevel level = level_of(levels, l);
  int cell[3];
  P u[3], w[8];
  uint32_t row[8];
  cell_of(level, points + 3 * n, cell, u);
  corner_weights(u, w);
  rows_of(level, cell, row);
  const T* level_table = table + levels.first_row[l] * f + j;
  A sum[V] = {};
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    A value[V];
    load(level_table + int64_t(row[k]) * f, value);
#pragma unroll
    for (int i = 0; i < V; ++i) sum[i] += A(w[k]) * value[i];
  }
  store(out + (n * levels.n_levels + l) * f + j, sum);
}

template <class T, int V, int G>
void launch_forward_levels(const float* points, const T* table, T* out, int64_t n_points, const GridLevels& levels,
                           cudaStream_t stream) {
  const dim3 blocks = grid_of_tiles(blocks_for(n_points), CHUNK / THREADS, (levels.n_levels + G - 1) / G);
  grid_encode_forward_levels<T, V, G><<<blocks, THREADS, 0, stream>>>(points, table, out, n_points, levels);
}

template <int V, class P, class T>
void launch_forward(const P* points, const T* table, T* out, int64_t n_points, const GridLevels& levels,
                    cudaStream_t stream) {
  if constexpr (V > 1) {  // float32 points and a table that 16-byte accesses fit
    if constexpr (V * sizeof(T) == 16)
      if (levels.n_features == V && levels.n_levels == 1)
        return launch_forward_levels<T, V, 1>(points, table, out, n_points, levels, stream);
    if (levels.n_features == V)
      return launch_forward_levels<T, V, 32 / int(V * sizeof(T))>(points, table, out, n_points, levels, stream);
  }
  const int accesses = levels.n_features / V;  // of a point and level
  const dim3 blocks = grid_of_tiles(blocks_for(n_points * accesses), CHUNK * accesses / THREADS, levels.n_levels);
  grid_encode_forward<P, T, V><<<blocks, THREADS, 0, stream>>>(points, table, out, n_points, levels);
}

}  // namespace
}  // namespace nerfkit
