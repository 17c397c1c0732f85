// SPDX-License-Identifier: Apache-2.0
// Planes so small that a block keeps several whole ones, of neighbouring channels, in shared memory: they lie together,
// so they are read and written in whole vectors however wide a row is. A thread takes a tile of one plane, the same of
// every picture that its block looks at. Backward, the same over grad_out, with the kernel flipped, gives the gradient
// of x, and the tile's products with x the weight's.

#pragma once

#include "common/fast_divide.cuh"
#include "depthwise_conv2d/block.cuh"

namespace nerfkit {
namespace {

constexpr int SMALL_ROWS = 7, SMALL_COLUMNS = 4;  // of a tile
constexpr int MOST_SMALL_TILES = 8;               // of a plane; with more, other ways were faster
constexpr int SMALL_BLOCKS = 4;                   // of a multiprocessor, where their planes leave room

template <class T>
struct SmallPlanes {
  const T* in;      // x, or grad_out for the backward pass
  const T* weight;  // [C, K * K]
  const T* bias;
  T* out;           // null if only the weight's gradient is wanted
  const T* x;       // backward: to be multiplied with the window
  float* partials;  // [parts, C, K * K + 1], or null
  int batch, channels, height, width;
  int tiles_x, tiles;        // of a plane
  int lanes, planes;         // of a plane, a power of two; of a block
  int groups, parts;         // of channels; blocks that share the pictures of a group
  int pitch, plane, center;  // in shared memory: of a row with its margins, of a plane with them, of a plane of x
  FastDivide by_size, by_width;
};

// Calls f(i, plane, row, column) for element i of COUNT, which begin at element `at` of the block's planes.
template <int COUNT, class T, class F>
__device__ __forceinline__ void each_element(const SmallPlanes<T>& a, int at, const F& f) {
  int plane = int(a.by_size(at)), rest = at - plane * a.height * a.width;
  int row = int(a.by_width(rest)), column = rest - row * a.width;
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    f(i, plane, row, column);
    if (++column < a.width) continue;
    column = 0;
    if (++row == a.height) row = 0, ++plane;
  }
}

// Memory to shared memory; `place` tells where there an element goes.
template <class T, class Place>
__device__ __forceinline__ void read_planes(const SmallPlanes<T>& a, const T* from, int count, const Place& place) {
  constexpr int V = VECTOR_WIDTH<T>;
  const int whole = reinterpret_cast<uintptr_t>(from) % 16 ? 0 : count / V * V;
  for (int at = threadIdx.x * V; at < whole; at += THREADS_2D * V) {
    float values[V];
    load(from + at, values);
    each_element<V>(a, at, [&](int i, int plane, int row, int column) { *place(plane, row, column) = values[i]; });
  }
  for (int at = whole + threadIdx.x; at < count; at += THREADS_2D)
    each_element<1>(a, at, [&](int, int plane, int row, int column) { *place(plane, row, column) = float(from[at]); });
}

template <class T, class Place>
__device__ __forceinline__ void write_planes(const SmallPlanes<T>& a, T* to, int count, const Place& place) {
  constexpr int V = VECTOR_WIDTH<T>;
  const int whole = reinterpret_cast<uintptr_t>(to) % 16 ? 0 : count / V * V;
  for (int at = threadIdx.x * V; at < whole; at += THREADS_2D * V) {
    float values[V];
    each_element<V>(a, at, [&](int i, int plane, int row, int column) { values[i] = *place(plane, row, column); });
    store(to + at, values);
  }
  for (int at = whole + threadIdx.x; at < count; at += THREADS_2D)
    each_element<1>(a, at, [&](int, int plane, int row, int column) { to[at] = T(*place(plane, row, column)); });
}

// A tile's sums over the window, which begins at `window`; backward also the products with x.
template <int K, bool BACKWARD>
__device__ __forceinline__ void add_tile(const float* window, int pitch, const float* center, int center_pitch,
                                         const float (&w)[K * K], float (&sum)[SMALL_ROWS][SMALL_COLUMNS],
                                         float (&taps)[K * K + 1]) {
  constexpr int R = SMALL_ROWS, V = SMALL_COLUMNS, QUADS = (V + K - 1 + 3) / 4;
#pragma unroll
  for (int i = 0; i < R + K - 1; ++i) {
    float row[QUADS][4];
#pragma unroll
    for (int q = 0; q < QUADS; ++q) load(window + i * pitch + 4 * q, row[q]);
#pragma unroll
    for (int u = 0; u < K; ++u) {
      const int r = i - u;
      if (r < 0 || r >= R) continue;
      float x[V];
      if (BACKWARD) load(center + r * center_pitch, x);
#pragma unroll
      for (int v = 0; v < K; ++v)
#pragma unroll
        for (int j = 0; j < V; ++j) {
          sum[r][j] += w[u * K + v] * row[(v + j) / 4][(v + j) % 4];
          if (BACKWARD) taps[u * K + v] += x[j] * row[(v + j) / 4][(v + j) % 4];
        }
    }
    if (BACKWARD && i >= K / 2 && i - K / 2 < R) {
#pragma unroll
      for (int j = 0; j < V; ++j) taps[K * K] += row[(K / 2 + j) / 4][(K / 2 + j) % 4];  // zero outside the picture
    }
  }
}

template <class T, int K, bool BACKWARD>
__global__ void __launch_bounds__(THREADS_2D, SMALL_BLOCKS) small_planes(const SmallPlanes<T> a) {
  constexpr int TAPS = K * K, R = SMALL_ROWS, V = SMALL_COLUMNS;
  extern __shared__ __align__(16) float memory[];
  if (BACKWARD) pdl_trigger();
  const int part = blockIdx.x / a.groups, first = (blockIdx.x - part * a.groups) * a.planes;
  const int planes = min(a.planes, a.channels - first), mine = threadIdx.x / a.lanes, tile = threadIdx.x % a.lanes;
  const bool real = mine < planes && tile < a.tiles, with_x = BACKWARD && a.partials;
  const int tile_y = tile / a.tiles_x, y0 = tile_y * R, x0 = (tile - tile_y * a.tiles_x) * V;
  const int size = a.height * a.width, center_pitch = a.tiles_x * V;
  float* centers = memory + a.planes * a.plane;
  const auto place = [&](int plane, int row, int column) {
    return memory + plane * a.plane + (row + K / 2) * a.pitch + column + K / 2;
  };
  const auto place_of_x = [&](int plane, int row, int column) {
    return centers + plane * a.center + row * center_pitch + column;
  };
  for (int i = threadIdx.x; i < a.planes * (a.plane + (with_x ? a.center : 0)); i += THREADS_2D) memory[i] = 0;
  float w[TAPS], taps[TAPS + 1] = {};
#pragma unroll
  for (int k = 0; k < TAPS; ++k)
    w[BACKWARD ? TAPS - 1 - k : k] = real ? float(a.weight[int64_t(first + mine) * TAPS + k]) : 0.f;
  const float start = !BACKWARD && a.bias && real ? float(a.bias[first + mine]) : 0.f;
  for (int b = part; b < a.batch; b += a.parts) {
    const int64_t base = (int64_t(b) * a.channels + first) * size;
    __syncthreads();
    read_planes(a, a.in + base, planes * size, place);
    if (with_x) read_planes(a, a.x + base, planes * size, place_of_x);
    __syncthreads();
    float sum[R][V];
#pragma unroll
    for (int r = 0; r < R; ++r)
#pragma unroll
      for (int j = 0; j < V; ++j) sum[r][j] = start;
    if (real) {
      const float* center = with_x ? place_of_x(mine, y0, x0) : memory + mine * a.plane;
      add_tile<K, BACKWARD>(memory + mine * a.plane + y0 * a.pitch + x0, a.pitch, center, center_pitch, w, sum, taps);
    }
    if (!a.out) continue;
    __syncthreads();
#pragma unroll
    for (int r = 0; r < R; ++r)
#pragma unroll
      for (int j = 0; j < V; ++j)
        if (real && y0 + r < a.height && x0 + j < a.width) *place(mine, y0 + r, x0 + j) = sum[r][j];
    __syncthreads();
    write_planes(a, a.out + base, planes * size, place);
  }
  if (!with_x) return;
  float* to = a.partials + (int64_t(part) * a.channels + first + mine) * (TAPS + 1);
#pragma unroll
  for (int k = 0; k <= TAPS; ++k) {
    const float total = warp_sum(taps[k < TAPS ? TAPS - 1 - k : TAPS], a.lanes);
    if (mine < planes && tile == 0) to[k] = total;
  }
}

template <class T>
int bytes_of_block(const SmallPlanes<T>& a) {
  return a.planes * (a.plane + a.center) * int(sizeof(float));
}

// False if a plane is too large for this.
template <class T>
bool share_out_small(SmallPlanes<T>& a, const Conv2dShape& s, bool backward, const Gpu& gpu) {
  const int k = s.x.kernel;
  constexpr int MOST_COLUMNS = MOST_SMALL_TILES * SMALL_COLUMNS, MOST_ROWS = MOST_SMALL_TILES * SMALL_ROWS;
  if (s.x.size > MOST_COLUMNS || s.y.size > MOST_ROWS) return false;
  a.height = s.y.size, a.width = s.x.size, a.batch = int(s.batch), a.channels = int(s.channels);
  a.tiles_x = (a.width + SMALL_COLUMNS - 1) / SMALL_COLUMNS;
  const int tiles_y = (a.height + SMALL_ROWS - 1) / SMALL_ROWS;
  a.tiles = a.tiles_x * tiles_y;
  if (a.tiles > MOST_SMALL_TILES) return false;
  for (a.lanes = 1; a.lanes < a.tiles;) a.lanes *= 2;
  a.planes = THREADS_2D / a.lanes;
  a.pitch = a.tiles_x * SMALL_COLUMNS + (k - 1 + 3) / 4 * 4;
  a.plane = (tiles_y * SMALL_ROWS + k - 1) * a.pitch;
  a.center = backward ? tiles_y * SMALL_ROWS * a.tiles_x * SMALL_COLUMNS : 0;
  a.by_size = FastDivide::of(a.height * a.width), a.by_width = FastDivide::of(a.width);
  a.groups = int(blocks_for(a.channels, a.planes));
  const int64_t pictures = std::max<int64_t>(1, int64_t(a.groups) * a.batch / (int64_t(gpu.processors) * SMALL_BLOCKS));
  a.parts = int(blocks_for(a.batch, pictures));
  return int64_t(a.groups) * a.parts <= INT32_MAX && bytes_of_block(a) <= gpu.shared_bytes;
}

template <class T, int K, bool BACKWARD>
void launch_small_planes(const SmallPlanes<T>& a, const Gpu& gpu, cudaStream_t stream) {
  const auto kernel = small_planes<T, K, BACKWARD>;
  const int bytes = bytes_of_block(a);
  allow_shared(kernel, gpu);
  kernel<<<unsigned(a.groups * a.parts), THREADS_2D, bytes, stream>>>(a);
}

}  // namespace
}  // namespace nerfkit
