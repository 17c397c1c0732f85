// SPDX-License-Identifier: Apache-2.0
// Three kernels: the coarse grid; counting, a block for a tile of rays, whose warps take one after the other; and
// filling, which takes from counting where each ray's samples are and writes them to where the counts say.

#include "common/gpu.cuh"
#include "march/args.h"
#include "march/rays.cuh"

namespace nerfkit {
namespace {

constexpr int TILE = 64;  // rays of a block
constexpr int WARPS = THREADS / 32;
constexpr int WARP_RAYS = TILE / WARPS;  // that a warp fills
constexpr int KEPT = 32;  // chunks of a ray that counting keeps for filling; a ray of more is walked again
static_assert(TILE == 2 * 32, "two rays of the tile for each lane that adds up their counts");

// Blocks of a multiprocessor: as many as there are registers for.
template <class P>
constexpr int RESIDENT = sizeof(P) == 4 ? 4 : 2;

struct alignas(8) Samples {
  unsigned which, chunk;  // which of its intervals are samples
};

template <class P>
struct alignas(2 * sizeof(P)) Head {
  P start;     // of the ray
  int chunks;  // that have samples
};

// MarchFound, and the parts of its `kept`.
template <class P>
struct Found {
  int64_t *counts, *tile_offsets;
  Samples* samples;  // [rays, KEPT]
  Head<P>* heads;    // [rays]
  unsigned* ticket;  // tiles that are counted
  CoarseGrid coarse;
};

// A thread block for the entries at one (x, y) of the coarse grid. A warp looks at one x of each block, a lane at BLOCK
// cells along z: those of the higher block of its entry, as the lane below has the lower one. VECTOR: reads them at
// once.
template <bool VECTOR>
__global__ void __launch_bounds__(32 * BLOCK, 8) find_any(MarchGrid grid, CoarseGrid coarse, unsigned* ticket) {
  constexpr int ROWS = 2 * 2 * BLOCK;  // of a warp: the rows along z of its two x in both blocks along y
  __shared__ unsigned found[BLOCK][32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int nx = grid.cells[0], ny = grid.cells[1], nz = grid.cells[2], n_entries = coarse.blocks[2] + 1;
  const int entry_x = blockIdx.x / (coarse.blocks[1] + 1), entry_y = blockIdx.x % (coarse.blocks[1] + 1);
  if (blockIdx.x == 0 && threadIdx.x == 0) *ticket = 0;  // the counting waits for this kernel
  bool before = false;                                   // of the last entry of the round before, the higher block
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
      const unsigned some =
          __ballot_sync(FULL_MASK, (found[0][lane] | found[1][lane] | found[2][lane] | found[3][lane]) != 0);
      const bool lower = lane ? some >> (lane - 1) & 1 : before;
      if (entry < n_entries) coarse.any[int64_t(blockIdx.x) * n_entries + entry] = lower || (some >> lane & 1);
      before = some >> 31;
    }
    __syncthreads();
  }
}

// Turns the tiles' samples into those in front of each tile. One block: the others' numbers are in L2.
__device__ __forceinline__ void add_up_tiles(int64_t* tile_offsets, int64_t n_tiles) {
  constexpr int EACH = 4;
  __shared__ int64_t warps[WARPS];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int64_t before = 0;
  for (int64_t first = 0; first < n_tiles; first += THREADS * EACH) {
    const int64_t tile = first + threadIdx.x * EACH;
    int64_t samples[EACH], mine = 0;
#pragma unroll
    for (int i = 0; i < EACH; ++i)
      samples[i] = tile + i < n_tiles ? __ldcg(reinterpret_cast<const long long*>(tile_offsets) + tile + i) : 0;
#pragma unroll
    for (int i = 0; i < EACH; ++i) mine += samples[i];
    const int64_t upto = warp_inclusive_sum(mine, lane, 32);
    if (lane == 31) warps[warp] = upto;
    __syncthreads();
    int64_t offset = before + upto - mine;
    for (int w = 0; w < WARPS; ++w) {
      if (w < warp) offset += warps[w];
      before += warps[w];
    }
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
      if (tile + i < n_tiles) tile_offsets[tile + i] = offset;
      offset += samples[i];
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) tile_offsets[n_tiles] = before;
}

// Writes what a warp's block has counted; lane 0 learns whether all others have, too.
template <class P>
__device__ __forceinline__ bool keep_tile(const MarchArguments& in, const Found<P>& found, const TileRay<P>* rays,
                                          const int2* counted, int n_rays) {
  const int lane = threadIdx.x % 32;
  const int64_t first = int64_t(blockIdx.x) * TILE;
  int64_t sum = 0;
  for (int r = lane; r < n_rays; r += 32) {
    const int64_t samples = rays[r].too_long ? in.too_many : counted[r].x;
    found.counts[first + r] = samples;
    found.heads[first + r] = {rays[r].start, counted[r].y};
    sum += samples;
  }
  sum = warp_sum(sum, 32);
  if (lane != 0) return false;
  // The tile's sum is to be seen before its ticket, and all sums after the last ticket.
  found.tile_offsets[blockIdx.x] = sum;
  __threadfence();
  const bool last = atomicAdd(found.ticket, 1u) == gridDim.x - 1;
  __threadfence();
  return last;
}

template <class P>
__global__ void __launch_bounds__(THREADS, RESIDENT<P>) count(MarchArguments in, Found<P> found) {
  __shared__ TileRay<P> rays[TILE];
  __shared__ int2 counted[TILE];  // samples, chunks that have some
  __shared__ unsigned next;
  __shared__ bool last;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t first = int64_t(blockIdx.x) * TILE;
  const int n_rays = int(min(int64_t(TILE), in.n_rays - first));
  if (threadIdx.x < n_rays) rays[threadIdx.x] = tile_ray<P>(in, first + threadIdx.x);
  if (threadIdx.x == 0) next = WARPS;
  __syncthreads();
  const P step = P(in.limits.step);
  Samples* kept = found.samples + first * KEPT;
  for (int r = warp; r < n_rays;) {
    int samples = 0, chunks = 0;
    walk(TileRay<P>(rays[r]), in.grid, found.coarse, step, [&](int chunk, unsigned which) {
      const unsigned some = __ballot_sync(FULL_MASK, which != 0);
      const int place = chunks + __popc(some & ((1u << lane) - 1));
      if (which && place < KEPT) kept[r * KEPT + place] = {which, unsigned(chunk)};
      chunks += __popc(some);
      samples += __popc(which);
    });
    samples = warp_sum(samples, 32);
    if (lane == 0) {
      counted[r] = {samples, chunks};
      r = int(atomicInc(&next, ~0u));  // atomicAdd would first add up what the lanes add
    }
    r = __shfl_sync(FULL_MASK, r, 0);
  }
  __syncthreads();
  if (warp == 0) {
    const bool all = keep_tile(in, found, rays, counted, n_rays);
    if (lane == 0) last = all;
  }
  __syncthreads();
  if (last) add_up_tiles(found.tile_offsets, gridDim.x);
}

// Rows of t_starts and t_ends.
template <class P>
struct Rows {
  P *t_starts, *t_ends;

