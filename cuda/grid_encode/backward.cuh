// SPDX-License-Identifier: Apache-2.0
// The gradient of the table. Additions to memory are what costs, so neighbouring points are summed in registers first:
// along a ray they share cells, and neighbouring cells share corners.

#pragma once

#include <type_traits>

#include "grid_encode/levels.cuh"

namespace nerfkit {
namespace {

constexpr int64_t CHUNK_BACKWARD = 1 << 18;  // points
constexpr int64_t CHUNK_LEVELS_BACKWARD =
    1 << 20;  // of blocks with several levels: their additions gain more from rows that are near
constexpr int64_t SMALL_LEVEL = 1 << 22;  // bytes of sums, of which the L2 of a large GPU holds several levels at once
constexpr int RUN = 4;                    // points of a thread that has a part of a level's features

#if __CUDA_ARCH__ >= 900
constexpr bool ADDS_VECTORS = true;
#else
constexpr bool ADDS_VECTORS = false;
#endif

template <class A, int V>
__device__ __forceinline__ void add(A* to, const A (&values)[V]) {
  constexpr bool VECTOR = ADDS_VECTORS && sizeof(A) == 4;
  if constexpr (VECTOR && V == 4)
    atomicAdd(reinterpret_cast<float4*>(to), make_float4(values[0], values[1], values[2], values[3]));
  else if constexpr (VECTOR && V == 2)
    atomicAdd(reinterpret_cast<float2*>(to), make_float2(values[0], values[1]));
  else
    for (int i = 0; i < V; ++i) atomicAdd(to + i, values[i]);
}

// Adds exactly, in any order: value times a power of two as an integer.
struct FixedPoint {
  unsigned long long* sums;
  double scale;
};

__device__ __forceinline__ double fixed_scale(const unsigned long long* largest, int64_t n_points) {
  const double bound = __longlong_as_double(*largest) * double(n_points);  // of any sum
  return bound > 0 ? exp2(double(60 - ilogb(bound))) : 1.0;
}

template <class A, int V>
__device__ __forceinline__ void add_fixed(const FixedPoint& to, int64_t place, const A (&values)[V]) {
#pragma unroll
  for (int i = 0; i < V; ++i)
    atomicAdd(to.sums + place + i, static_cast<unsigned long long>(__double2ll_rn(double(values[i]) * to.scale)));
}

// Where sums go: to `fixed` for the same bits in any order, else to `table`.
template <class A>
struct TableSums {
  A* table;
  unsigned long long* fixed;
  const unsigned long long* largest;
};

// The sums from place `offset` on.
template <class A, bool FIXED>
struct LevelSums {
  A* table;
  FixedPoint fixed;

  __device__ __forceinline__ LevelSums(const TableSums<A>& to, int64_t offset, int64_t n_points) {
    if constexpr (FIXED)
      fixed = {to.fixed + offset, fixed_scale(to.largest, n_points)};
    else
      table = to.table + offset;
  }

  template <int V>
  __device__ __forceinline__ void add_at(int64_t place, const A (&values)[V]) const {
    if constexpr (FIXED)
      add_fixed(fixed, place, values);
    else
      add(table + place, values);
  }
};

// Two lanes share a cell, a corner of each of the four edges along the first axis: lane `parity` those whose coordinate
// there has that last bit. Corners are kept by the last bits of all coordinates, so that those of the face between two
// cells stay where they are.
template <int V, bool FIXED>
struct SharedCell {
  static constexpr uint32_t NONE = 0xffffffff;
  // Where both corners of an edge leave, and their rows are r and r ^ 1, one addition takes both: its sector is busy
  // for less time than by two lanes.
  static constexpr bool WHOLE_EDGES = !FIXED && ADDS_VECTORS && 2 * V <= 4;
  const MemoryOrder& order;
  const LevelSums<float, FIXED>& to;
  const uint32_t parity = threadIdx.x % 2;
  uint32_t row[4] = {NONE, NONE, NONE, NONE};
  float sum[4][V] = {};

