// SPDX-License-Identifier: Apache-2.0
// The launcher: the coarse grid of march, then one block of persistent warps on each multiprocessor.

#include "render_rays/kernel.cuh"

namespace nerfkit {
namespace {

template <int V, bool LLTM>
Status launch(const RenderArguments& a, const RenderPlan& plan, cudaStream_t stream) {
  const auto kernel = render_rays_kernel<V, LLTM>;
  const Gpu gpu = current_gpu();
  const int warps = std::min(MAX_WARPS, (gpu.shared_bytes - plan.block.used) / plan.warp.used);
  if (gpu.major < TENSOR_CORES_MAJOR || warps < 1) return Status(cudaErrorInvalidValue);
  allow_shared(kernel, gpu);
  const int64_t blocks = std::min<int64_t>(gpu.processors, (a.march.n_rays + 32 * warps - 1) / (32 * warps));
  kernel<<<unsigned(blocks), 32 * warps, plan.block.used + warps * plan.warp.used, stream>>>(a, plan);
  return launched();
}

}  // namespace

int64_t render_workspace_bytes(const int cells[3]) {
  const Coarse coarse = coarse_grids(cells, nullptr);
  return sizeof(unsigned) + entries_of(coarse.fine) + entries_of(coarse.wide);
}

Status render_rays(const RenderArguments& a, Stream stream_in) {
  const auto stream = (cudaStream_t)stream_in;
  auto* next_ray = static_cast<unsigned*>(a.workspace);
  const Sizes sizes = sizes_of(a);
  const RenderPlan plan{sizes, BlockParts(sizes), WarpParts(sizes),
                        coarse_grids(a.march.grid.cells, reinterpret_cast<bool*>(next_ray + 1)), next_ray};
  const MarchGrid& grid = a.march.grid;
  const CoarseGrid& fine = plan.coarse.fine;
  const auto coarse_grid =
      grid.cells[2] % BLOCK == 0 && aligned(grid.occupancy, BLOCK) ? march_coarse_grid<true> : march_coarse_grid<false>;
  const int64_t rows = int64_t(fine.blocks[0] + 1) * (fine.blocks[1] + 1), wide = entries_of(plan.coarse.wide);
  coarse_grid<<<unsigned(rows), 32 * BLOCK, 0, stream>>>(grid, fine, next_ray);
  march_wide_grid<<<blocks_for(wide), THREADS, 0, stream>>>(plan.coarse, wide);
  if (a.levels.n_features == 2)
    return sizes.lltm ? launch<2, true>(a, plan, stream) : launch<2, false>(a, plan, stream);
  return sizes.lltm ? launch<4, true>(a, plan, stream) : launch<4, false>(a, plan, stream);
}

}  // namespace nerfkit