  __device__ Rows from(int64_t n) const { return {t_starts + n, t_ends + n}; }
  __device__ void put(int n, P t, P half) const { t_starts[n] = t - half, t_ends[n] = t + half; }
  __device__ void clear(int64_t n) const { t_starts[n] = t_ends[n] = P(0); }
};

// Samples of the ray of a lane.
struct Span {
  int64_t offset, count;
};

// Of this warp's rays, one a lane. Each lane adds up two rays of the tile; the first warp writes their offsets.
template <class P>
__device__ __forceinline__ Span span_of_lane(const MarchArguments& in, const Found<P>& found,
                                             int64_t* __restrict__ ray_offsets) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t r = int64_t(blockIdx.x) * TILE + 2 * lane;
  const bool has_a = r < in.n_rays, has_b = r + 1 < in.n_rays;
  const int64_t a = has_a ? found.counts[r] : 0, b = has_b ? found.counts[r + 1] : 0;
  const int64_t offset_b = found.tile_offsets[blockIdx.x] + warp_inclusive_sum(a + b, lane, 32) - b,
                offset_a = offset_b - a;
  if (warp == 0) {
    if (has_a) ray_offsets[r] = offset_a;
    if (has_b) ray_offsets[r + 1] = offset_b;
  }
  const int mine = warp * WARP_RAYS + lane, from = mine / 2 % 32;
  const Span even{__shfl_sync(FULL_MASK, offset_a, from), __shfl_sync(FULL_MASK, a, from)};
  const Span odd{__shfl_sync(FULL_MASK, offset_b, from), __shfl_sync(FULL_MASK, b, from)};
  return {mine % 2 ? odd.offset : even.offset, lane >= WARP_RAYS ? 0 : mine % 2 ? odd.count : even.count};
}

