// SPDX-License-Identifier: Apache-2.0
// What the kernels share: the order of the blocks, a level's axes in the order of its memory, and half of a cell.

#pragma once

#include "common/gpu.cuh"
#include "grid_encode/args.h"

namespace nerfkit {
namespace {

// Blocks take one chunk of tiles of points after the other, and within it the groups of levels in turn, so that a
// level's rows stay in L2 while they are used. Grid: x the tiles of a chunk, y the groups, z the chunks.
dim3 grid_of_tiles(int64_t tiles, int64_t tiles_per_chunk, int groups) {
  constexpr int64_t MAX_CHUNKS = 65535;  // gridDim.z
  const int64_t along_x = std::max(std::min(tiles, tiles_per_chunk), (tiles + MAX_CHUNKS - 1) / MAX_CHUNKS);
  return dim3(unsigned(along_x), unsigned(groups), blocks_for(tiles, along_x));
}

__device__ __forceinline__ int64_t tile_of_block() { return int64_t(blockIdx.z) * gridDim.x + blockIdx.x; }

// The axes of a level in the order of its memory. Vertices that are neighbours along the first axis are (nearly)
// neighbouring rows: x of a hashed level, whose hash does not multiply x, and z of a dense one.
struct MemoryOrder {
  GridLevel level;
  uint32_t second_factor, third_factor;  // of the coordinates along the other two

  __device__ __forceinline__ MemoryOrder(const GridLevels& levels, int l) : level(level_of(levels, l)) {
    const uint32_t side = level.resolution + 1;
    second_factor = level.hashed ? HASH_Y : side * side;
    third_factor = level.hashed ? HASH_Z : side;
  }

  __device__ __forceinline__ void permute(const float* point, float (&along)[3]) const {
    const float x = point[0], y = point[1], z = point[2];
    along[0] = level.hashed ? x : z, along[1] = level.hashed ? y : x, along[2] = level.hashed ? z : y;
  }

  __device__ __forceinline__ uint32_t row(uint32_t first, uint32_t second, uint32_t third) const {
    second *= second_factor, third *= third_factor;
    const uint32_t hash = (first ^ second ^ third) & level.mask, dense = first + second + third;
    return level.hashed ? hash : dense;
  }
};

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

}  // namespace
}  // namespace nerfkit
