// SPDX-License-Identifier: Apache-2.0
// A group of warps walks 16 rays together, a warp for 16 units of the state. The products of a step run on tensor cores;
// the weight stays in registers (half types) or in shared memory (float32), so that a step reads nothing but its samples.
// float32 splits every operand into two parts of 11 bits and adds three products.

#pragma once

#include "lltm.h"
#include "tensor_cores.cuh"

namespace nerfkit {
namespace {

constexpr int RAYS = 16;         // of a group
constexpr int UNITS = 16;        // of a warp
constexpr int WIDEST_STATE = 64;  // of the tensor cores' kernels
constexpr int WIDEST_INPUT = 64;

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
// Two accumulators stand for 16 neighbouring columns, shared out so that a lane has 4 neighbours, 4t .. 4t + 3, of rows g
// and g + 8: a quad. Operands are taken in the same places. Half types go 16 deep in one product, float32 8 deep.

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
    add_product(T(), sum, a.value[0], a.value[1], a.value[2], a.value[3], b.value[0], b.value[1]);
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
  static __device__ __forceinline__ void split(float value, unsigned& high, unsigned& low) {
#if __CUDA_ARCH__ >= 800
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(high) : "f"(value));
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(low) : "f"(value - __uint_as_float(high)));
#endif
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
  static constexpr int WARPS = H / UNITS;
  // Blocks of many groups where they share the weight.
  static constexpr int FLOAT_WARPS = 8;
  static constexpr int GROUPS = Tile<T>::IN_REGISTERS ? (WARPS < 4 ? 4 / WARPS : 1) : FLOAT_WARPS / WARPS;
  static constexpr int THREADS = 32 * WARPS * GROUPS;
};

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
    const int other = __shfl_xor_sync(ALL_LANES, rows.longest, offset);
    rows.longest = other > rows.longest ? other : rows.longest;
  }
  return rows;
}

// Columns column .. column + 3 of a row; zero beyond its end, and where it is not real. FULL: all columns are there, and
// there are no branches, between which loads would wait for each other; of a row that is not real, anything is read.
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

constexpr int AHEAD = 6;  // steps that memory is asked for before they are taken

constexpr int PADDING = 16;  // between rows in shared memory, against bank conflicts