// The kept chunks of a ray, one a lane.
template <class P>
__device__ __forceinline__ void fill_kept(Samples kept, int chunks, P start, P step, P half, Rows<P> to) {
  const int lane = threadIdx.x % 32;
  for (int c = 0; c < chunks; ++c) {
    const unsigned which = __shfl_sync(FULL_MASK, kept.which, c);
    const int chunk = __shfl_sync(FULL_MASK, int(kept.chunk), c);
    if (which >> lane & 1) to.put(__popc(which & ((1u << lane) - 1)), start + P(chunk * CHUNK + lane) * step, half);
    to = to.from(__popc(which));
  }
}

template <class P>
__device__ __forceinline__ void fill_again(const MarchArguments& in, const CoarseGrid& coarse, int64_t index, P step,
                                           P half, Rows<P> to) {
  const TileRay<P> ray = tile_ray<P>(in, index);
  walk(ray, in.grid, coarse, step, [&](int chunk, unsigned which) {
    for (unsigned some = __ballot_sync(FULL_MASK, which != 0); some; some &= some - 1) {
      const int next = __ffs(some) - 1;
      fill_kept({__shfl_sync(FULL_MASK, which, next), unsigned(__shfl_sync(FULL_MASK, chunk, next))}, 1, ray.start,
                step, half, to);
      to = to.from(__popc(__shfl_sync(FULL_MASK, which, next)));
    }
  });
}

template <class P>
__global__ void __launch_bounds__(THREADS, RESIDENT<P>)
    fill(MarchArguments in, Found<P> found, int64_t n_rows, int64_t* __restrict__ ray_offsets, Rows<P> rows) {
  const int lane = threadIdx.x % 32;
  const int64_t first = int64_t(blockIdx.x) * TILE + threadIdx.x / 32 * WARP_RAYS,
                n_samples = found.tile_offsets[gridDim.x];
  const P step = P(in.limits.step), half = P(in.limits.step / 2);
  Head<P> head{};
  if (lane < WARP_RAYS && first + lane < in.n_rays) head = found.heads[first + lane];
  Samples kept[WARP_RAYS];
#pragma unroll
  for (int i = 0; i < WARP_RAYS; ++i) {
    kept[i] = {};
    if (lane < __shfl_sync(FULL_MASK, head.chunks, i)) kept[i] = found.samples[(first + i) * KEPT + lane];
  }
  const Span span = span_of_lane(in, found, ray_offsets);
  const bool some = span.count > 0 && span.offset <= n_rows, fits = some && span.count <= n_rows - span.offset;
  const int chunks = fits && head.chunks <= KEPT ? head.chunks : 0;
#pragma unroll
  for (int i = 0; i < WARP_RAYS; ++i)
    fill_kept(kept[i], __shfl_sync(FULL_MASK, chunks, i), __shfl_sync(FULL_MASK, head.start, i), step, half,
              rows.from(__shfl_sync(FULL_MASK, span.offset, i)));
#pragma unroll 1
  for (unsigned again = __ballot_sync(FULL_MASK, fits && head.chunks > KEPT); again; again &= again - 1) {
    const int i = __ffs(again) - 1;
    fill_again(in, found.coarse, first + i, step, half, rows.from(__shfl_sync(FULL_MASK, span.offset, i)));
  }
  // The rows of the first ray without room, up to the last, have no samples; nor have those behind all samples.
  if (const unsigned cut = __ballot_sync(FULL_MASK, some && !fits))
    for (int64_t n = __shfl_sync(FULL_MASK, span.offset, __ffs(cut) - 1) + lane; n < n_rows; n += 32) rows.clear(n);
  const int64_t thread = int64_t(blockIdx.x) * THREADS + threadIdx.x;
  for (int64_t n = n_samples + thread; n < n_rows; n += int64_t(gridDim.x) * THREADS) rows.clear(n);
  if (thread == 0) ray_offsets[in.n_rays] = n_samples;
}

