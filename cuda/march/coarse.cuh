// SPDX-License-Identifier: Apache-2.0
// The coarse grid: which blocks of cells have an occupied one, found anew at every call.

#pragma once

#include "march/rays.cuh"

namespace nerfkit {
namespace {

CoarseGrid coarse_of(const int cells[3], bool* any) {
  CoarseGrid coarse{{}, any};
  for (int axis = 0; axis < 3; ++axis) coarse.blocks[axis] = (cells[axis] + BLOCK - 1) / BLOCK;
  return coarse;
}

// One thread block per (x, y) of the entries. Warp w reads the cells with x = w of both blocks along x, a lane BLOCK
// cells along z: those of the upper block of its entry; the lane below has the lower one. VECTOR: with one load.
template <bool VECTOR>
__global__ void __launch_bounds__(32 * BLOCK, 8)
    march_coarse_grid(MarchGrid grid, CoarseGrid coarse,
                      unsigned* ticket) {  // [1] set to 0 for march_count_rays
  constexpr int ROWS = 2 * 2 * BLOCK;      // along z that a warp reads: two x times BLOCK y of two blocks
  __shared__ unsigned found[BLOCK][32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int nx = grid.cells[0], ny = grid.cells[1], nz = grid.cells[2], n_entries = coarse.blocks[2] + 1;
  const int entry_x = blockIdx.x / (coarse.blocks[1] + 1), entry_y = blockIdx.x % (coarse.blocks[1] + 1);
  if (blockIdx.x == 0 && threadIdx.x == 0) *ticket = 0;  // counting runs after this kernel
  bool before = false;                                   // the upper block of the last entry of the previous round
  for (int first = 0; first < n_entries; first += 32) {
    const int entry = first + lane, z = entry * BLOCK;
    unsigned all = 0;
#pragma unroll(VECTOR ? ROWS : 4)
    for (int i = 0; i < ROWS; ++i) {
      const int x = (entry_x - 1 + i % 2) * BLOCK + warp, y = (entry_y - 1) * BLOCK + i / 2;
      if (x < 0 || x >= nx || y < 0 || y >= ny || z >= nz) continue;
      const bool* row = grid.occupancy + (int64_t(x) * ny + y) * nz + z;
      if (VECTOR)
        all |= *reinterpret_cast<const unsigned*>(row);
      else
        for (int k = 0; k < BLOCK && k < nz - z; ++k) all |= row[k];
    }
    found[warp][lane] = all;
    __syncthreads();
    if (warp == 0) {
      const unsigned upper =
          __ballot_sync(FULL_MASK, (found[0][lane] | found[1][lane] | found[2][lane] | found[3][lane]) != 0);
      const bool lower = lane ? upper >> (lane - 1) & 1 : before;
      if (entry < n_entries) coarse.any[int64_t(blockIdx.x) * n_entries + entry] = lower || (upper >> lane & 1);
      before = upper >> 31;
    }
    __syncthreads();
  }
}

}  // namespace
}  // namespace nerfkit