// H and I are the sizes, rounded up to a multiple of 16; what is added is zero and stays zero.
template <class T, int H, int I, bool FULL>
__global__ void __launch_bounds__(Group<T, H>::THREADS) forward_tiles(const LltmArrays<T> a, int64_t tiles) {
  using Op = Tile<T>;
  using Weight = typename Op::Weight;
  constexpr int PARTS = 16 / Op::DEPTH, QUADS_H = H / 16, QUADS = QUADS_H + I / 16, DEPTHS = QUADS * PARTS;
  constexpr int WARPS = Group<T, H>::WARPS, GROUPS = Group<T, H>::GROUPS, WEIGHTS = 2 * 3 * DEPTHS;  // of a warp
  extern __shared__ __align__(16) unsigned char shared[];
  T* states = reinterpret_cast<T*>(shared);                              // [GROUPS, 2, RAYS, H + PADDING]
  float* biases = reinterpret_cast<float*>(states + GROUPS * 2 * RAYS * (H + PADDING));  // [3, H]
  Weight* weights = reinterpret_cast<Weight*>(biases + 3 * H);           // [WARPS, WEIGHTS, 32]
  const int n_state = a.shape.n_state, n_input = a.shape.n_input, columns = n_state + n_input;
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int part = threadIdx.x / 32 % WARPS, group = threadIdx.x / 32 / WARPS, unit0 = part * UNITS;

  auto weight_of = [&](int i) {  // i = (p * 3 + gate) * DEPTHS + d
    const int d = i % DEPTHS, gate = i / DEPTHS % 3, p = i / DEPTHS / 3, quad = d / PARTS;
    const int unit = unit0 + column_of(g, p);
    const T* row = a.weight + int64_t(gate * n_state + unit) * columns;
    return Op::weight(t, d % PARTS, [&](int k) {
      const bool is_h = quad < QUADS_H;
      const int column = (is_h ? quad : quad - QUADS_H) * 16 + k;
      return unit < n_state && column < (is_h ? n_state : n_input) ? float(row[is_h ? column : n_state + column]) : 0.f;
    });
  };
  Weight own[Op::IN_REGISTERS ? WEIGHTS : 1];
  if constexpr (Op::IN_REGISTERS) {
#pragma unroll
    for (int i = 0; i < WEIGHTS; ++i) own[i] = weight_of(i);
  } else {
    for (int i = group; i < WEIGHTS; i += GROUPS) weights[(part * WEIGHTS + i) * 32 + lane] = weight_of(i);
  }
  for (int i = threadIdx.x; i < 3 * H; i += Group<T, H>::THREADS)
    biases[i] = i % H < n_state ? float(a.bias[i / H * n_state + i % H]) : 0.f;
  __syncthreads();

  T* state = states + group * 2 * RAYS * (H + PADDING);
  auto place = [&](int buffer, int r) { return state + (buffer * RAYS + g + 8 * r) * (H + PADDING); };
  const int unit = unit0 + 4 * t;  // the first of this lane's four

  for (int64_t tile = int64_t(blockIdx.x) * GROUPS + group; tile < tiles; tile += int64_t(gridDim.x) * GROUPS) {
    const LaneRows rows = rows_of_lane(a.shape, tile, g);
    float c[2][4];
    int now = 0;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const bool real = rows.ray[r] >= 0;
      const Quad<T> start = load_quad<FULL>(a.c0 + rows.real_ray(r) * n_state, unit, n_state, real);
#pragma unroll
      for (int k = 0; k < 4; ++k) c[r][k] = float(start.v[k]);
      *reinterpret_cast<Quad<T>*>(place(now, r) + unit) = load_quad<FULL>(a.h0 + rows.real_ray(r) * n_state, unit, n_state, real);
    }
    Quad<T> x[I / 16][2];
    auto load_input = [&](int step) {
#pragma unroll
      for (int i = 0; i < I / 16; ++i)
#pragma unroll
        for (int r = 0; r < 2; ++r)
          x[i][r] = load_quad<FULL>(a.input + rows.sample(r, step) * n_input, 16 * i + 4 * t, n_input, step < rows.length[r]);
    };
    if (Op::IN_REGISTERS) load_input(0);
    wait_for_group(group, 32 * WARPS);
    for (int step = 0; step < rows.longest; ++step) {
      if (!Op::IN_REGISTERS) load_input(step);
      float sum[3][2][4];
#pragma unroll
      for (int gate = 0; gate < 3; ++gate) {
        const float4 start = *reinterpret_cast<const float4*>(biases + gate * H + unit);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          sum[gate][0][2 * r] = start.x, sum[gate][0][2 * r + 1] = start.y;
          sum[gate][1][2 * r] = start.z, sum[gate][1][2 * r + 1] = start.w;
        }
      }
      auto add_products = [&](int quad, const Quad<T>& low, const Quad<T>& high) {
#pragma unroll
        for (int half = 0; half < PARTS; ++half) {
          const typename Op::Rows in = Op::rows(low, high, half);
          const int d = quad * PARTS + half;
#pragma unroll
          for (int p = 0; p < 2; ++p)
#pragma unroll
            for (int gate = 0; gate < 3; ++gate) {
              const int i = (p * 3 + gate) * DEPTHS + d;
              if constexpr (Op::IN_REGISTERS)
                Op::product(sum[gate][p], in, own[i]);
              else
                Op::product(sum[gate][p], in, weights[(part * WEIGHTS + i) * 32 + lane]);
            }
        }
      };
#pragma unroll
      for (int quad = 0; quad < QUADS_H; ++quad)
        add_products(quad, *reinterpret_cast<const Quad<T>*>(place(now, 0) + 16 * quad + 4 * t),
                     *reinterpret_cast<const Quad<T>*>(place(now, 1) + 16 * quad + 4 * t));
#pragma unroll
      for (int i = 0; i < I / 16; ++i) add_products(QUADS_H + i, x[i][0], x[i][1]);
      if (Op::IN_REGISTERS) load_input(step + 1);  // arrives while this step is computed
      if (FULL && part == 0)
#pragma unroll
        for (int r = 0; r < 2; ++r) fetch_ahead(a.input + rows.sample(r, step + AHEAD) * n_input, n_input);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const bool active = step < rows.length[r];
        const int64_t n = rows.first[r] + step;
        float h[4], act[3][4];
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const int e = 2 * r + k % 2;
          const Gates<float> gates = fast_activate<T>(sum[0][k / 2][e], sum[1][k / 2][e], sum[2][k / 2][e]);
          if (active) c[r][k] += gates.g * gates.i;
          h[k] = fast_tanh<T>(c[r][k]) * gates.o;
          act[0][k] = gates.i, act[1][k] = gates.o, act[2][k] = gates.g;
        }
        T* next = place(now ^ 1, r) + unit;
        if (active)
          store(next, h);
        else
          *reinterpret_cast<Quad<T>*>(next) = *reinterpret_cast<const Quad<T>*>(place(now, r) + unit);
        store_quad<FULL>(a.h + n * n_state, unit, n_state, active, h);
        if (!a.activated) continue;
        store_quad<FULL>(a.c + n * n_state, unit, n_state, active, c[r]);
        float before[4];
        load(place(now, r) + unit, before);
        store_quad<FULL>(a.before + n * n_state, unit, n_state, active, before);
