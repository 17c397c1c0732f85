// SPDX-License-Identifier: Apache-2.0
// A thread looks one point up on one level. Blocks take the levels of one chunk of points in turn: a level's rows stay
// in the caches while they are used, and so do the chunk's rows of features, of which each level touches a part.

#include "gpu.cuh"
#include "grid_encode.h"

namespace nerfkit {
namespace {

constexpr int64_t CHUNK = 1 << 16;           // points
constexpr int64_t CHUNK_BACKWARD = 1 << 18;  // additions gain more from a level's rows being near
constexpr int PAIRED_ROWS = 8;               // a level's rows are a multiple of it, or it is not read in blocks
constexpr int RUN = 4;                       // neighbouring points for each thread of the backward pass

// Which level, and which thread of its chunk, a block works for.
struct Turn {
  int level;
  int64_t first_point, thread;
};

__device__ __forceinline__ Turn turn_of(int n_levels, int64_t chunk, int64_t threads_per_chunk) {
  const int64_t blocks = (threads_per_chunk + THREADS - 1) / THREADS;
  const int64_t task = blockIdx.x / blocks;
  return {int(task % n_levels), task / n_levels * chunk, (blockIdx.x % blocks) * THREADS + threadIdx.x};
}

unsigned blocks_of_turns(int n_levels, int64_t chunk, int64_t threads_per_chunk, int64_t n_points) {
  return unsigned((n_points + chunk - 1) / chunk * n_levels * blocks_for(threads_per_chunk));
}

// Row i of a block of 16 bytes.
template <class T, int V>
__device__ __forceinline__ void row_of_block(const uint4& block, unsigned i, acc_t<T> (&to)[V]) {
  uint2 bits;
  if constexpr (V * sizeof(T) == 4)
    bits = {i & 2 ? (i & 1 ? block.w : block.z) : (i & 1 ? block.y : block.x), 0};
  else
    bits = {i & 1 ? block.z : block.x, i & 1 ? block.w : block.y};
  const Vec<T, V>& row = reinterpret_cast<const Vec<T, V>&>(bits);
#pragma unroll
  for (int v = 0; v < V; ++v) to[v] = acc_t<T>(row.v[v]);
}

// Rows a and b of a table whose rows are one access of V: where both lie in one block of 16 bytes, they come together.
template <class T, int V>
__device__ __forceinline__ void load_pair(const T* part, uint32_t a, uint32_t b, acc_t<T> (&at_a)[V], acc_t<T> (&at_b)[V]) {
  constexpr unsigned ROWS = 16 / (V * int(sizeof(T)));  // of a block
  const uint4 block = *reinterpret_cast<const uint4*>(part + int64_t(a / ROWS) * ROWS * V);
  row_of_block<T, V>(block, a % ROWS, at_a);
  if (a / ROWS == b / ROWS)
    row_of_block<T, V>(block, b % ROWS, at_b);
  else
    load(part + int64_t(b) * V, at_b);
}

// PAIRS: the features are one access, and the table is aligned to 16 bytes.
template <class P, class T, int V, bool PAIRS>
__global__ void __launch_bounds__(THREADS) forward(const P* __restrict__ points, const T* __restrict__ table,
                                                   T* __restrict__ out, int64_t n_points, GridLevels levels) {
  using A = acc_t<T>;
  const int f = levels.n_features, parts = f / V;
  const Turn turn = turn_of(levels.n_levels, CHUNK, CHUNK * parts);
  const int64_t n = turn.first_point + turn.thread / parts;
  if (turn.thread >= CHUNK * parts || n >= n_points) return;
  const int j = int(turn.thread % parts) * V;
  const GridLevel level = level_of(levels, turn.level);
  int cell[3];
  P u[3], w[8];
  uint32_t row[8];
  cell_of(level, points + 3 * n, cell, u);
  corner_weights(u, w);
  rows_of(level, cell, row);
  const T* part = table + levels.first_row[turn.level] * f + j;
  A sum[V] = {};
  if constexpr (PAIRS) {
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
      // Neighbours in memory: along x where the hash leaves it as it is, else along z.
      const uint32_t a = level.hashed ? row[pair] : row[2 * pair], b = level.hashed ? row[pair + 4] : row[2 * pair + 1];
      const A w_a = A(level.hashed ? w[pair] : w[2 * pair]), w_b = A(level.hashed ? w[pair + 4] : w[2 * pair + 1]);
      A at_a[V], at_b[V];
      load_pair(part, a, b, at_a, at_b);
#pragma unroll
      for (int i = 0; i < V; ++i) sum[i] += w_a * at_a[i] + w_b * at_b[i];
    }
  } else {
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      A value[V];
      load(part + int64_t(row[k]) * f, value);
#pragma unroll
      for (int i = 0; i < V; ++i) sum[i] += A(w[k]) * value[i];
    }
  }
  store(out + (n * levels.n_levels + turn.level) * f + j, sum);
}

