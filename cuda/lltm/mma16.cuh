// SPDX-License-Identifier: Apache-2.0
// A group of warps walks 16 rays together, a warp for 16 units of the state. The products of a step run on tensor
// cores; the weight stays in registers (half types) or in shared memory (float32), so that a step reads nothing but its
// samples. float32 splits every operand into two parts of 11 bits and adds three products.

#pragma once

#include "common/mma.cuh"
#include "lltm/args.h"

namespace nerfkit {
namespace {

constexpr int RAYS = 16;   // of a group
constexpr int UNITS = 16;  // of a warp

template <class T>
struct LltmArrays {
  const T *input, *weight, *bias, *h0, *c0;
  T *h, *h_n, *c_n, *activated, *c, *before;
  LltmShape shape;
};

template <class T>
struct LltmGradients {
  const T *h, *h_n, *c_n, *weight, *activated, *c;
  T *gates, *h0, *c0;
  acc_t<T>* bias;  // [BIAS_PARTS, 3H]
  LltmShape shape;
};

// ---- products with tensor cores ----
//
// Lane 4 g + t holds, of an accumulator of 16 rows and 8 columns: (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1).
// Two accumulators stand for 16 neighbouring columns, shared out so that a lane has 4 neighbours, 4t .. 4t + 3, of rows
// g and g + 8: a quad. Operands are taken in the same places. Half types go 16 deep in one product, float32 8 deep.

template <class T>
struct alignas(4 * sizeof(T)) Quad {
  T v[4];
};

// The column that lane row g of accumulator p stands for.
__device__ __forceinline__ int column_of(int g, int p) { return 4 * (g / 2) + 2 * p + g % 2; }

template <class T>
struct Tile {  // half types
  static constexpr int DEPTH = 16;
  static constexpr bool IN_REGISTERS = true;
  struct alignas(8) Weight {  // a lane's part of DEPTH x 8 weights
    unsigned value[2];
  };
  struct Rows {  // a lane's part of 16 x DEPTH values
    unsigned value[4];
  };
  // at(k): weight of depth k, 0 to 15, in this lane's column
  template <class F>
  static __device__ __forceinline__ Weight weight(int t, int, const F& at) {
    return {{pack<T>(at(4 * t), at(4 * t + 1)), pack<T>(at(4 * t + 2), at(4 * t + 3))}};
  }
  static __device__ __forceinline__ Rows rows(const Quad<T>& low, const Quad<T>& high, int) {
    const uint2 &a = reinterpret_cast<const uint2&>(low), &b = reinterpret_cast<const uint2&>(high);
    return {{a.x, b.x, a.y, b.y}};
  }
  static __device__ __forceinline__ void product(float (&sum)[4], const Rows& a, const Weight& b) {
    mma(T(), sum, a.value[0], a.value[1], a.value[2], a.value[3], b.value[0], b.value[1]);
  }
};

template <>
struct Tile<float> {
  static constexpr int DEPTH = 8;
  static constexpr bool IN_REGISTERS = false;
  struct alignas(16) Weight {
    unsigned high[2], low[2];
  };
  struct Rows {
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
  static __device__ __forceinline__ Weight weight(int t, int half, const F& at) {
    Weight out{};
    split(at(4 * t + 2 * half), out.high[0], out.low[0]);
    split(at(4 * t + 2 * half + 1), out.high[1], out.low[1]);
    return out;
  }
  static __device__ __forceinline__ Rows rows(const Quad<float>& low, const Quad<float>& high, int half) {
    Rows out{};
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
  static __device__ __forceinline__ void product(float (&sum)[4], const Rows& a, const Weight& b) {
    one_product(sum, a.low, b.high);
    one_product(sum, a.high, b.low);
    one_product(sum, a.high, b.high);
  }
};

// ---- the cell in float32, as fast as the element type allows ----

template <class T>
__device__ __forceinline__ float fast_tanh(float x) {
  if constexpr (sizeof(T) == 4) {
    return 1.f - __fdividef(2.f, __expf(2.f * x) + 1.f);
  } else {
    float y;
#if __CUDA_ARCH__ >= 750
    asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
#else
    y = tanhf(x);
#endif
    return y;
  }
}

template <class T>
__device__ __forceinline__ Gates<float> fast_activate(float a_i, float a_o, float a_g) {
  auto open = [](float a) {
    if constexpr (sizeof(T) == 4) return __fdividef(1.f, 1.f + __expf(-a));
    return 0.5f + 0.5f * fast_tanh<T>(0.5f * a);
  };
  return {open(a_i), open(a_o), a_g > 0 ? a_g : __expf(a_g) - 1.f};
}

// ---- 16 rays ----

template <class T, int H>
struct Group {
  static constexpr int WARPS = H / UNITS, THREADS = 32 * WARPS;
  // Groups of a block, at most: many where they share the weight. Fewer where there are not enough rays for all
  // processors.
  static constexpr int FLOAT_WARPS = 8;
  static constexpr int MOST = Tile<T>::IN_REGISTERS ? (WARPS < 4 ? 4 / WARPS : 1) : FLOAT_WARPS / WARPS;
  static constexpr int OF_BLOCK = THREADS * MOST;
};

// Whether a processor has one block only: a thread may have more registers.
template <class T, int H, int I>
constexpr bool ALONE = !Tile<T>::IN_REGISTERS && (H > 32 || I > 16);

__device__ __forceinline__ void wait_for_group(int group, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "r"(threads) : "memory");
}

// This lane's two rows: those of rays g and g + 8.
struct LaneRows {
  int64_t ray[2], first[2], last_sample;
  int length[2];
  int longest;  // of the group's rays