  // Adds sums to memory, that of edge k to row leaving[k]. All lanes of a warp call it.
  __device__ __forceinline__ void send(const uint32_t (&leaving)[4]) {
    bool whole[4] = {};
    if constexpr (WHOLE_EDGES) {
#pragma unroll
      for (int k = 0; k < 4; ++k) whole[k] = (leaving[k] ^ __shfl_xor_sync(FULL_MASK, leaving[k], 1)) == 1;
      send_whole(leaving, whole);
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const bool leaves = leaving[k] != NONE;
      if (leaves && !whole[k]) to.add_at(int64_t(leaving[k]) * V, sum[k]);
#pragma unroll
      for (int v = 0; v < V; ++v) sum[k][v] = leaves ? 0.f : sum[k][v];
    }
  }

  // The even lane sends edges 0 and 1, the odd one 2 and 3.
  __device__ __forceinline__ void send_whole(const uint32_t (&leaving)[4], const bool (&whole)[4]) const {
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const uint32_t place = parity ? leaving[k + 2] : leaving[k];
      float both[2 * V];
#pragma unroll
      for (int v = 0; v < V; ++v) {
        const float own = parity ? sum[k + 2][v] : sum[k][v];
        const float other = __shfl_xor_sync(FULL_MASK, parity ? sum[k][v] : sum[k + 2][v], 1);
        both[v] = place & 1 ? other : own, both[V + v] = place & 1 ? own : other;
      }
      if (parity ? whole[k + 2] : whole[k]) to.add_at(int64_t(place & ~1u) * V, both);
    }
  }

  // Adds the weights times `grad` at a point, if it is `lit`. All lanes of a warp call it. Vertex i of an axis is the
  // one whose last bit is i, of the first axis vertex 0 is this lane's.
  __device__ __forceinline__ void add_point(const float (&along)[3], const float (&grad)[V], bool lit) {
    uint32_t at[3][2], leaving[4], any = 0;
    float weight[3][2];
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) {
      int cell;
      float u;
      cell_along(order.level.resolution, along[axis], cell, u);
#pragma unroll
      for (uint32_t i = 0; i < 2; ++i) {
        const uint32_t upper = (cell ^ i ^ (axis == 0 ? parity : 0)) & 1;
        at[axis][i] = cell + upper, weight[axis][i] = upper ? u : 1 - u;
      }
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const uint32_t next = order.row(at[0][0], at[1][k >> 1], at[2][k & 1]);
      const bool leaves = lit && next != row[k];
      leaving[k] = leaves ? row[k] : NONE;
      row[k] = leaves ? next : row[k];
      any |= ~leaving[k];
    }
    if (__any_sync(FULL_MASK, any)) send(leaving);
    if (!lit) return;
#pragma unroll
    for (int k = 0; k < 4; ++k)
#pragma unroll
      for (int v = 0; v < V; ++v) sum[k][v] += weight[0][0] * weight[1][k >> 1] * weight[2][k & 1] * grad[v];
  }
};

// The points of a block and G levels of their gradients, from memory once: a run of points for each two lanes.
template <class T, int V, int G, int RUN_OF_PAIR>
struct LevelsTile {
  static constexpr unsigned PAIRS = THREADS / 2 / G, POINTS = PAIRS * RUN_OF_PAIR;
  static_assert(3 * POINTS % THREADS == 0, "each thread copies as much as any other");
  float points[PAIRS][3 * RUN_OF_PAIR + 1];  // + 1: the pairs of a warp read other banks
  Vec<T, V> grads[PAIRS][G * RUN_OF_PAIR + 1];

  // n points, zeros behind them; grad_out from the first of the levels on, of which there are `left`.
  __device__ __forceinline__ void fetch(const float* from_points, const T* grad_out, unsigned n, unsigned n_levels,
                                        int left) {
    constexpr unsigned STEP = THREADS / G, COLUMNS = 3 * RUN_OF_PAIR;
    const unsigned g = threadIdx.x % G, first = threadIdx.x / G;
    const auto* from = reinterpret_cast<const Vec<T, V>*>(grad_out) + first * n_levels + g;
    const unsigned end = int(g) < left ? n : 0;
#pragma unroll
    for (unsigned start = 0; start < 3 * POINTS; start += THREADS) {
      const unsigned i = start + threadIdx.x;
      points[i / COLUMNS][i % COLUMNS] = i < 3 * n ? from_points[i] : 0;
    }
#pragma unroll
    for (unsigned i = 0; i < POINTS; i += STEP) {
      Vec<T, V> row{};
      if (first + i < end) row = from[i * n_levels];
      grads[(first + i) / RUN_OF_PAIR][(first + i) % RUN_OF_PAIR * G + g] = row;
    }
  }
};