template <class A, int V>
__device__ __forceinline__ void add(A* to, const A (&values)[V]) {
#if __CUDA_ARCH__ >= 900
  constexpr bool VECTOR = sizeof(A) == 4 && V > 1;
#else
  constexpr bool VECTOR = false;
#endif
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

// Of a value for each corner, that of corner i, of four, on one side of the cell: of x where the hash leaves it as it is,
// else of z, so that the two corners of an edge are neighbours in memory, and the accesses of two lanes that take a side
// each are one.
template <class X>
__device__ __forceinline__ X of_side(const GridLevel& level, const X (&corners)[8], bool side, int i) {
  const X low = level.hashed ? corners[i] : corners[2 * i], high = level.hashed ? corners[4 + i] : corners[2 * i + 1];
  return side ? high : low;
}

// A thread takes neighbouring points, RUN of them for each lane that shares them: while they stay in one cell, as along a
// ray, their sums stay in registers. SHARED, where the features are one access: two lanes share, a side of the cell each.
template <class P, class T, int V, bool SHARED, bool FIXED>
__global__ void __launch_bounds__(THREADS)
    to_table(const T* __restrict__ grad_out, const P* __restrict__ points, acc_t<T>* __restrict__ grad_table,
             unsigned long long* __restrict__ fixed_sums, const unsigned long long* __restrict__ largest, int64_t n_points,
             GridLevels levels) {
  using A = acc_t<T>;
  constexpr int SHARING = SHARED ? 2 : 1, CORNERS = 8 / SHARING;
  const int f = levels.n_features, parts = f / V;
  const int64_t threads = CHUNK_BACKWARD / RUN * parts;
  const Turn turn = turn_of(levels.n_levels, CHUNK_BACKWARD, threads);
  const int64_t first = turn.first_point + turn.thread / parts / SHARING * SHARING * RUN;
  if (turn.thread >= threads || first >= n_points) return;
  const int j = int(turn.thread % parts) * V, side = threadIdx.x % SHARING;
  const GridLevel level = level_of(levels, turn.level);
  const int64_t offset = levels.first_row[turn.level] * f + j;
  FixedPoint fixed{};
  if (FIXED) fixed = {fixed_sums + offset, fixed_scale(largest, n_points)};

  A sum[CORNERS][V];
  int cell[3] = {-1, -1, -1};
  auto flush = [&] {
    if (cell[0] < 0) return;
    uint32_t row[8];
    rows_of(level, cell, row);
#pragma unroll
    for (int k = 0; k < CORNERS; ++k) {
      const int64_t place = int64_t(SHARED ? of_side(level, row, side, k) : row[k]) * f;
      if (FIXED)
        add_fixed(fixed, place, sum[k]);
      else
        add(grad_table + offset + place, sum[k]);
    }
  };
#pragma unroll
  for (int i = 0; i < RUN * SHARING; ++i) {
    const int64_t n = first + i;
    if (n >= n_points) break;
    int here[3];
    P u[3], w[8];
    A grad[V];
    cell_of(level, points + 3 * n, here, u);
    corner_weights(u, w);
    load(grad_out + (n * levels.n_levels + turn.level) * f + j, grad);
    bool nothing = true;  // as of samples that no light reaches
#pragma unroll
    for (int v = 0; v < V; ++v) nothing = nothing && grad[v] == A(0);
    if (nothing) continue;
    const bool same = here[0] == cell[0] && here[1] == cell[1] && here[2] == cell[2];
    if (!same) {
      flush();
#pragma unroll
      for (int axis = 0; axis < 3; ++axis) cell[axis] = here[axis];
    }
#pragma unroll
    for (int k = 0; k < CORNERS; ++k)
#pragma unroll
      for (int v = 0; v < V; ++v)
        sum[k][v] = (same ? sum[k][v] : A(0)) + A(SHARED ? of_side(level, w, side, k) : w[k]) * grad[v];
  }
  flush();
}

// A thread a point: the levels are added in their order.
template <class P, class T, int V>
__global__ void __launch_bounds__(THREADS)
    to_points(const T* __restrict__ grad_out, const P* __restrict__ points, const T* __restrict__ table,
              P* __restrict__ grad_points, int64_t n_points, GridLevels levels) {
  using A = acc_t<T>;
  const int64_t n = int64_t(blockIdx.x) * THREADS + threadIdx.x;
  if (n >= n_points) return;
  const int f = levels.n_features;
  P sum[3] = {};
  for (int l = 0; l < levels.n_levels; ++l) {
    const GridLevel level = level_of(levels, l);
    int cell[3];
    P u[3], d[8] = {}, grad_u[3];
    uint32_t row[8];
    cell_of(level, points + 3 * n, cell, u);
    rows_of(level, cell, row);
    for (int j = 0; j < f; j += V) {
      const T* part = table + levels.first_row[l] * f + j;
      A grad[V];
      load(grad_out + (n * levels.n_levels + l) * f + j, grad);
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        A value[V], dot = 0;
        load(part + int64_t(row[k]) * f, value);
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
  for (int axis = 0; axis < 3; ++axis)
    grad_points[3 * n + axis] = in_box(points[3 * n + axis]) ? sum[axis] : P(0);
}

template <class T>
__global__ void __launch_bounds__(THREADS) find_largest(const T* __restrict__ values, unsigned long long* largest, int64_t n) {
  // NaN wins: `largest` then is not finite, nor is any sum.
  const auto larger = [](double a, double b) { return a != a || a > b ? a : b; };
  double found = 0;
  for (int64_t i = int64_t(blockIdx.x) * THREADS + threadIdx.x; i < n; i += int64_t(gridDim.x) * THREADS)
    found = larger(fabs(double(acc_t<T>(values[i]))), found);
  for (int offset = 16; offset; offset /= 2) found = larger(__shfl_xor_sync(ALL_LANES, found, offset), found);
  // The bits of positive numbers are in the order of the numbers.
  if (threadIdx.x % 32 == 0) atomicMax(largest, static_cast<unsigned long long>(__double_as_longlong(found)));
}

template <class A>
__global__ void __launch_bounds__(THREADS) from_fixed(const unsigned long long* __restrict__ sums, A* __restrict__ out,
                                                      const unsigned long long* __restrict__ largest, int64_t n_points, int64_t n) {
  const int64_t i = int64_t(blockIdx.x) * THREADS + threadIdx.x;
  if (i >= n) return;
  const bool finite = isfinite(__longlong_as_double(*largest));
  out[i] = finite ? A(double(static_cast<long long>(sums[i])) / fixed_scale(largest, n_points)) : A(NAN);
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
    constexpr int V = width.value;
    const unsigned blocks = blocks_of_turns(levels.n_levels, CHUNK, CHUNK * (levels.n_features / V), n_points);
    auto kernel = forward<P, T, V, false>;
    if constexpr (V * sizeof(T) < 16 && V > 1)
      if (levels.n_features == V && levels.max_entries >= PAIRED_ROWS) kernel = forward<P, T, V, true>;
    kernel<<<blocks, THREADS, 0, (cudaStream_t)stream>>>((const P*)points, (const T*)table, (T*)out, n_points, levels);
  });
  return launched();
}

Status grid_encode_bwd(DType point_type, DType table_type, const void* grad_out, const void* points, const void* table,
                       void* grad_points, void* grad_table, int64_t* fixed_point, void* largest, int64_t n_rows,
                       int64_t n_points, const GridLevels& levels, Stream stream) {
  const int64_t n_values = n_points * levels.n_levels * levels.n_features;
  if (n_points == 0) return 0;
  const auto on = (cudaStream_t)stream;
  const bool together = aligned(table, 16) && aligned(grad_out, 16);
  dispatch_grid(point_type, table_type, levels.n_features, together, [&](auto p, auto t, auto width) {
    using P = decltype(p);
    using T = decltype(t);
    using A = acc_t<T>;
    constexpr int V = width.value;
    const int64_t threads = CHUNK_BACKWARD / RUN * (levels.n_features / V);
    const unsigned blocks = blocks_of_turns(levels.n_levels, CHUNK_BACKWARD, threads, n_points);
    const T* grad = (const T*)grad_out;
    auto* fixed = (unsigned long long*)fixed_point;
    auto* bound = (unsigned long long*)largest;
    const bool shared = levels.n_features == V;
    if (grad_table && n_values && fixed) {
      find_largest<<<std::min(blocks_for(n_values), 1024u), THREADS, 0, on>>>(grad, bound, n_values);
      const auto kernel = shared ? to_table<P, T, V, true, true> : to_table<P, T, V, false, true>;
      kernel<<<blocks, THREADS, 0, on>>>(grad, (const P*)points, (A*)nullptr, fixed, bound, n_points, levels);
      const int64_t n = n_rows * levels.n_features;
      from_fixed<<<blocks_for(n), THREADS, 0, on>>>(fixed, (A*)grad_table, bound, n_points, n);
    } else if (grad_table && n_values) {
      const auto kernel = shared ? to_table<P, T, V, true, false> : to_table<P, T, V, false, false>;
      kernel<<<blocks, THREADS, 0, on>>>(grad, (const P*)points, (A*)grad_table, fixed, bound, n_points, levels);
    }
    if (grad_points)
      to_points<P, T, V><<<blocks_for(n_points), THREADS, 0, on>>>(grad, (const P*)points, (const T*)table, (P*)grad_points,
                                                                   n_points, levels);
  });
  return launched();
}

}  // namespace nerfkit
