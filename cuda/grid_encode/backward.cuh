// SPDX-License-Identifier: Apache-2.0
// The gradient of the table. Atomic additions in L2 are the limit, so neighbouring points are accumulated in registers
// first: along a ray they share cells, and neighbouring cells share corners.

#pragma once

#include <type_traits>

#include "grid_encode/levels.cuh"
#include "grid_encode/table_sums.cuh"

namespace nerfkit {
namespace {

// Points that all levels take before the next ones: 3 MB, which L2 holds beside the sums of a level. Blocks with
// several levels take more: their additions gain more from rows that are near.
constexpr int64_t CHUNK_BACKWARD = 1 << 18;
constexpr int64_t CHUNK_LEVELS_BACKWARD = 1 << 20;
constexpr int64_t SMALL_LEVEL =
    1 << 22;            // bytes of a level's sums, of which L2 (50 MB of an H100) holds several levels
constexpr int RUN = 4;  // points of a thread of grid_encode_grad_table

// Accumulators for the corners of the cell that two lanes share. Each lane has four, one per edge along the first axis:
// lane `parity` those vertices whose first coordinate has that last bit. A vertex's accumulator follows from the last
// bits of its coordinates alone, so when a ray enters the next cell the four vertices of the common face keep theirs,
// and only the others are evicted, i.e. added to memory.
template <int V, bool FIXED>
struct CellAccumulators {
  static constexpr uint32_t NONE = 0xffffffff;
  // Where both corners of an edge are evicted and their rows are r and r ^ 1, one vector atomic adds both: its sector
  // is busy for less time than by two lanes.
  static constexpr bool MERGES_EDGES = !FIXED && HAS_VECTOR_ATOMICS && 2 * V <= 4;
  const MemoryOrder& order;
  const LevelSums<float, FIXED>& to;
  const uint32_t parity = threadIdx.x % 2;
  uint32_t row[4] = {NONE, NONE, NONE, NONE};  // of the level that each accumulator belongs to
  float sum[4][V] = {};

  // Adds accumulator k to row evicted[k] of memory, NONE for none, and clears it. All lanes of a warp call it.
  __device__ __forceinline__ void flush(const uint32_t (&evicted)[4]) {
    bool merged[4] = {};
    if constexpr (MERGES_EDGES) {
#pragma unroll
      for (int k = 0; k < 4; ++k) merged[k] = (evicted[k] ^ __shfl_xor_sync(FULL_MASK, evicted[k], 1)) == 1;
      flush_edges(evicted, merged);
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const bool leaves = evicted[k] != NONE;
      if (leaves && !merged[k]) to.add_at(int64_t(evicted[k]) * V, sum[k]);
#pragma unroll
      for (int v = 0; v < V; ++v) sum[k][v] = leaves ? 0.f : sum[k][v];
    }
  }

  // Both corners of an edge with one atomic: the even lane adds edges 0 and 1, the odd lane 2 and 3.
  __device__ __forceinline__ void flush_edges(const uint32_t (&evicted)[4], const bool (&merged)[4]) const {
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const uint32_t own_row = parity ? evicted[k + 2] : evicted[k];
      float both[2 * V];
#pragma unroll
      for (int v = 0; v < V; ++v) {
        const float own = parity ? sum[k + 2][v] : sum[k][v];
        const float other = __shfl_xor_sync(FULL_MASK, parity ? sum[k][v] : sum[k + 2][v], 1);
        both[v] = own_row & 1 ? other : own, both[V + v] = own_row & 1 ? own : other;
      }
      if (parity ? merged[k + 2] : merged[k]) to.add_at(int64_t(own_row & ~1u) * V, both);
    }
  }

  // Accumulates weight times `grad` at a point, if `nonzero`. All lanes of a warp call it. Vertex i of an axis is the
  // one whose last bit is i; of the first axis vertex 0 is this lane's.
  __device__ __forceinline__ void add_point(const float (&along)[3], const float (&grad)[V], bool nonzero) {
    uint32_t at[3][2], evicted[4], any = 0;
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
      const bool leaves = nonzero && next != row[k];
      evicted[k] = leaves ? row[k] : NONE;
      row[k] = leaves ? next : row[k];
      any |= ~evicted[k];
    }
    if (__any_sync(FULL_MASK, any)) flush(evicted);
    if (!nonzero) return;
#pragma unroll
    for (int k = 0; k < 4; ++k)
#pragma unroll
      for (int v = 0; v < V; ++v) sum[k][v] += weight[0][0] * weight[1][k >> 1] * weight[2][k & 1] * grad[v];
  }
};

// The points of a block and G levels of their gradients, in shared memory: each is read from memory once. Each pair of
// lanes has a run of neighbouring points.
template <class T, int V, int G, int RUN_OF_PAIR>
struct LevelsTile {
  static constexpr unsigned PAIRS = THREADS / 2 / G, POINTS = PAIRS * RUN_OF_PAIR;
  static_assert(3 * POINTS % THREADS == 0, "each thread copies as much as any other");
  float points[PAIRS][3 * RUN_OF_PAIR + 1];  // + 1: the pairs of a warp read other banks
  Vec<T, V> grads[PAIRS][G * RUN_OF_PAIR + 1];

