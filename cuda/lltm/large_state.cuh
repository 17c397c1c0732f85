// SPDX-License-Identifier: Apache-2.0
// The LLTM of many units or inputs, as far as shared memory goes: a block takes 16 or 32 rays together, one warp for 16
// units of the state, or in turn for several times 16 (on the way back for at most 512 units). The weight, too large
// for registers, is first written in the order in which lanes take it. A block keeps as much of it as fits in shared
// memory and reads the rest again at every step, from the caches, where all blocks share it. Sizes are rounded up to a
// multiple of 16 inside; what is added is zero and stays zero.

#pragma once

#include "common/async_copy.cuh"
#include "lltm/mma16.cuh"

namespace nerfkit {
namespace {

HD int blocks_of_16(int n) { return (n + 15) / 16; }
// Elements from one row to the next in shared memory: an odd number of sixteens, against bank conflicts.
HD int shared_row(int blocks) { return (blocks | 1) * 16; }

// ---- the weight ----
//
// Products take blocks of 16 depths for PAIRS x 16 columns: 3 pairs of accumulators, a gate each, on the way forward,
// where depths are [h, input]; one on the way back, where depths are gates [3, H]. A lane has the vec4s of its columns.

template <class T, int PAIRS>
struct alignas(16) PackedBlock {
  // Of 16 bytes, a lane's and a warp's.
  static constexpr int LOADS = PAIRS * 2 * int(sizeof(Vec4<T>)) / 16, SIZE = LOADS * 32;
  uint4 load[LOADS];

  __device__ __forceinline__ void take(const uint4* block) {
#pragma unroll
    for (int i = 0; i < LOADS; ++i) load[i] = block[32 * i];
  }
  __device__ __forceinline__ typename MmaOperand<T>::BFragment b_fragment(int pair, int p, int half) const {
    if constexpr (sizeof(T) == 2) {
      const uint4& both = load[pair];
      return {{p ? both.z : both.x, p ? both.w : both.y}};
    } else {
      const uint4& vec = load[2 * pair + p];
      typename MmaOperand<T>::BFragment out{};
      MmaOperand<T>::split(__uint_as_float(half ? vec.z : vec.x), out.high[0], out.low[0]);
      MmaOperand<T>::split(__uint_as_float(half ? vec.w : vec.y), out.high[1], out.low[1]);
      return out;
    }
  }
};

// to [groups of 16 units, blocks of 16 depths, LOADS, 32 lanes] of 16 bytes; `vec4s` of them.
template <class T, int PAIRS>
__global__ void __launch_bounds__(THREADS)
    lltm_large_state_pack_weight(const T* weight, Vec4<T>* to, int64_t vec4s, int n_state, int n_input) {
  constexpr int VEC4S_PER_LOAD = 16 / int(sizeof(Vec4<T>)), LOADS = PackedBlock<T, PAIRS>::LOADS;
  const int64_t i = int64_t(blockIdx.x) * THREADS + threadIdx.x;
  if (i >= vec4s) return;
  const int blocks_h = blocks_of_16(n_state), depths = PAIRS == 3 ? blocks_h + blocks_of_16(n_input) : 3 * blocks_h;
  const int lane = int(i / VEC4S_PER_LOAD % 32),
            number = int(i / VEC4S_PER_LOAD / 32 % LOADS * VEC4S_PER_LOAD + i % VEC4S_PER_LOAD);
  const int depth = int(i / VEC4S_PER_LOAD / 32 / LOADS % depths),
            group = int(i / VEC4S_PER_LOAD / 32 / LOADS / depths);
  const int unit = 16 * group + column_of(lane / 4, number % 2), columns = n_state + n_input;
  Vec4<T> out;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const int at = 4 * (lane % 4) + k;
    if constexpr (PAIRS == 3) {
      const bool is_h = depth < blocks_h;
      const int column = (is_h ? depth : depth - blocks_h) * 16 + at;
      const bool real = unit < n_state && column < (is_h ? n_state : n_input);
      out.v[k] = real ? weight[int64_t(number / 2 * n_state + unit) * columns + (is_h ? 0 : n_state) + column] : T(0.f);
    } else {
      const int from = depth % blocks_h * 16 + at;
      const bool real = unit < n_state && from < n_state;
      out.v[k] = real ? weight[int64_t(depth / blocks_h * n_state + from) * columns + unit] : T(0.f);
    }
  }
  to[i] = out;
}

struct PackedWeight {
  const uint4* blocks;  // [groups of 16 units, depths, PackedBlock::SIZE]
  int depths;           // K blocks of 16
  int resident;         // of these, the first ones of each group of units are in shared memory
};

// Copies the resident blocks to shared memory. Others see it after a barrier.
template <class Block>
__device__ __forceinline__ void stage_weight(uint4* resident, const PackedWeight& weight, int groups) {
  for (int group = 0; group < groups; ++group)
#pragma unroll 1
    for (int i = threadIdx.x; i < weight.resident * Block::SIZE; i += blockDim.x)
      resident[group * weight.resident * Block::SIZE + i] = weight.blocks[group * weight.depths * Block::SIZE + i];
}

// ---- products ----

// Adds the products with 16 columns, of which a lane has four of each of its rows: values is the first of row g.
template <class T, int PAIRS, int TILES>
__device__ __forceinline__ void add_block(float (&sum)[TILES][PAIRS][2][4], const PackedBlock<T, PAIRS>& weights,
                                          const T* values, int row) {
  using Op = MmaOperand<T>;
  Vec4<T> of[TILES][2];
#pragma unroll
  for (int i = 0; i < 2 * TILES; ++i) of[i / 2][i % 2] = *reinterpret_cast<const Vec4<T>*>(values + 8 * i * row);
#pragma unroll
  for (int half = 0; half < 16 / Op::K; ++half) {
    typename Op::AFragment rows[TILES];
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile) rows[tile] = Op::a_fragment(of[tile][0], of[tile][1], half);
#pragma unroll
    for (int p = 0; p < 2; ++p)
#pragma unroll
      for (int pair = 0; pair < PAIRS; ++pair) {
        const typename Op::BFragment own = weights.b_fragment(pair, p, half);
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) Op::product(sum[tile][pair][p], rows[tile], own);
      }
  }
}