// Points of two lanes: few where there is one level, or the blocks would be too few.
constexpr int run_of_pair(int levels) { return levels == 1 ? 4 : 8; }

// The features are one access of V. The warps of a block take G levels of the same points.
template <class T, int V, int G, bool FIXED>
__global__ void __launch_bounds__(THREADS)
    to_table_levels(const T* __restrict__ grad_out, const float* __restrict__ points, TableSums<float> sums,
                    int64_t n_points, GridLevels levels) {
  constexpr int RUN_OF_PAIR = run_of_pair(G), PAIRS = THREADS / 2 / G, TILE = PAIRS * RUN_OF_PAIR;
  const int64_t first = tile_of_block() * TILE;
  if (first >= n_points) return;
  const int n = int(min(int64_t(TILE), n_points - first)), level0 = blockIdx.y * G,
            l = level0 + threadIdx.x / 2 / PAIRS;
  const int pair = threadIdx.x / 2 % PAIRS, own = n - pair * RUN_OF_PAIR;
  points += 3 * first, grad_out += first * levels.n_levels * V;
  const float* point = points + 3 * pair * RUN_OF_PAIR;
  const T* grads = grad_out + (int64_t(pair) * RUN_OF_PAIR * levels.n_levels + l) * V;
  int step = levels.n_levels * V;
  if constexpr (G > 1) {
    __shared__ LevelsTile<T, V, G, RUN_OF_PAIR> tile;
    tile.fetch(points, grad_out + level0 * V, n, levels.n_levels, levels.n_levels - level0);
    __syncthreads();
    point = tile.points[pair], grads = tile.grads[pair][l - level0].v, step = G * V;
  }
  if (l >= levels.n_levels) return;
  const MemoryOrder order(levels, l);
  const LevelSums<float, FIXED> to(sums, levels.first_row[l] * V, n_points);
  SharedCell<V, FIXED> cell{order, to};
#pragma unroll 1
  for (int i = 0; i < RUN_OF_PAIR; ++i) {
    float along[3] = {}, grad[V] = {};
    bool lit = false;  // not so for samples that no light reaches
    if (i < own) {
      order.axes_of(point + 3 * i, along);
      load(grads + i * step, grad);
    }
#pragma unroll
    for (int v = 0; v < V; ++v) lit = lit || grad[v] != 0;
    if (__any_sync(FULL_MASK, lit)) cell.add_point(along, grad, lit);
  }
  cell.send(cell.row);
}

// Any features: a thread a run of points and an access of V. While they stay in one cell their sums stay in registers.
template <class P, class T, int V, bool FIXED>
__global__ void __launch_bounds__(THREADS) to_table(const T* __restrict__ grad_out, const P* __restrict__ points,
                                                    TableSums<acc_t<T>> sums, int64_t n_points, GridLevels levels) {
  using A = acc_t<T>;
  const int f = levels.n_features, parts = f / V, l = blockIdx.y;
  const int64_t thread = tile_of_block() * THREADS + threadIdx.x, first = thread / parts * RUN;
  if (first >= n_points) return;
  const int j = int(thread % parts) * V;
  const GridLevel level = level_of(levels, l);
  const LevelSums<A, FIXED> to(sums, levels.first_row[l] * f + j, n_points);

  A sum[8][V];
  int cell[3] = {-1, -1, -1};
  auto flush = [&] {
    if (cell[0] < 0) return;
    uint32_t row[8];
    rows_of(level, cell, row);
#pragma unroll
    for (int k = 0; k < 8; ++k) to.add_at(int64_t(row[k]) * f, sum[k]);
  };
#pragma unroll
  for (int i = 0; i < RUN; ++i) {
    const int64_t n = first + i;
    if (n >= n_points) break;
    int here[3];
    P u[3], w[8];
    A grad[V];
    cell_of(level, points + 3 * n, here, u);
    corner_weights(u, w);
    load(grad_out + (n * levels.n_levels + l) * f + j, grad);
    bool lit = false;
#pragma unroll
    for (int v = 0; v < V; ++v) lit = lit || grad[v] != A(0);
    if (!lit) continue;
    const bool same = here[0] == cell[0] && here[1] == cell[1] && here[2] == cell[2];
    if (!same) {
      flush();
#pragma unroll
      for (int axis = 0; axis < 3; ++axis) cell[axis] = here[axis];
    }
#pragma unroll
    for (int k = 0; k < 8; ++k)
#pragma unroll
      for (int v = 0; v < V; ++v) sum[k][v] = (same ? sum[k][v] : A(0)) + A(w[k]) * grad[v];
  }
  flush();
}