  // Loads n points, zeros behind them, and the gradients of the next `left` levels, at most G.
  __device__ __forceinline__ void load(const float* from_points,  // [n, 3]
                                       const T* grad_out,         // [n, n_levels, V], from the group's first level on
                                       unsigned n, unsigned n_levels, int left) {
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

// Points of a pair of lanes: few where there is one level, or the blocks would be too few.
constexpr int run_of_pair(int levels) { return levels == 1 ? 4 : 8; }

// F = V features, one access. The warps of a block take G levels of the same points; a pair of lanes takes a run of
// points of one level.
template <class T, int V, int G, bool FIXED>
__global__ void __launch_bounds__(THREADS)
    grid_encode_grad_table_levels(const T* __restrict__ grad_out,    // [N, L*V]
                                  const float* __restrict__ points,  // [N, 3]
                                  TableSums<float> sums, int64_t n_points, GridLevels levels) {
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
    tile.load(points, grad_out + level0 * V, n, levels.n_levels, levels.n_levels - level0);
    __syncthreads();
    point = tile.points[pair], grads = tile.grads[pair][l - level0].v, step = G * V;
  }
  if (l >= levels.n_levels) return;
  const MemoryOrder order(levels, l);
  const LevelSums<float, FIXED> to(sums, levels.first_row[l] * V, n_points);
  CellAccumulators<V, FIXED> cell{order, to};
#pragma unroll 1
  for (int i = 0; i < RUN_OF_PAIR; ++i) {
    float along[3] = {}, grad[V] = {};
    bool nonzero = false;  // samples that no light reaches have no gradient
    if (i < own) {
      order.permute(point + 3 * i, along);
      load(grads + i * step, grad);
    }
#pragma unroll
    for (int v = 0; v < V; ++v) nonzero = nonzero || grad[v] != 0;
    if (__any_sync(FULL_MASK, nonzero)) cell.add_point(along, grad, nonzero);
  }
  cell.flush(cell.row);
}

// Any F: one thread per run of points, level (blockIdx.y) and access of V features. While the points stay in one cell
// its eight corners are accumulated in registers.
template <class P, class T, int V, bool FIXED>
__global__ void __launch_bounds__(THREADS)
    grid_encode_grad_table(const T* __restrict__ grad_out,  // [N, L*F]
                           const P* __restrict__ points,    // [N, 3]
                           TableSums<acc_t<T>> sums, int64_t n_points, GridLevels levels) {
  using A = acc_t<T>;
  const int f = levels.n_features, accesses = f / V, l = blockIdx.y;
  const int64_t thread = tile_of_block() * THREADS + threadIdx.x, first = thread / accesses * RUN;
  if (first >= n_points) return;
  const int j = int(thread % accesses) * V;
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
    bool nonzero = false;
#pragma unroll
    for (int v = 0; v < V; ++v) nonzero = nonzero || grad[v] != A(0);
    if (!nonzero) continue;
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

template <class T, int V, int G, bool FIXED>
void launch_grad_table_levels(const T* grad_out, const float* points, const TableSums<float>& sums, int64_t n_points,
                              const GridLevels& levels, cudaStream_t stream) {
  constexpr int64_t TILE = THREADS / 2 / G * run_of_pair(G);
  const dim3 blocks =
      grid_of_tiles(blocks_for(n_points, TILE), CHUNK_LEVELS_BACKWARD / TILE, (levels.n_levels + G - 1) / G);
  grid_encode_grad_table_levels<T, V, G, FIXED>
      <<<blocks, THREADS, 0, stream>>>(grad_out, points, sums, n_points, levels);
}

template <bool FIXED, int V, class P, class T>
void launch_grad_table(const T* grad_out, const P* points, const TableSums<acc_t<T>>& sums, int64_t n_points,
                       const GridLevels& levels, cudaStream_t stream) {
  if constexpr (std::is_same_v<P, float> && sizeof(T) < 8)
    if (levels.n_features == V) {
      const bool small = levels.max_entries * int64_t(V * sizeof(float)) <= SMALL_LEVEL;
      auto launch = small ? launch_grad_table_levels<T, V, 4, FIXED> : launch_grad_table_levels<T, V, 2, FIXED>;
      if (levels.n_levels == 1) launch = launch_grad_table_levels<T, V, 1, FIXED>;
      return launch(grad_out, points, sums, n_points, levels, stream);
    }
  const int accesses = levels.n_features / V;
  const int64_t threads = (n_points + RUN - 1) / RUN * accesses;
  const dim3 blocks = grid_of_tiles(blocks_for(threads), CHUNK_BACKWARD / RUN * accesses / THREADS, levels.n_levels);
  grid_encode_grad_table<P, T, V, FIXED><<<blocks, THREADS, 0, stream>>>(grad_out, points, sums, n_points, levels);
}

}  // namespace
}  // namespace nerfkit
