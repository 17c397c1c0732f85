// SPDX-License-Identifier: Apache-2.0
// What the kernels of both passes share: the order of the blocks, and a level's axes in the order of its memory.

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

}  // namespace
}  // namespace nerfkit