#pragma unroll
        for (int gate = 0; gate < 3; ++gate)
          store_quad<FULL>(a.activated + (3 * n + gate) * n_state, unit, n_state, active, act[gate]);
      }
      now ^= 1;
      wait_for_group(group, 32 * WARPS);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const bool real = rows.ray[r] >= 0;
      float h[4];
      load(place(now, r) + unit, h);
      store_quad<FULL>(a.h_n + rows.ray[r] * n_state, unit, n_state, real, h);
      store_quad<FULL>(a.c_n + rows.ray[r] * n_state, unit, n_state, real, c[r]);
    }
  }
}

template <class T, int H, bool FULL>
__global__ void __launch_bounds__(Group<T, H>::THREADS) backward_tiles(const LltmGradients<T> a, int64_t tiles) {
  using Op = Tile<T>;
  using Weight = typename Op::Weight;
  constexpr int PARTS = 16 / Op::DEPTH, QUADS = 3 * H / 16, DEPTHS = QUADS * PARTS;
  constexpr int WARPS = Group<T, H>::WARPS, GROUPS = Group<T, H>::GROUPS, WEIGHTS = 2 * DEPTHS, ROW = 3 * H + PADDING;
  extern __shared__ __align__(16) unsigned char shared[];
  T* grads = reinterpret_cast<T*>(shared);  // [GROUPS, 2, RAYS, ROW], of the gates
  Weight* weights = reinterpret_cast<Weight*>(grads + GROUPS * 2 * RAYS * ROW);
  const int n_state = a.shape.n_state, columns = n_state + a.shape.n_input;
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int part = threadIdx.x / 32 % WARPS, group = threadIdx.x / 32 / WARPS, unit0 = part * UNITS;

  auto weight_of = [&](int i) {  // i = p * DEPTHS + d
    const int d = i % DEPTHS, p = i / DEPTHS, to = unit0 + column_of(g, p);
    return Op::weight(t, d % PARTS, [&](int k) {
      const int at = d / PARTS * 16 + k, gate = at / H, from = at % H;
      return from < n_state && to < n_state ? float(a.weight[int64_t(gate * n_state + from) * columns + to]) : 0.f;
    });
  };
  Weight own[Op::IN_REGISTERS ? WEIGHTS : 1];
  if constexpr (Op::IN_REGISTERS) {
#pragma unroll
    for (int i = 0; i < WEIGHTS; ++i) own[i] = weight_of(i);
  } else {
    for (int i = group; i < WEIGHTS; i += GROUPS) weights[(part * WEIGHTS + i) * 32 + lane] = weight_of(i);
    __syncthreads();
  }
  T* grad_rows = grads + group * 2 * RAYS * ROW;
  float bias[3][4] = {};
  auto place = [&](int buffer, int r) { return grad_rows + (buffer * RAYS + g + 8 * r) * ROW; };
  const int unit = unit0 + 4 * t;

  for (int64_t tile = int64_t(blockIdx.x) * GROUPS + group; tile < tiles; tile += int64_t(gridDim.x) * GROUPS) {
    const LaneRows rows = rows_of_lane(a.shape, tile, g);
    float grad_h[2][4], grad_c[2][4];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const bool real = rows.ray[r] >= 0;
      const Quad<T> from_h = load_quad<FULL>(a.h_n + rows.real_ray(r) * n_state, unit, n_state, real);
      const Quad<T> from_c = load_quad<FULL>(a.c_n + rows.real_ray(r) * n_state, unit, n_state, real);
#pragma unroll
      for (int k = 0; k < 4; ++k) grad_h[r][k] = real ? float(from_h.v[k]) : 0.f, grad_c[r][k] = real ? float(from_c.v[k]) : 0.f;
    }
    struct Sample {
      Quad<T> act[3], c, grad_h;
    } sample[2];
    auto load_sample = [&](int step) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const bool active = step >= 0 && step < rows.length[r];
        const int64_t n = rows.sample(r, step);
#pragma unroll
        for (int gate = 0; gate < 3; ++gate)
          sample[r].act[gate] = load_quad<FULL>(a.activated + (3 * n + gate) * n_state, unit, n_state, active);
        sample[r].c = load_quad<FULL>(a.c + n * n_state, unit, n_state, active);
        sample[r].grad_h = load_quad<FULL>(a.h + n * n_state, unit, n_state, active);
      }
    };
    int now = 0;
    if (Op::IN_REGISTERS) load_sample(rows.longest - 1);
    for (int step = rows.longest - 1; step >= 0; --step) {
      if (!Op::IN_REGISTERS) load_sample(step);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const bool active = step < rows.length[r];
        float grad[3][4];
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const float i = float(sample[r].act[0].v[k]), o = float(sample[r].act[1].v[k]), gate_g = float(sample[r].act[2].v[k]);
          const float dh = grad_h[r][k] + float(sample[r].grad_h.v[k]), tanh_c = fast_tanh<T>(float(sample[r].c.v[k]));
          const float dc = grad_c[r][k] + dh * o * (1.f - tanh_c * tanh_c);
          grad[0][k] = active ? dc * gate_g * i * (1.f - i) : 0.f;
          grad[1][k] = active ? dh * tanh_c * o * (1.f - o) : 0.f;
          grad[2][k] = active ? dc * i * (gate_g > 0 ? 1.f : gate_g + 1.f) : 0.f;
          grad_c[r][k] = active ? dc : grad_c[r][k];
        }
        const int64_t n = rows.first[r] + step;
