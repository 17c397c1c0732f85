// SPDX-License-Identifier: Apache-2.0
// The LLTM of many units along few rays: a cluster of blocks walks 16 rays, and all clusters run at once. A block has
// some groups of 16 units and keeps their weights in shared memory, as far as they fit. The warps of a group share out
// the depths of its products, write their sums to shared memory, and then share out its units: a thread takes a word, 4
// bytes of a ray's state, or several. What comes of a step is sent to all blocks, whose next products wait until all of
// its bytes are there. There are two buffers of it: a block sends to one of them only after it has got everything of
// the other, which others sent after reading the first. The sums have two, too: a warp writes to one of them after the
// warps of its group met over the other, and that was after they read the first. Where the weight needs the room there
// is one of sums, and the warps meet after reading it. The weight is ordered as for lltm_wide.cuh.

#pragma once

#include <type_traits>

#include "lltm/async_cluster.cuh"
#include "lltm/large_state.cuh"

namespace nerfkit {
namespace {

// Warps of a block, at most, where a group has WARPS, as registers allow.
template <int WARPS>
constexpr int CLUSTER_WARPS = WARPS == 8 || WARPS == 1 ? 8 : 12;
constexpr int GROUP_SUMS = RAYS * 16;  // of a pair of accumulators, [RAYS, 16 units]

template <class T>
constexpr int WORD = 4 / int(sizeof(T));  // units of a word

template <class T>
struct alignas(4) Word {
  T v[WORD<T>];
};

// Which words of a group's units are a thread's, of the WARPS that the group has: the same units of COUNT rays.
template <class T, int WARPS>
struct OwnWords {
  static constexpr int OF_ROW = 16 / WORD<T>, ROWS = 32 * WARPS / OF_ROW;  // rows from one of its words to the next
  static constexpr int COUNT = std::max(1, RAYS / ROWS);
  int row, unit;  // of the first; the unit in the group

  __device__ __forceinline__ OwnWords() {
    const int thread = threadIdx.x % (32 * WARPS);
    row = thread / OF_ROW, unit = thread % OF_ROW * WORD<T>;
  }
  __device__ __forceinline__ bool any() const { return ROWS <= RAYS || row < RAYS; }
};

// A warp's place: its group in the block, which may not be there in a cluster's last one, and its part of the depths.
template <int WARPS>
struct WarpOfCluster {
  int group, part;
  bool real;

  __device__ __forceinline__ WarpOfCluster(int first_group, int groups)
      : group(threadIdx.x / 32 / WARPS), part(threadIdx.x / 32 % WARPS), real(first_group + group < groups) {}
  // Of n blocks of 16 depths, begin .. end - 1 are its own.
  __device__ __forceinline__ int begin(int n) const { return n * part / WARPS; }
  __device__ __forceinline__ int end(int n) const { return n * (part + 1) / WARPS; }
};

// Sums of a group, [WARPS, PAIRS, RAYS, 16].
template <int PAIRS, int WARPS>
constexpr int SUMS_OF_GROUP = WARPS * PAIRS * GROUP_SUMS;

// A warp's part of them.
template <int PAIRS>
__device__ __forceinline__ void write_sums(const float (&sum)[1][PAIRS][2][4], float* sums, int part) {
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int pair = 0; pair < PAIRS; ++pair)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float (&of)[2][4] = sum[0][pair];
      float4* const to =
          reinterpret_cast<float4*>(sums + (part * PAIRS + pair) * GROUP_SUMS + (g + 8 * r) * 16 + 4 * t);
      *to = make_float4(of[0][2 * r], of[0][2 * r + 1], of[1][2 * r], of[1][2 * r + 1]);
    }
}

// Those of units unit .. of a row, added up in the order of the warps.
template <int PAIRS, int WARPS, int N>
__device__ __forceinline__ void add_sums(float (&total)[PAIRS][N], const float* sums, int row, int unit) {
  constexpr int TOGETHER = std::min(WARPS, 4);  // on their way, as registers allow
#pragma unroll
  for (int first = 0; first < WARPS; first += TOGETHER) {
    Vec<float, N> parts[TOGETHER][PAIRS];
#pragma unroll
    for (int i = 0; i < TOGETHER * PAIRS; ++i) {
      const float* from = sums + (first * PAIRS + i) * GROUP_SUMS + row * 16 + unit;
      parts[i / PAIRS][i % PAIRS] = *reinterpret_cast<const Vec<float, N>*>(from);
    }
#pragma unroll
    for (int i = 0; i < TOGETHER * PAIRS; ++i)
#pragma unroll
      for (int k = 0; k < N; ++k) total[i % PAIRS][k] += parts[i / PAIRS][i % PAIRS].v[k];
  }
}

// ---- shared memory ----

// Of a block. What the pass has there of its own, `values`, lies between the weight and the sums.
template <class T, int PAIRS, int WARPS>
struct BlockOfCluster {
  using Depth = Operands<T, PAIRS>;
  static constexpr int SUMS = SUMS_OF_GROUP<PAIRS, WARPS>;
  int groups;
  unsigned sum_buffers;  // 1 or 2, a constant of the kernel
  uint4* kept;           // [groups, weight.kept, SIZE]
  T* values;
  float* sums;         // [sum_buffers, groups, SUMS]
  RowOfBlock* rows;    // [RAYS]
  Arrivals* arrivals;  // [2], of what comes at every second step