template <class T>
__global__ void __launch_bounds__(THREADS)
    find_largest(const T* __restrict__ values, unsigned long long* largest, int64_t n) {
  // NaN wins: `largest` then is not finite, nor is any sum.
  const auto larger = [](double a, double b) { return a != a || a > b ? a : b; };
  double found = 0;
  for (int64_t i = int64_t(blockIdx.x) * THREADS + threadIdx.x; i < n; i += int64_t(gridDim.x) * THREADS)
    found = larger(fabs(double(acc_t<T>(values[i]))), found);
  for (int offset = 16; offset; offset /= 2) found = larger(__shfl_xor_sync(FULL_MASK, found, offset), found);
  // The bits of positive numbers are in the order of the numbers.
  if (threadIdx.x % 32 == 0) atomicMax(largest, static_cast<unsigned long long>(__double_as_longlong(found)));
}

template <class A>
__global__ void __launch_bounds__(THREADS)
    from_fixed(const unsigned long long* __restrict__ sums, A* __restrict__ out,
               const unsigned long long* __restrict__ largest, int64_t n_points, int64_t n) {
  const int64_t i = int64_t(blockIdx.x) * THREADS + threadIdx.x;
  if (i >= n) return;
  const bool finite = isfinite(__longlong_as_double(*largest));
  out[i] = finite ? A(double(static_cast<long long>(sums[i])) / fixed_scale(largest, n_points)) : A(NAN);
}

template <class T, int V, int G, bool FIXED>
void launch_to_table_levels(const T* grad_out, const float* points, const TableSums<float>& sums, int64_t n_points,
                            const GridLevels& levels, cudaStream_t stream) {
  constexpr int64_t TILE = THREADS / 2 / G * run_of_pair(G);
  const dim3 blocks =
      blocks_of_tiles(blocks_for(n_points, TILE), CHUNK_LEVELS_BACKWARD / TILE, (levels.n_levels + G - 1) / G);
  to_table_levels<T, V, G, FIXED><<<blocks, THREADS, 0, stream>>>(grad_out, points, sums, n_points, levels);
}

template <bool FIXED, int V, class P, class T>
void launch_to_table(const T* grad_out, const P* points, const TableSums<acc_t<T>>& sums, int64_t n_points,
                     const GridLevels& levels, cudaStream_t stream) {
  if constexpr (std::is_same_v<P, float> && sizeof(T) < 8)
    if (levels.n_features == V) {
      const bool small = levels.max_entries * int64_t(V * sizeof(float)) <= SMALL_LEVEL;
      auto launch = small ? launch_to_table_levels<T, V, 4, FIXED> : launch_to_table_levels<T, V, 2, FIXED>;
      if (levels.n_levels == 1) launch = launch_to_table_levels<T, V, 1, FIXED>;
      return launch(grad_out, points, sums, n_points, levels, stream);
    }
  const int parts = levels.n_features / V;
  const int64_t threads = (n_points + RUN - 1) / RUN * parts;
  const dim3 blocks = blocks_of_tiles(blocks_for(threads), CHUNK_BACKWARD / RUN * parts / THREADS, levels.n_levels);
  to_table<P, T, V, FIXED><<<blocks, THREADS, 0, stream>>>(grad_out, points, sums, n_points, levels);
}

}  // namespace
}  // namespace nerfkit
