// SPDX-License-Identifier: Apache-2.0
// What the kernels of both passes share: the order of their blocks, and a level in the order of its memory.

#pragma once

#include "common/gpu.cuh"
#include "grid_encode/args.h"

namespace nerfkit {
namespace {

// Blocks take one chunk of tiles after the other, and in it the groups of levels in turn: a level's rows stay in the
// caches while they are used. Along x the tiles of a chunk, along y the groups, along z the chunks.
dim3 blocks_of_tiles(int64_t tiles, int64_t tiles_of_chunk, int groups) {
  constexpr int64_t MOST_CHUNKS = 65535;  // that a launch takes along z
  const int64_t along_x = std::max(std::min(tiles, tiles_of_chunk), (tiles + MOST_CHUNKS - 1) / MOST_CHUNKS);
  return dim3(unsigned(along_x), unsigned(groups), blocks_for(tiles, along_x));
}

__device__ __forceinline__ int64_t tile_of_block() { return int64_t(blockIdx.z) * gridDim.x + blockIdx.x; }

// The axes of a level in the order of its memory. Two vertices beside each other along the first are neighbours there,
// or nearly so: x where the hash leaves it as it is, else z.
struct MemoryOrder {
  GridLevel level;
  uint32_t of_second, of_third;  // factors of the coordinates

  __device__ __forceinline__ MemoryOrder(const GridLevels& levels, int l) : level(level_of(levels, l)) {
    const uint32_t side = level.resolution + 1;
    of_second = level.hashed ? HASH_Y : side * side;
    of_third = level.hashed ? HASH_Z : side;
  }

  __device__ __forceinline__ void axes_of(const float* point, float (&along)[3]) const {
    const float x = point[0], y = point[1], z = point[2];
    along[0] = level.hashed ? x : z, along[1] = level.hashed ? y : x, along[2] = level.hashed ? z : y;
  }

  __device__ __forceinline__ uint32_t row(uint32_t first, uint32_t second, uint32_t third) const {
    second *= of_second, third *= of_third;
    const uint32_t hash = (first ^ second ^ third) & level.mask, dense = first + second + third;
    return level.hashed ? hash : dense;
  }
};

}  // namespace
}  // namespace nerfkit
