// SPDX-License-Identifier: Apache-2.0
// The LLTM of many units or inputs, as far as shared memory goes: a block walks 16 or 32 rays together, a warp for 16
// units of the state, or in turn for several times 16 (on the way back for at most 512 units). The weight, too large
// for registers, is first written in the order in which lanes take it. A block keeps as much of it as fits in shared
// memory and reads the rest again at every step, from the caches, where all blocks share it. Sizes are rounded up to a
// multiple of 16 inside; what is added is zero and stays zero.

#pragma once

#include "common/async_copy.cuh"
#include "lltm/mma16.cuh"

namespace nerfkit {
namespace {

HD int sixteens(int n) { return (n + 15) / 16; }
// Elements from one row to the next in shared memory: an odd number of sixteens, against bank conflicts.
HD int row_of(int blocks) { return (blocks | 1) * 16; }

// ---- the weight ----
//
// Products take blocks of 16 depths for PAIRS x 16 columns: 3 pairs of accumulators, a gate each, on the way forward,
// where depths are [h, input]; one on the way back, where depths are gates [3, H]. A lane has the quads of its columns.

template <class T, int PAIRS>
struct alignas(16) Operands {
  // Of 16 bytes, a lane's and a warp's.
  static constexpr int LOADS = PAIRS * 2 * int(sizeof(Quad<T>)) / 16, SIZE = LOADS * 32;
  uint4 load[LOADS];