CoarseGrid coarse_of(const int cells[3], bool* any) {
  CoarseGrid coarse{{}, any};
  for (int axis = 0; axis < 3; ++axis) coarse.blocks[axis] = (cells[axis] + BLOCK - 1) / BLOCK;
  return coarse;
}

// Larger elements first, so that all are aligned.
template <class P>
Found<P> parts_of(const MarchArguments& in, const MarchFound& found) {
  Samples* samples = static_cast<Samples*>(found.kept);
  Head<P>* heads = reinterpret_cast<Head<P>*>(samples + in.n_rays * KEPT);
  unsigned* ticket = reinterpret_cast<unsigned*>(heads + in.n_rays);
  return {found.counts, found.tile_offsets,
          samples,      heads,
          ticket,       coarse_of(in.grid.cells, reinterpret_cast<bool*>(ticket + 1))};
}

}  // namespace

int64_t march_tiles(int64_t n_rays) { return (n_rays + TILE - 1) / TILE; }

int64_t march_kept_bytes(DType dtype, int64_t n_rays, const int cells[3]) {
  const int64_t head = dtype == DType::f64 ? sizeof(Head<double>) : sizeof(Head<float>);
  int64_t entries = 1;
  for (int blocks : coarse_of(cells, nullptr).blocks) entries *= blocks + 1;
  return n_rays * (KEPT * sizeof(Samples) + head) + sizeof(unsigned) + entries;
}

Status march_count(DType dtype, const MarchArguments& in, const MarchFound& found, Stream stream) {
  const auto run = [&](auto position) {
    const Found<decltype(position)> parts = parts_of<decltype(position)>(in, found);
    const bool vector = in.grid.cells[2] % BLOCK == 0 && aligned(in.grid.occupancy, BLOCK);
    const auto find = vector ? find_any<true> : find_any<false>;
    const unsigned entries = unsigned(parts.coarse.blocks[0] + 1) * (parts.coarse.blocks[1] + 1);
    find<<<entries, 32 * BLOCK, 0, (cudaStream_t)stream>>>(in.grid, parts.coarse, parts.ticket);
    count<<<unsigned(march_tiles(in.n_rays)), THREADS, 0, (cudaStream_t)stream>>>(in, parts);
  };
  dtype == DType::f64 ? run(double()) : run(float());
  return launched();
}

Status march_fill(DType dtype, const MarchArguments& in, const MarchFound& found, int64_t n_rows, int64_t* ray_offsets,
                  void* t_starts, void* t_ends, Stream stream) {
  const auto run = [&](auto position) {
    using P = decltype(position);
    const Rows<P> rows{static_cast<P*>(t_starts), static_cast<P*>(t_ends)};
    const unsigned tiles = unsigned(march_tiles(in.n_rays));
    fill<<<tiles, THREADS, 0, (cudaStream_t)stream>>>(in, parts_of<P>(in, found), n_rows, ray_offsets, rows);
  };
  dtype == DType::f64 ? run(double()) : run(float());
  return launched();
}

}  // namespace nerfkit
