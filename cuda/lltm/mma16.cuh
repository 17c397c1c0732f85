// SPDX-License-Identifier: Apache-2.0
// A group of warps takes 16 rays together, one warp for 16 units of the state. The products of a step run on tensor
// cores; the weight stays in registers (half types) or in shared memory (float32), so that a step reads nothing but its
// samples. float32 splits every operand into two parts of 11 bits and adds three products.

#pragma once

#include "lltm/fast_cell.cuh"
#include "lltm/launchers.cuh"

namespace nerfkit {
namespace {

constexpr int RAYS = 16;   // of a group
constexpr int UNITS = 16;  // of a warp

// ---- products with tensor cores ----
//
// Lane 4 g + t holds, of an accumulator of 16 rows and 8 columns: (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1).
// Two accumulators stand for 16 neighbouring columns, shared out so that a lane has 4 neighbours, 4t .. 4t + 3, of rows
// g and g + 8: a Vec4. Operands are taken in the same places. Half types go 16 deep in one product, float32 8 deep.

template <class T>
using Vec4 = Vec<T, 4>;

// The column that lane row g of accumulator p stands for.
__device__ __forceinline__ int column_of(int g, int p) { return 4 * (g / 2) + 2 * p + g % 2; }

template <class T>
struct MmaOperand {  // half types
  static constexpr int K = 16;
  static constexpr bool IN_REGISTERS = true;
  struct alignas(8) BFragment {  // a lane's part of K x 8 weights
    unsigned value[2];
  };
  struct AFragment {  // a lane's part of 16 x K values
    unsigned value[4];
  };
  // at(k): weight of depth k, 0 to 15, in this lane's column
  template <class F>
  static __device__ __forceinline__ BFragment b_fragment(int t, int, const F& at) {
    return {{pack<T>(at(4 * t), at(4 * t + 1)), pack<T>(at(4 * t + 2), at(4 * t + 3))}};
  }
  static __device__ __forceinline__ AFragment a_fragment(const Vec4<T>& low, const Vec4<T>& high, int) {
    const uint2 &a = reinterpret_cast<const uint2&>(low), &b = reinterpret_cast<const uint2&>(high);
    return {{a.x, b.x, a.y, b.y}};
  }
  static __device__ __forceinline__ void product(float (&sum)[4], const AFragment& a, const BFragment& b) {
    mma(T(), sum, a.value[0], a.value[1], a.value[2], a.value[3], b.value[0], b.value[1]);
  }
};

template <>
struct MmaOperand<float> {
  static constexpr int K = 8;
  static constexpr bool IN_REGISTERS = false;
  struct alignas(16) BFragment {
    unsigned high[2], low[2];
  };
  struct AFragment {
    unsigned high[4], low[4];
  };
  // The nearest number of 11 bits, and what is left, of which products take the first 11, as all GPUs so far do without
  // being asked. (cvt.rna.tf32 is five instructions.)
  static __device__ __forceinline__ void split(float value, unsigned& high, unsigned& low) {
    constexpr unsigned LAST = 1u << 13;  // of the bits that products take
    high = (__float_as_uint(value) + LAST / 2) & ~(LAST - 1);
    low = __float_as_uint(value - __uint_as_float(high));
  }
  // half: which 8 of 16 columns, those of accumulator 0 or 1
  template <class F>
  static __device__ __forceinline__ BFragment b_fragment(int t, int half, const F& at) {
    BFragment out{};
    split(at(4 * t + 2 * half), out.high[0], out.low[0]);
    split(at(4 * t + 2 * half + 1), out.high[1], out.low[1]);
    return out;
  }
  static __device__ __forceinline__ AFragment a_fragment(const Vec4<float>& low, const Vec4<float>& high, int half) {
    AFragment out{};
    split(half ? low.v[2] : low.v[0], out.high[0], out.low[0]);
    split(half ? high.v[2] : high.v[0], out.high[1], out.low[1]);
    split(half ? low.v[3] : low.v[1], out.high[2], out.low[2]);
    split(half ? high.v[3] : high.v[1], out.high[3], out.low[3]);
    return out;
  }
  static __device__ __forceinline__ void one_product(float (&sum)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
  }
  static __device__ __forceinline__ void product(float (&sum)[4], const AFragment& a, const BFragment& b) {
    one_product(sum, a.low, b.high);
    one_product(sum, a.high, b.low);
    one_product(sum, a.high, b.high);
  }
};

// ---- 16 rays ----

template <class T, int H>
struct Group {
  static constexpr int WARPS = H / UNITS, THREADS = 32 * WARPS;
  // Groups of a block, at most: many where they share the weight. Fewer where there are not enough rays for all
  // multiprocessors.
  static constexpr int FLOAT_WARPS = 8;
  static constexpr int MAX_GROUPS = MmaOperand<T>::IN_REGISTERS ? (WARPS < 4 ? 4 / WARPS : 1) : FLOAT_WARPS / WARPS;
  static constexpr int BLOCK_THREADS = THREADS * MAX_GROUPS;
};

// Whether a multiprocessor has one block only: a thread may have more registers.
template <class T, int H, int I>
constexpr bool ONE_BLOCK = !MmaOperand<T>::IN_REGISTERS && (H > 32 || I > 16);

__device__ __forceinline__ void sync_group(int group, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "r"(threads) : "memory");
}

// This lane's two rows: those of rays g and g + 8.
struct LaneRays {
  int64_t ray[2], first[2], last_sample;
  int length[2];
  int longest;  // of the group's rays

