// SPDX-License-Identifier: Apache-2.0
// Launchers of the three kernels: coarse grid and counting, then filling; and how the workspace is divided.

#include "march/coarse.cuh"
#include "march/count.cuh"
#include "march/fill.cuh"

namespace nerfkit {
namespace {

// Larger elements first, so that all are aligned.
template <class P>
Workspace<P> workspace_of(const MarchArguments& in, const MarchCounts& found) {
  SampleMask* masks = static_cast<SampleMask*>(found.workspace);
  RayHead<P>* heads = reinterpret_cast<RayHead<P>*>(masks + in.n_rays * STORED_CHUNKS);
  unsigned* ticket = reinterpret_cast<unsigned*>(heads + in.n_rays);
  return {found.counts, found.tile_offsets,
          masks,        heads,
          ticket,       coarse_of(in.grid.cells, reinterpret_cast<bool*>(ticket + 1))};
}

}  // namespace

int64_t march_tiles(int64_t n_rays) { return (n_rays + TILE - 1) / TILE; }

int64_t march_workspace_bytes(DType dtype, int64_t n_rays, const int cells[3]) {
  const int64_t head = dtype == DType::f64 ? sizeof(RayHead<double>) : sizeof(RayHead<float>);
  int64_t entries = 1;
  for (int blocks : coarse_of(cells, nullptr).blocks) entries *= blocks + 1;
  return n_rays * (STORED_CHUNKS * sizeof(SampleMask) + head) + sizeof(unsigned) + entries;
}

Status march_count(DType dtype, const MarchArguments& in, const MarchCounts& found, Stream stream) {
  const auto run = [&](auto position) {
    const Workspace<decltype(position)> workspace = workspace_of<decltype(position)>(in, found);
    const bool vector = in.grid.cells[2] % BLOCK == 0 && aligned(in.grid.occupancy, BLOCK);
    const auto coarse_grid = vector ? march_coarse_grid<true> : march_coarse_grid<false>;
    const unsigned entries = unsigned(workspace.coarse.blocks[0] + 1) * (workspace.coarse.blocks[1] + 1);
    coarse_grid<<<entries, 32 * BLOCK, 0, (cudaStream_t)stream>>>(in.grid, workspace.coarse, workspace.ticket);
    const auto count_rays = in.t_edges ? march_count_rays<ContractedTileRay, decltype(position)>
                                       : march_count_rays<TileRay, decltype(position)>;
    count_rays<<<unsigned(march_tiles(in.n_rays)), THREADS, 0, (cudaStream_t)stream>>>(in, workspace);
  };
  dtype == DType::f64 ? run(double()) : run(float());
  return launched();
}

Status march_fill(DType dtype, const MarchArguments& in, const MarchCounts& found, int64_t n_rows, int64_t* ray_offsets,
                  void* t_starts, void* t_ends, Stream stream) {
  const auto run = [&](auto position) {
    using P = decltype(position);
    const SampleRows<P> rows{static_cast<P*>(t_starts), static_cast<P*>(t_ends)};
    const unsigned tiles = unsigned(march_tiles(in.n_rays));
    const auto fill_rays = in.t_edges ? march_fill_rays<ContractedTileRay, P> : march_fill_rays<TileRay, P>;
    fill_rays<<<tiles, THREADS, 0, (cudaStream_t)stream>>>(in, workspace_of<P>(in, found), n_rows, ray_offsets, rows);
  };
  dtype == DType::f64 ? run(double()) : run(float());
  return launched();
}

}  // namespace nerfkit