#pragma unroll
        for (int gate = 0; gate < 3; ++gate) {
#pragma unroll
          for (int k = 0; k < 4; ++k) bias[gate][k] += grad[gate][k];
          store(place(now, r) + gate * H + unit, grad[gate]);
          store_quad<FULL>(a.gates + (3 * n + gate) * n_state, unit, n_state, active, grad[gate]);
        }
      }
      if (Op::IN_REGISTERS) load_sample(step - 1);  // arrives while this step is computed
      if (FULL && part == 0)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int64_t n = rows.sample(r, step - AHEAD);
          fetch_ahead(a.activated + 3 * n * n_state, 3 * n_state);
          fetch_ahead(a.c + n * n_state, n_state);
          fetch_ahead(a.h + n * n_state, n_state);
        }
      wait_for_group(group, 32 * WARPS);
      float before[2][4] = {};  // gradient of the state before this step
#pragma unroll
      for (int quad = 0; quad < QUADS; ++quad)
#pragma unroll
        for (int half = 0; half < PARTS; ++half) {
          const typename Op::Rows in = Op::rows(*reinterpret_cast<const Quad<T>*>(place(now, 0) + 16 * quad + 4 * t),
                                                *reinterpret_cast<const Quad<T>*>(place(now, 1) + 16 * quad + 4 * t), half);
#pragma unroll
          for (int p = 0; p < 2; ++p) {
            const int i = p * DEPTHS + quad * PARTS + half;
            if constexpr (Op::IN_REGISTERS)
              Op::product(before[p], in, own[i]);
            else
              Op::product(before[p], in, weights[(part * WEIGHTS + i) * 32 + lane]);
          }
        }
#pragma unroll
      for (int r = 0; r < 2; ++r)
#pragma unroll
        for (int k = 0; k < 4; ++k) grad_h[r][k] = step < rows.length[r] ? before[k / 2][2 * r + k % 2] : grad_h[r][k];
      now ^= 1;
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const bool real = rows.ray[r] >= 0;
      store_quad<FULL>(a.h0 + rows.ray[r] * n_state, unit, n_state, real, grad_h[r]);
      store_quad<FULL>(a.c0 + rows.ray[r] * n_state, unit, n_state, real, grad_c[r]);
    }
    wait_for_group(group, 32 * WARPS);
  }
  float* bias_row = a.bias + (int64_t(blockIdx.x) * GROUPS + group) * 3 * n_state;
#pragma unroll
  for (int gate = 0; gate < 3; ++gate)
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      float sum = bias[gate][k];
      for (int offset = 16; offset >= 4; offset /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, offset);
      if (g == 0 && unit + k < n_state) bias_row[gate * n_state + unit + k] = sum;
    }
}

}  // namespace
}  // namespace nerfkit