  // Bytes besides the weight.
  static size_t bytes(int64_t n_values, int groups, int sum_buffers) {
    const size_t sums = sum_buffers * groups * SUMS * sizeof(float);
    return n_values * sizeof(T) + sums + RAYS * sizeof(RowOfBlock) + 2 * sizeof(Arrivals);
  }
  __device__ __forceinline__ BlockOfCluster(unsigned char* shared, int64_t n_values, const WideWeight& weight,
                                            int groups, int sum_buffers)
      : groups(groups), sum_buffers(sum_buffers), kept(reinterpret_cast<uint4*>(shared)) {
    values = reinterpret_cast<T*>(kept + groups * weight.kept * Depth::SIZE);
    sums = reinterpret_cast<float*>(values + n_values);
    rows = reinterpret_cast<RowOfBlock*>(sums + sum_buffers * groups * SUMS);
    arrivals = reinterpret_cast<Arrivals*>(rows + RAYS);
  }
  __device__ __forceinline__ float* sums_of(int group, unsigned step) const {
    return sums + (step % sum_buffers * groups + group) * SUMS;
  }
  __device__ __forceinline__ Arrivals& arrival(unsigned step) const { return arrivals[step % 2]; }
  // Until a warp may write sums of the next step: with two buffers, at once. Products, which come first, take all
  // lanes.
  __device__ __forceinline__ void await_sums(int group) const {
    if (WARPS > 1 && sum_buffers == 1)
      wait_for_group(group, 32 * WARPS);  // they are read
    else
      __syncwarp();
  }
  // Once, by all threads of all blocks; none sends before all have come here. The weight becomes that of its groups.
  __device__ __forceinline__ void begin(WideWeight& weight, const LltmShape& s, int first_group) const {
    start_arrivals(arrivals, 2);
    find_rows(rows, RAYS, s, blockIdx.x / blocks_of_cluster());
    __syncthreads();  // racecheck knows of no barrier of a cluster
    weight.ordered += int64_t(first_group) * weight.depths * Depth::SIZE;
    keep_first<Depth>(kept, weight, max(0, min(groups, sixteens(s.n_state) - first_group)));
    sync_cluster();
  }
};

// ---- words ----

template <class T>
__device__ __forceinline__ unsigned word_of(const float (&values)[WORD<T>]) {
  if constexpr (sizeof(T) == 2)
    return pack<T>(values[0], values[1]);
  else
    return __float_as_uint(values[0]);
}

// Of a row of n_state units; of those that are not there, anything. FULL: all of them are, and the word is aligned.
template <bool FULL, class T>
__device__ __forceinline__ Word<T> load_word(const T* row, int unit, int n_state) {
  if constexpr (FULL) {
    return *reinterpret_cast<const Word<T>*>(row + unit);
  } else {
    Word<T> out;
#pragma unroll
    for (int k = 0; k < WORD<T>; ++k) out.v[k] = row[unit + k < n_state ? unit + k : 0];
    return out;
  }
}

// The same as numbers; zero where ray or unit are not there.
template <class T>
__device__ __forceinline__ void load_own(const T* all, int64_t ray, int unit, int n_state, float (&to)[WORD<T>]) {
#pragma unroll
  for (int k = 0; k < WORD<T>; ++k) to[k] = ray >= 0 && unit + k < n_state ? float(all[ray * n_state + unit + k]) : 0.f;
}

// Those units that are there, which no one reads soon.
template <bool FULL, class T>
__device__ __forceinline__ void store_word(T* row, int unit, int n_state, const float (&values)[WORD<T>]) {
  if constexpr (FULL) {
    __stcs(reinterpret_cast<unsigned*>(row + unit), word_of<T>(values));
  } else {
#pragma unroll
    for (int k = 0; k < WORD<T>; ++k)
      if (unit + k < n_state) row[unit + k] = T(values[k]);
  }
}

// Calls f with whether a thread's words are full.
template <class T, class F>
__device__ __forceinline__ void with_full(int unit, int n_state, const F& f) {
  n_state % WORD<T> == 0 && unit < n_state ? f(std::true_type()) : f(std::false_type());
}

// A thread's words of h and c, or of their gradients, along its rays.
template <class T, int WARPS>
struct StateWords {
  using Own = OwnWords<T, WARPS>;
  static constexpr int N = WORD<T>, COUNT = Own::COUNT;
  const Own own;
  const int n_state, unit;  // unit: the first of a word, of all
  float h[COUNT][N], c[COUNT][N];

  __device__ __forceinline__ StateWords(const T* all_h, const T* all_c, const RowOfBlock* rows, int first_unit,
                                        int n_state)
      : n_state(n_state), unit(first_unit + own.unit) {
#pragma unroll
    for (int j = 0; j < COUNT; ++j) {
      const int64_t ray = rows[own.any() ? row(j) : 0].ray;
      load_own(all_h, ray, unit, n_state, h[j]), load_own(all_c, ray, unit, n_state, c[j]);
    }
  }
  __device__ __forceinline__ int row(int j) const { return own.row + j * Own::ROWS; }
  __device__ __forceinline__ void end(T* all_h, T* all_c, const RowOfBlock* rows) const {
#pragma unroll
    for (int j = 0; j < COUNT; ++j) {
      const int64_t ray = rows[row(j)].ray;
      if (ray < 0) continue;
      store_word<false>(all_h + ray * n_state, unit, n_state, h[j]);
      store_word<false>(all_c + ray * n_state, unit, n_state, c[j]);
    }
  }
};

}  // namespace
}  // namespace nerfkit