  // The sample of row r at a step, or where it has none, one that is there.
  __device__ __forceinline__ int64_t sample(int r, int step) const { return min(first[r] + max(step, 0), last_sample); }
  // The same for rays.
  __device__ __forceinline__ int64_t real_ray(int r) const { return ray[r] < 0 ? 0 : ray[r]; }
};

__device__ __forceinline__ LaneRows rows_of_lane(const LltmShape& s, int64_t tile, int g) {
  LaneRows rows;
  rows.last_sample = s.n_samples > 0 ? s.n_samples - 1 : 0;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int64_t place = tile * RAYS + g + 8 * r;
    const bool real = place < s.n_rays;
    rows.ray[r] = real && s.order ? s.order[place] : place;
    rows.first[r] = real ? s.ray_offsets[rows.ray[r]] : 0;
    rows.length[r] = real ? int(s.ray_offsets[rows.ray[r] + 1] - rows.first[r]) : 0;
    if (!real) rows.ray[r] = -1;
  }
  rows.longest = rows.length[0] > rows.length[1] ? rows.length[0] : rows.length[1];
  for (int offset = 16; offset >= 4; offset /= 2) {
    const int other = __shfl_xor_sync(FULL_MASK, rows.longest, offset);
    rows.longest = other > rows.longest ? other : rows.longest;
  }
  return rows;
}

// Columns column .. column + 3 of a row; zero beyond its end, and where it is not real. FULL: all columns are there,
// and there are no branches, between which loads would wait for each other; of a row that is not real, anything is
// read.
template <bool FULL, class T>
__device__ __forceinline__ Quad<T> load_quad(const T* row, int column, int columns, bool real) {
  if constexpr (FULL) {
    return *reinterpret_cast<const Quad<T>*>(row + column);
  } else {
    Quad<T> out{{T(0.f), T(0.f), T(0.f), T(0.f)}};
    if (!real || column >= columns) return out;
    if (columns % 4 == 0) return *reinterpret_cast<const Quad<T>*>(row + column);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (column + i < columns) out.v[i] = row[column + i];
    return out;
  }
}

template <bool FULL, class T>
__device__ __forceinline__ void store_quad(T* row, int column, int columns, bool real, const float (&values)[4]) {
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
__device__ __forceinline__ void fetch_ahead(const T* row, int columns) {
  const int t = threadIdx.x % 4;
  for (int column = t * (32 / int(sizeof(T))); column < columns; column += 4 * (32 / int(sizeof(T))))
    asm volatile("prefetch.global.L2 [%0];" ::"l"(row + column));
}

constexpr int AHEAD = 6;     // steps that memory is asked for before they are taken
constexpr int PADDING = 16;  // between rows in shared memory, against bank conflicts

// ---- the weight ----

// The COUNT weights of a warp are in registers, or in shared memory, [parts, COUNT, 32], where the groups of a block
// fill it together: `own` and `shared`, of which one is in use.
template <class T, int COUNT>
using OwnWeights = typename Tile<T>::Weight[Tile<T>::IN_REGISTERS ? COUNT : 1];

template <class T, int COUNT, class F>
__device__ __forceinline__ void keep_weights(OwnWeights<T, COUNT>& own, typename Tile<T>::Weight* shared, int part,
                                             int lane, int group, int groups, const F& weight_of) {
  if constexpr (Tile<T>::IN_REGISTERS) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) own[i] = weight_of(i);
  } else {
    for (int i = group; i < COUNT; i += groups) shared[(part * COUNT + i) * 32 + lane] = weight_of(i);
  }
}

// Adds the products with columns 16 quad .. 16 quad + 15, of which a lane has four of each of its rows. The weight at
// depth d of accumulator p of a gate is number (p * GATES + gate) * DEPTHS + d.
template <class T, int GATES, int COUNT>
__device__ __forceinline__ void add_products(float (&sum)[GATES][2][4], const OwnWeights<T, COUNT>& own,
                                             const typename Tile<T>::Weight* shared, int part, int lane, int quad,
                                             const Quad<T>& low, const Quad<T>& high) {
  using Op = Tile<T>;
  constexpr int PARTS = 16 / Op::DEPTH, DEPTHS = COUNT / GATES / 2;
#pragma unroll
  for (int half = 0; half < PARTS; ++half) {
    const typename Op::Rows in = Op::rows(low, high, half);
    const int d = quad * PARTS + half;
#pragma unroll
    for (int p = 0; p < 2; ++p)
#pragma unroll
      for (int gate = 0; gate < GATES; ++gate) {
        const int i = (p * GATES + gate) * DEPTHS + d;
        if constexpr (Op::IN_REGISTERS)
          Op::product(sum[gate][p], in, own[i]);
        else
          Op::product(sum[gate][p], in, shared[(part * COUNT + i) * 32 + lane]);
      }
  }
}

}  // namespace
}  // namespace nerfkit