  __device__ __forceinline__ void take(const uint4* block) {
#pragma unroll
    for (int i = 0; i < LOADS; ++i) load[i] = block[32 * i];
  }
  __device__ __forceinline__ typename Tile<T>::Weight weight(int pair, int p, int half) const {
    if constexpr (sizeof(T) == 2) {
      const uint4& both = load[pair];
      return {{p ? both.z : both.x, p ? both.w : both.y}};
    } else {
      const uint4& quad = load[2 * pair + p];
      typename Tile<T>::Weight out{};
      Tile<T>::split(__uint_as_float(half ? quad.z : quad.x), out.high[0], out.low[0]);
      Tile<T>::split(__uint_as_float(half ? quad.w : quad.y), out.high[1], out.low[1]);
      return out;
    }
  }
};

// to [groups of 16 units, blocks of 16 depths, LOADS, 32 lanes] of 16 bytes; `quads` of them.
template <class T, int PAIRS>
__global__ void __launch_bounds__(THREADS)
    order_weight(const T* weight, Quad<T>* to, int64_t quads, int n_state, int n_input) {
  constexpr int OF_LOAD = 16 / int(sizeof(Quad<T>)), LOADS = Operands<T, PAIRS>::LOADS;
  const int64_t i = int64_t(blockIdx.x) * THREADS + threadIdx.x;
  if (i >= quads) return;
  const int blocks_h = sixteens(n_state), depths = PAIRS == 3 ? blocks_h + sixteens(n_input) : 3 * blocks_h;
  const int lane = int(i / OF_LOAD % 32), number = int(i / OF_LOAD / 32 % LOADS * OF_LOAD + i % OF_LOAD);
  const int depth = int(i / OF_LOAD / 32 / LOADS % depths), group = int(i / OF_LOAD / 32 / LOADS / depths);
  const int unit = 16 * group + column_of(lane / 4, number % 2), columns = n_state + n_input;
  Quad<T> out;
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

struct WideWeight {
  const uint4* ordered;
  int depths, kept;  // blocks of 16; those in shared memory, of each group of units, are the first
};

// Copies what is kept to shared memory. Others see it after a barrier.
template <class Operands>
__device__ __forceinline__ void keep_first(uint4* kept, const WideWeight& weight, int groups) {
  for (int group = 0; group < groups; ++group)
#pragma unroll 1
    for (int i = threadIdx.x; i < weight.kept * Operands::SIZE; i += blockDim.x)
      kept[group * weight.kept * Operands::SIZE + i] = weight.ordered[group * weight.depths * Operands::SIZE + i];
}

// ---- products ----

// Adds the products with 16 columns, of which a lane has four of each of its rows: values is the first of row g.
template <class T, int PAIRS, int TILES>
__device__ __forceinline__ void add_block(float (&sum)[TILES][PAIRS][2][4], const Operands<T, PAIRS>& weights,
                                          const T* values, int row) {
  using Op = Tile<T>;
  Quad<T> of[TILES][2];
#pragma unroll
  for (int i = 0; i < 2 * TILES; ++i) of[i / 2][i % 2] = *reinterpret_cast<const Quad<T>*>(values + 8 * i * row);
#pragma unroll
  for (int half = 0; half < 16 / Op::DEPTH; ++half) {
    typename Op::Rows rows[TILES];
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile) rows[tile] = Op::rows(of[tile][0], of[tile][1], half);
#pragma unroll
    for (int p = 0; p < 2; ++p)
#pragma unroll
      for (int pair = 0; pair < PAIRS; ++pair) {
        const typename Op::Weight own = weights.weight(pair, p, half);
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) Op::product(sum[tile][pair][p], rows[tile], own);
      }
  }
}

// The same with `count` blocks. The weights of AHEAD more are on their way while one is multiplied.
template <class T, int PAIRS, int TILES>
__device__ __forceinline__ void add_blocks(float (&sum)[TILES][PAIRS][2][4], const uint4* weights, const T* values,
                                           int row, int count) {
  using Own = Operands<T, PAIRS>;
  constexpr int AHEAD = PAIRS == 1 || (TILES == 2 && sizeof(T) == 2) ? 2 : 1;  // as registers allow
  Own own[AHEAD];
#pragma unroll
  for (int i = 0; i < AHEAD; ++i)
    if (i < count) own[i].take(weights + i * Own::SIZE);
  for (int block = 0; block < count; block += AHEAD) {
#pragma unroll
    for (int i = 0; i < AHEAD; ++i)
      if (block + i < count) {
        const Own now = own[i];
        if (block + i + AHEAD < count) own[i].take(weights + (block + i + AHEAD) * Own::SIZE);
        add_block<T, PAIRS, TILES>(sum, now, values + 16 * (block + i), row);
      }
  }
}

// Blocks first .. last - 1 of depths, from shared memory where they are kept. values: those of block `first`.
template <class T, int PAIRS, int TILES>
__device__ __forceinline__ void add_depths(float (&sum)[TILES][PAIRS][2][4], const WideWeight& weight,
                                           const uint4* kept, int group, int first, int last, const T* values,
                                           int row) {
  constexpr int SIZE = Operands<T, PAIRS>::SIZE;
  const int lane = threadIdx.x % 32, middle = min(max(weight.kept, first), last);
  const uint4* near = kept + (group * weight.kept + first) * SIZE;
  const uint4* far = weight.ordered + (group * weight.depths + middle) * SIZE;
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

struct RowOfBlock {
  int64_t ray, first;  // ray: -1 beyond the last one
  int length;
};

__device__ __forceinline__ RowOfBlock row_at(const LltmShape& s, int64_t place) {
  const bool real = place < s.n_rays;
  const int64_t ray = real && s.order ? s.order[place] : place, first = real ? s.ray_offsets[ray] : 0;
  return {real ? ray : -1, first, real ? int(s.ray_offsets[ray + 1] - first) : 0};
}

// The rays of a block's rows, by its first threads. Others see them after a barrier.
__device__ __forceinline__ void find_rows(RowOfBlock* rows, int count, const LltmShape& s, int tile) {
  const int row = threadIdx.x;
  if (row < count) rows[row] = row_at(s, int64_t(tile) * count + row);
}

// At most 32 rows.
__device__ __forceinline__ int longest_of(const RowOfBlock* rows, int count) {
  int longest = rows[threadIdx.x % count].length;
  for (int offset = 16; offset; offset /= 2) longest = max(longest, __shfl_xor_sync(FULL_MASK, longest, offset));
  return longest;
}

}  // namespace
}  // namespace nerfkit