  // The sample of row r at a step, or where it has none, one that is there.
  __device__ __forceinline__ int64_t sample(int r, int step) const { return min(first[r] + max(step, 0), last_sample); }
  // The same for rays.
  __device__ __forceinline__ int64_t real_ray(int r) const { return ray[r] < 0 ? 0 : ray[r]; }
};

__device__ __forceinline__ LaneRays lane_rays(const LltmShape& s, int64_t tile, int g) {
  LaneRays rays;
  rays.last_sample = s.n_samples > 0 ? s.n_samples - 1 : 0;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int64_t rank = tile * RAYS + g + 8 * r;
    const bool real = rank < s.n_rays;
    rays.ray[r] = real && s.order ? s.order[rank] : rank;
    rays.first[r] = real ? s.ray_offsets[rays.ray[r]] : 0;
    rays.length[r] = real ? int(s.ray_offsets[rays.ray[r] + 1] - rays.first[r]) : 0;
    if (!real) rays.ray[r] = -1;
  }
  rays.longest = longest_ray(max(rays.length[0], rays.length[1]));
  return rays;
}

// Columns column .. column + 3 of a row; zero beyond its end, and where it is not real. FULL: all columns are there,
// and there are no branches, between which loads would wait for each other; of a row that is not real, anything is
// read.
template <bool FULL, class T>
__device__ __forceinline__ Vec4<T> load_vec4(const T* row, int column, int columns, bool real) {
  if constexpr (FULL) {
    return *reinterpret_cast<const Vec4<T>*>(row + column);
  } else {
    Vec4<T> out{{T(0.f), T(0.f), T(0.f), T(0.f)}};
    if (!real || column >= columns) return out;
    if (columns % 4 == 0) return *reinterpret_cast<const Vec4<T>*>(row + column);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (column + i < columns) out.v[i] = row[column + i];
    return out;
  }
}

template <bool FULL, class T>
__device__ __forceinline__ void store_vec4(T* row, int column, int columns, bool real, const float (&values)[4]) {
  if (!real || (!FULL && column >= columns)) return;
  if constexpr (FULL) {
    store(row + column, values);
  } else {
    if (columns % 4 == 0) return store(row + column, values);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (column + i < columns) row[column + i] = T(values[i]);
  }
}

// Brings a row of `columns` into the second-level cache; a lane for every 32 bytes of it.
template <class T>
__device__ __forceinline__ void prefetch_row_l2(const T* row, int columns) {
  const int t = threadIdx.x % 4;
  for (int column = t * (32 / int(sizeof(T))); column < columns; column += 4 * (32 / int(sizeof(T))))
    asm volatile("prefetch.global.L2 [%0];" ::"l"(row + column));
}

constexpr int PREFETCH_STEPS = 6;  // how far ahead of a step its samples are brought to L2
constexpr int PADDING = 16;        // elements between rows in shared memory, against bank conflicts

// ---- the weight ----

// The COUNT weights of a warp are in registers, or in shared memory, [warps of a group, COUNT, 32], where the groups of
// a block fill it together: `own` and `shared`, of which one is in use.
template <class T, int COUNT>
using RegisterWeights = typename MmaOperand<T>::BFragment[MmaOperand<T>::IN_REGISTERS ? COUNT : 1];