// The same with `count` blocks. The weights of PREFETCH more are on their way while one is multiplied.
template <class T, int PAIRS, int TILES>
__device__ __forceinline__ void add_blocks(float (&sum)[TILES][PAIRS][2][4], const uint4* weights, const T* values,
                                           int row, int count) {
  using Own = PackedBlock<T, PAIRS>;
  constexpr int PREFETCH = PAIRS == 1 || (TILES == 2 && sizeof(T) == 2) ? 2 : 1;  // as registers allow
  Own own[PREFETCH];
#pragma unroll
  for (int i = 0; i < PREFETCH; ++i)
    if (i < count) own[i].take(weights + i * Own::SIZE);
  for (int block = 0; block < count; block += PREFETCH) {
#pragma unroll
    for (int i = 0; i < PREFETCH; ++i)
      if (block + i < count) {
        const Own now = own[i];
        if (block + i + PREFETCH < count) own[i].take(weights + (block + i + PREFETCH) * Own::SIZE);
        add_block<T, PAIRS, TILES>(sum, now, values + 16 * (block + i), row);
      }
  }
}

// Blocks first .. last - 1 of depths, from shared memory where they are resident. values: those of block `first`.
template <class T, int PAIRS, int TILES>
__device__ __forceinline__ void add_depths(float (&sum)[TILES][PAIRS][2][4], const PackedWeight& weight,
                                           const uint4* resident, int group, int first, int last, const T* values,
                                           int row) {
  constexpr int SIZE = PackedBlock<T, PAIRS>::SIZE;
  const int lane = threadIdx.x % 32, middle = min(max(weight.resident, first), last);
  const uint4* near = resident + (group * weight.resident + first) * SIZE;
  const uint4* far = weight.blocks + (group * weight.depths + middle) * SIZE;
  add_blocks<T, PAIRS, TILES>(sum, near + lane, values, row, middle - first);
  add_blocks<T, PAIRS, TILES>(sum, far + lane, values + 16 * (middle - first), row, last - middle);
}

// ---- units ----