template <class T, int COUNT, class F>
__device__ __forceinline__ void stage_weights(RegisterWeights<T, COUNT>& own, typename MmaOperand<T>::BFragment* shared,
                                              int warp, int lane, int group, int groups, const F& weight_of) {
  if constexpr (MmaOperand<T>::IN_REGISTERS) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) own[i] = weight_of(i);
  } else {
    for (int i = group; i < COUNT; i += groups) shared[(warp * COUNT + i) * 32 + lane] = weight_of(i);
  }
}

// Adds the products with columns 16 k_block .. 16 k_block + 15, of which a lane has four of each of its rows. The
// weight at depth d of accumulator p of a gate is number (p * GATES + gate) * K_STEPS + d.
template <class T, int GATES, int COUNT>
__device__ __forceinline__ void add_products(float (&sum)[GATES][2][4], const RegisterWeights<T, COUNT>& own,
                                             const typename MmaOperand<T>::BFragment* shared, int warp, int lane,
                                             int k_block, const Vec4<T>& low, const Vec4<T>& high) {
  using Op = MmaOperand<T>;
  constexpr int MMAS = 16 / Op::K, K_STEPS = COUNT / GATES / 2;
#pragma unroll
  for (int half = 0; half < MMAS; ++half) {
    const typename Op::AFragment in = Op::a_fragment(low, high, half);
    const int d = k_block * MMAS + half;
#pragma unroll
    for (int p = 0; p < 2; ++p)
#pragma unroll
      for (int gate = 0; gate < GATES; ++gate) {
        const int i = (p * GATES + gate) * K_STEPS + d;
        if constexpr (Op::IN_REGISTERS)
          Op::product(sum[gate][p], in, own[i]);
        else
          Op::product(sum[gate][p], in, shared[(warp * COUNT + i) * 32 + lane]);
      }
  }
}

// Sums over a group's rays: a lane's four units unit .. unit + 3, of each gate. row: of BIAS_PARTIALS, [3, n_state].
__device__ __forceinline__ void store_bias(float* row, const float (&bias)[3][4], int unit, int n_state) {
#pragma unroll
  for (int gate = 0; gate < 3; ++gate)
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      float sum = bias[gate][k];
      for (int offset = 16; offset >= 4; offset /= 2) sum += __shfl_xor_sync(FULL_MASK, sum, offset);
      if (threadIdx.x % 32 < 4 && unit + k < n_state) row[gate * n_state + unit + k] = sum;
    }
}

// ---- launches ----

// Calls f with n rounded up to 16, 32 or 64, a constant.
template <class F>
void with_size(int n, const F& f) {
  if (n <= 16) return f(std::integral_constant<int, 16>());
  if (n <= 32) return f(std::integral_constant<int, 32>());
  return f(std::integral_constant<int, 64>());
}

// of_block, of_group: bytes of shared memory. False, and nothing is launched, where there is too little of it.
template <class Size, class Kernel, class Arguments, class Saved>
bool launch_mma16(Kernel kernel, const Arguments& a, const Saved& saved, size_t of_block, size_t of_group,
                  const LltmLaunch& on) {
  const Gpu& gpu = on.gpu;
  const int64_t tiles = (a.shape.n_rays + RAYS - 1) / RAYS;
  const int64_t fit = (int64_t(gpu.shared_bytes) - int64_t(of_block)) / int64_t(of_group);
  if (fit < 1) return false;
  const int64_t most = std::min<int64_t>(fit, Size::MAX_GROUPS);
  const int64_t groups = std::clamp<int64_t>((tiles + gpu.processors - 1) / gpu.processors, 1, most);
  const size_t shared = of_block + groups * of_group;
  const int threads = int(groups) * Size::THREADS;
  allow_shared(kernel, gpu);
  int resident = 0;  // blocks of a multiprocessor
  cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, threads, shared);
  if (resident == 0) return false;
  const int64_t most_blocks = std::min<int64_t>(int64_t(resident) * gpu.processors, BIAS_PARTIALS / groups);
  const int64_t blocks = std::min<int64_t>((tiles + groups - 1) / groups, most_blocks);
  kernel<<<unsigned(blocks), threads, shared, on.stream>>>(a, saved, int(tiles));
  return true;
}

}  // namespace
}  // namespace nerfkit