// Those of units unit .. unit + 3 that are there, which no one reads soon.
template <class T>
__device__ __forceinline__ void store_units(T* row, int unit, int n_state, const float (&values)[4]) {
  if (n_state % 4 == 0) {
    if (unit >= n_state) return;
    if constexpr (sizeof(T) == 2)
      __stcs(reinterpret_cast<uint2*>(row + unit),
             make_uint2(pack<T>(values[0], values[1]), pack<T>(values[2], values[3])));
    else
      __stcs(reinterpret_cast<float4*>(row + unit), make_float4(values[0], values[1], values[2], values[3]));
  } else {
#pragma unroll
    for (int k = 0; k < 4; ++k)
      if (unit + k < n_state) row[unit + k] = T(values[k]);
  }
}

// ---- rays ----

struct BlockRay {
  int64_t ray, first;  // ray: -1 beyond the last one
  int length;
};

// The rays of a block's rows, by its first threads. Others see them after a barrier.
__device__ __forceinline__ void find_rays(BlockRay* rows, int count, const LltmShape& s, int tile) {
  const int row = threadIdx.x;
  if (row >= count) return;
  const int64_t rank = int64_t(tile) * count + row;
  const bool real = rank < s.n_rays;
  const int64_t ray = real && s.order ? s.order[rank] : rank, first = real ? s.ray_offsets[ray] : 0;
  rows[row] = {real ? ray : -1, first, real ? int(s.ray_offsets[ray + 1] - first) : 0};
}

// At most 32 rows.
__device__ __forceinline__ int longest_of(const BlockRay* rows, int count) {
  int longest = rows[threadIdx.x % count].length;
  for (int offset = 16; offset; offset /= 2) longest = max(longest, __shfl_xor_sync(FULL_MASK, longest, offset));
  return longest;
}

// ---- launches ----

constexpr int RESIDENT_WARPS = 8;        // of a multiprocessor, which blocks of few warps should come to
constexpr int RESERVED_BYTES = 1 << 10;  // of shared memory, which CUDA takes for itself in every block

// Whether there are more rays than run at once where a block takes 16: then it takes 32.
inline bool rays_wait(const LltmShape& s, const Gpu& gpu) {
  return s.n_rays > int64_t(RAYS) * gpu.processors * std::max(1, RESIDENT_WARPS / blocks_of_16(s.n_state));
}

// Packs the weight, then launches blocks that take `rays` each; `bytes`: of shared memory, besides the weight. False if
// the kernel needs more than there is.
template <class T, int PAIRS, class Kernel, class Arguments, class Saved>
bool launch_large_state(Kernel kernel, const Arguments& a, const Saved& saved, int rays, int warps, size_t bytes,
                        const LltmLaunch& on) {
  using Block = PackedBlock<T, PAIRS>;
  const LltmShape& s = a.shape;
  const Gpu& gpu = on.gpu;
  const int groups = blocks_of_16(s.n_state), depths = PAIRS == 3 ? groups + blocks_of_16(s.n_input) : 3 * groups;
  const int64_t tiles = (s.n_rays + rays - 1) / rays;
  if (bytes > size_t(gpu.shared_bytes)) return false;
  const int64_t most = std::max(1, RESIDENT_WARPS / warps);  // blocks of a multiprocessor
  const int64_t together = std::clamp<int64_t>((tiles + gpu.processors - 1) / gpu.processors, 1, most);
  const int64_t left = (gpu.shared_bytes + RESERVED_BYTES) / together - RESERVED_BYTES - int64_t(bytes);
  const int64_t of_depth = int64_t(groups) * Block::SIZE * 16,
                resident = std::clamp<int64_t>(left / of_depth, 0, depths);
  const size_t shared = bytes + size_t(resident * of_depth);
  allow_shared(kernel, gpu);
  int blocks = 0;  // of a multiprocessor
  cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, 32 * warps, shared);
  if (blocks == 0) return false;
  const int64_t vec4s = int64_t(groups) * depths * Block::SIZE * 16 / int64_t(sizeof(Vec4<T>));
  lltm_large_state_pack_weight<T, PAIRS>
      <<<blocks_for(vec4s), THREADS, 0, on.stream>>>(a.weight, (Vec4<T>*)a.packed_weight, vec4s, s.n_state, s.n_input);
  const PackedWeight weight{(const uint4*)a.packed_weight, depths, int(resident)};
  const int64_t grid = std::min(std::min(tiles, int64_t(blocks) * gpu.processors), int64_t(BIAS_PARTIALS));
  kernel<<<unsigned(grid), 32 * warps, shared, on.stream>>>(a, saved, weight, int(tiles));
  return true;
}

}  // namespace
}  // namespace nerfkit
