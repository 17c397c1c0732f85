// SPDX-License-Identifier: Apache-2.0
// A warp walks 16 rays from end to end. The products of a step run on tensor cores, the weight lies in shared memory in
// the order in which lanes need it, and the state stays in registers: the accumulators of one product are, lane by lane,
// the operand of the next. float32 splits every operand into two parts of 11 bits and adds three products.
// Where there are no such cores, or sizes they do not fit: a warp a ray, in plain arithmetic.

#include "gpu.cuh"
#include "lltm.h"

namespace nerfkit {
namespace {

constexpr int WARPS = 4;        // of a block
constexpr int RAYS = 16;        // of a warp
constexpr int WIDEST_STATE = 64;   // of the tensor cores' kernels
constexpr int WIDEST_INPUT = 64;

template <class T>
struct LltmArrays {
  const T *input, *weight, *bias, *h0, *c0;
  T *h, *h_n, *c_n, *activated, *c;
  LltmShape shape;
};

template <class T>
struct LltmGradients {
  const T *h, *h_n, *c_n, *weight, *activated, *c;
  T *gates, *h0, *c0;
  LltmShape shape;
};

// ---- products of 16 rows with tensor cores ------------------------------------------------------------------------
//
// Lane l = 4 g + t holds, of an accumulator of 16 rows and 8 columns: (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1).
// Operands are taken in the same places. Half types go 16 deep, two accumulators side by side; float32 goes 8 deep, where
// the hardware's columns t and t + 4 are taken to be 2t and 2t + 1.

template <class T>
struct Tile;

template <class T>
struct HalfTile {
  static constexpr int DEPTH = 16;
  using Weight = uint2;  // a lane's part of DEPTH x 8 weights
  struct Rows {          // a lane's part of 16 x DEPTH values
    unsigned value[4];
  };
  static __device__ __forceinline__ unsigned pack(float low, float high) {
    Vec<T, 2> both{{T(low), T(high)}};
    return *reinterpret_cast<unsigned*>(&both);
  }
  // at(k): weight of depth k in this lane's column
  template <class F>
  static __device__ __forceinline__ Weight weight(int t, const F& at) {
    return {pack(at(2 * t), at(2 * t + 1)), pack(at(2 * t + 8), at(2 * t + 9))};
  }
  static __device__ __forceinline__ Rows rows(const float (&values)[2][4]) {
    return {{pack(values[0][0], values[0][1]), pack(values[0][2], values[0][3]), pack(values[1][0], values[1][1]),
             pack(values[1][2], values[1][3])}};
  }
};

template <>
struct Tile<__half> : HalfTile<__half> {
  static __device__ __forceinline__ void product(float (&sum)[4], const Rows& a, const Weight& b) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a.value[0]), "r"(a.value[1]), "r"(a.value[2]), "r"(a.value[3]), "r"(b.x), "r"(b.y));
#endif
  }
};

template <>
struct Tile<__nv_bfloat16> : HalfTile<__nv_bfloat16> {
  static __device__ __forceinline__ void product(float (&sum)[4], const Rows& a, const Weight& b) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a.value[0]), "r"(a.value[1]), "r"(a.value[2]), "r"(a.value[3]), "r"(b.x), "r"(b.y));
#endif
  }
};

template <>
struct Tile<float> {
  static constexpr int DEPTH = 8;
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
  template <class F>
  static __device__ __forceinline__ Weight weight(int t, const F& at) {
    Weight out;
    split(at(2 * t), out.high[0], out.low[0]);
    split(at(2 * t + 1), out.high[1], out.low[1]);
    return out;
  }
  static __device__ __forceinline__ Rows rows(const float (&values)[1][4]) {
    Rows out;
#pragma unroll
    for (int i = 0; i < 4; ++i) split(values[0][(i & 1) * 2 + i / 2], out.high[i], out.low[i]);
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

// ---- the cell in float32, as fast as the element type allows --------------------------------------------------------

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

// ---- rows of a warp's 16 rays ---------------------------------------------------------------------------------------

// This lane's two rows: those of rays g and g + 8.
struct LaneRows {
  int64_t ray[2], first[2];
  int length[2];
  int longest;  // of the warp's rays
};

__device__ __forceinline__ LaneRows rows_of_lane(const LltmShape& s, int64_t tile, int g) {
  LaneRows rows;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    rows.ray[r] = tile * RAYS + g + 8 * r;
    const bool real = rows.ray[r] < s.n_rays;
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

// Two neighbouring columns of a row with an even number of them; zero beyond its end.
template <class T>
__device__ __forceinline__ void load_pair(const T* row, int column, int columns, bool real, float& a, float& b) {
  a = b = 0.f;
  if (!real || column >= columns) return;
  float pair[2];
  load(row + column, pair);
  a = pair[0], b = pair[1];
}

template <class T>
__device__ __forceinline__ void store_pair(T* row, int column, int columns, bool real, float a, float b) {
  if (!real || column >= columns) return;
  const float pair[2] = {a, b};
  store(row + column, pair);
}

// H and I are the sizes, rounded up to a multiple of 16; what is added is zero and stays zero.
template <class T, int H, int I>
__global__ void __launch_bounds__(32 * WARPS) forward_tiles(const LltmArrays<T> a, int64_t tiles) {
  using Op = Tile<T>;
  using Weight = typename Op::Weight;
  constexpr int DEPTH = Op::DEPTH, DEPTHS_H = H / DEPTH, DEPTHS_I = I / DEPTH, DEPTHS = DEPTHS_H + DEPTHS_I;
  constexpr int UNITS = H / 8, GROUPS = DEPTH / 8;
  constexpr bool AHEAD = sizeof(T) == 2 || H + I < 128;  // whether registers are left for the input of the next step
  extern __shared__ __align__(16) unsigned char shared[];
  Weight* weights = reinterpret_cast<Weight*>(shared);  // [unit tile, gate, depth, lane]
  float* bias = reinterpret_cast<float*>(weights + UNITS * 3 * DEPTHS * 32);  // [gate, H]
  const int n_state = a.shape.n_state, n_input = a.shape.n_input, columns = n_state + n_input;
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;

  for (int i = threadIdx.x; i < UNITS * 3 * DEPTHS * 32; i += 32 * WARPS) {
    const int at_lane = i % 32, depth = i / 32 % DEPTHS, gate = i / 32 / DEPTHS % 3;
    const int unit = i / 32 / DEPTHS / 3 * 8 + at_lane / 4;
    const T* row = a.weight + int64_t(gate * n_state + unit) * columns;
    weights[i] = Op::weight(at_lane % 4, [&](int k) {
      const bool is_h = depth < DEPTHS_H;
      const int column = (is_h ? depth : depth - DEPTHS_H) * DEPTH + k;
      return unit < n_state && column < (is_h ? n_state : n_input) ? float(row[is_h ? column : n_state + column]) : 0.f;
    });
  }
  for (int i = threadIdx.x; i < 3 * H; i += 32 * WARPS)
    bias[i] = i % H < n_state ? float(a.bias[i / H * n_state + i % H]) : 0.f;
  __syncthreads();

  for (int64_t tile = int64_t(blockIdx.x) * WARPS + threadIdx.x / 32; tile < tiles; tile += int64_t(gridDim.x) * WARPS) {
    const LaneRows rows = rows_of_lane(a.shape, tile, g);
    float h[UNITS][4], c[UNITS][4];
#pragma unroll
    for (int j = 0; j < UNITS; ++j)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const bool real = rows.ray[r] >= 0;
        load_pair(a.h0 + rows.ray[r] * n_state, 8 * j + 2 * t, n_state, real, h[j][2 * r], h[j][2 * r + 1]);
        load_pair(a.c0 + rows.ray[r] * n_state, 8 * j + 2 * t, n_state, real, c[j][2 * r], c[j][2 * r + 1]);
      }
    auto load_input = [&](int step, float (&x)[I / 8][4]) {
#pragma unroll
      for (int j = 0; j < I / 8; ++j)
#pragma unroll
        for (int r = 0; r < 2; ++r)
          load_pair(a.input + (rows.first[r] + step) * n_input, 8 * j + 2 * t, n_input, step < rows.length[r], x[j][2 * r],
                    x[j][2 * r + 1]);
    };
    float x[I / 8][4];
    if (AHEAD) load_input(0, x);
    for (int step = 0; step < rows.longest; ++step) {
      if (!AHEAD) load_input(step, x);
      typename Op::Rows in[DEPTHS];
#pragma unroll
      for (int d = 0; d < DEPTHS; ++d) {
        float values[GROUPS][4];
#pragma unroll
        for (int i = 0; i < GROUPS; ++i)
#pragma unroll
          for (int k = 0; k < 4; ++k) values[i][k] = d < DEPTHS_H ? h[d * GROUPS + i][k] : x[(d - DEPTHS_H) * GROUPS + i][k];
        in[d] = Op::rows(values);
      }
      if (AHEAD) load_input(step + 1, x);  // arrives while this step is computed
#pragma unroll
      for (int j = 0; j < UNITS; ++j) {
        float gates[3][4];
#pragma unroll
        for (int gate = 0; gate < 3; ++gate) {
          const float2 start = *reinterpret_cast<const float2*>(bias + gate * H + 8 * j + 2 * t);
          gates[gate][0] = gates[gate][2] = start.x;
          gates[gate][1] = gates[gate][3] = start.y;
        }
#pragma unroll
        for (int d = 0; d < DEPTHS; ++d)
#pragma unroll
          for (int gate = 0; gate < 3; ++gate) Op::product(gates[gate], in[d], weights[((j * 3 + gate) * DEPTHS + d) * 32 + lane]);
        float act[3][4];
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const Gates<float> unit = fast_activate<T>(gates[0][k], gates[1][k], gates[2][k]);
          const bool active = step < rows.length[k / 2];
          const float c_new = c[j][k] + unit.g * unit.i;
          c[j][k] = active ? c_new : c[j][k];
          h[j][k] = active ? fast_tanh<T>(c_new) * unit.o : h[j][k];
          act[0][k] = unit.i, act[1][k] = unit.o, act[2][k] = unit.g;
        }
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int64_t n = rows.first[r] + step;
          const bool active = step < rows.length[r];
          store_pair(a.h + n * n_state, 8 * j + 2 * t, n_state, active, h[j][2 * r], h[j][2 * r + 1]);
          if (!a.activated) continue;
          store_pair(a.c + n * n_state, 8 * j + 2 * t, n_state, active, c[j][2 * r], c[j][2 * r + 1]);
#pragma unroll
          for (int gate = 0; gate < 3; ++gate)
            store_pair(a.activated + (3 * n + gate) * n_state, 8 * j + 2 * t, n_state, active, act[gate][2 * r], act[gate][2 * r + 1]);
        }
      }
    }
#pragma unroll
    for (int j = 0; j < UNITS; ++j)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const bool real = rows.ray[r] >= 0;
        store_pair(a.h_n + rows.ray[r] * n_state, 8 * j + 2 * t, n_state, real, h[j][2 * r], h[j][2 * r + 1]);
        store_pair(a.c_n + rows.ray[r] * n_state, 8 * j + 2 * t, n_state, real, c[j][2 * r], c[j][2 * r + 1]);
      }
  }
}

template <class T, int H>
__global__ void __launch_bounds__(32 * WARPS) backward_tiles(const LltmGradients<T> a, int64_t tiles) {
  using Op = Tile<T>;
  using Weight = typename Op::Weight;
  constexpr int DEPTH = Op::DEPTH, GROUPS = DEPTH / 8, DEPTHS = H / DEPTH, UNITS = H / 8;
  extern __shared__ __align__(16) unsigned char shared[];
  Weight* weights = reinterpret_cast<Weight*>(shared);  // [gate, depth of units, unit tile, lane]
  const int n_state = a.shape.n_state, columns = n_state + a.shape.n_input;
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;

  for (int i = threadIdx.x; i < 3 * DEPTHS * UNITS * 32; i += 32 * WARPS) {
    const int at_lane = i % 32, to = i / 32 % UNITS * 8 + at_lane / 4, depth = i / 32 / UNITS % DEPTHS;
    const int gate = i / 32 / UNITS / DEPTHS;
    weights[i] = Op::weight(at_lane % 4, [&](int k) {
      const int unit = depth * DEPTH + k;
      return unit < n_state && to < n_state ? float(a.weight[int64_t(gate * n_state + unit) * columns + to]) : 0.f;
    });
  }
  __syncthreads();

  for (int64_t tile = int64_t(blockIdx.x) * WARPS + threadIdx.x / 32; tile < tiles; tile += int64_t(gridDim.x) * WARPS) {
    const LaneRows rows = rows_of_lane(a.shape, tile, g);
    float grad_h[UNITS][4], grad_c[UNITS][4];
#pragma unroll
    for (int j = 0; j < UNITS; ++j)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const bool real = rows.ray[r] >= 0;
        load_pair(a.h_n + rows.ray[r] * n_state, 8 * j + 2 * t, n_state, real, grad_h[j][2 * r], grad_h[j][2 * r + 1]);
        load_pair(a.c_n + rows.ray[r] * n_state, 8 * j + 2 * t, n_state, real, grad_c[j][2 * r], grad_c[j][2 * r + 1]);
      }
    for (int step = rows.longest - 1; step >= 0; --step) {
      float before[UNITS][4];  // gradient of the state before this step
#pragma unroll
      for (int j = 0; j < UNITS; ++j)
#pragma unroll
        for (int k = 0; k < 4; ++k) before[j][k] = 0.f;
#pragma unroll
      for (int d = 0; d < DEPTHS; ++d) {
        float grad[3][GROUPS][4];
#pragma unroll
        for (int i = 0; i < GROUPS; ++i) {
          const int j = d * GROUPS + i;
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            const bool active = step < rows.length[r];
            const int64_t n = rows.first[r] + step;
            const int column = 8 * j + 2 * t;
            float act[3][2], c[2], from[2];
            load_pair(a.c + n * n_state, column, n_state, active, c[0], c[1]);
            load_pair(a.h + n * n_state, column, n_state, active, from[0], from[1]);
#pragma unroll
            for (int gate = 0; gate < 3; ++gate)
              load_pair(a.activated + (3 * n + gate) * n_state, column, n_state, active, act[gate][0], act[gate][1]);
#pragma unroll
            for (int p = 0; p < 2; ++p) {
              const int k = 2 * r + p;
              const float dh = grad_h[j][k] + from[p], tanh_c = fast_tanh<T>(c[p]);
              const float dc = grad_c[j][k] + dh * act[1][p] * (1.f - tanh_c * tanh_c);
              grad[0][i][k] = active ? dc * act[2][p] * act[0][p] * (1.f - act[0][p]) : 0.f;
              grad[1][i][k] = active ? dh * tanh_c * act[1][p] * (1.f - act[1][p]) : 0.f;
              grad[2][i][k] = active ? dc * act[0][p] * (act[2][p] > 0 ? 1.f : act[2][p] + 1.f) : 0.f;
              grad_c[j][k] = active ? dc : grad_c[j][k];
            }
#pragma unroll
            for (int gate = 0; gate < 3; ++gate)
              store_pair(a.gates + (3 * n + gate) * n_state, column, n_state, active, grad[gate][i][2 * r], grad[gate][i][2 * r + 1]);
          }
        }
#pragma unroll
        for (int gate = 0; gate < 3; ++gate) {
          const typename Op::Rows in = Op::rows(grad[gate]);
#pragma unroll
          for (int j = 0; j < UNITS; ++j) Op::product(before[j], in, weights[((gate * DEPTHS + d) * UNITS + j) * 32 + lane]);
        }
      }
#pragma unroll
      for (int j = 0; j < UNITS; ++j)
#pragma unroll
        for (int k = 0; k < 4; ++k) grad_h[j][k] = step < rows.length[k / 2] ? before[j][k] : grad_h[j][k];
    }
#pragma unroll
    for (int j = 0; j < UNITS; ++j)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const bool real = rows.ray[r] >= 0;
        store_pair(a.h0 + rows.ray[r] * n_state, 8 * j + 2 * t, n_state, real, grad_h[j][2 * r], grad_h[j][2 * r + 1]);
        store_pair(a.c0 + rows.ray[r] * n_state, 8 * j + 2 * t, n_state, real, grad_c[j][2 * r], grad_c[j][2 * r + 1]);
      }
  }
}

// ---- any size and type: a warp a ray ----------------------------------------------------------------------------------

template <class T>
__global__ void __launch_bounds__(32) forward_ray(const LltmArrays<T> a) {
  using A = acc_t<T>;
  extern __shared__ __align__(16) unsigned char shared[];
  const int H = a.shape.n_state, I = a.shape.n_input, lane = threadIdx.x;
  A *in = reinterpret_cast<A*>(shared), *h_new = in + H + I, *c = h_new + H;  // in = [h, input]
  for (int64_t ray = blockIdx.x; ray < a.shape.n_rays; ray += gridDim.x) {
    for (int j = lane; j < H; j += 32) in[j] = A(a.h0[ray * H + j]), c[j] = A(a.c0[ray * H + j]);
    for (int64_t n = a.shape.ray_offsets[ray]; n < a.shape.ray_offsets[ray + 1]; ++n) {
      for (int k = lane; k < I; k += 32) in[H + k] = A(a.input[n * I + k]);
      __syncwarp();
      for (int j = lane; j < H; j += 32) {
        A gates[3];
        for (int gate = 0; gate < 3; ++gate) {
          const T* row = a.weight + int64_t(gate * H + j) * (H + I);
          A sum = A(a.bias[gate * H + j]);
          for (int k = 0; k < H + I; ++k) sum += in[k] * A(row[k]);
          gates[gate] = sum;
        }
        const Gates<A> unit = activate(gates[0], gates[1], gates[2]);
        c[j] += unit.g * unit.i;
        h_new[j] = hyperbolic_tangent(c[j]) * unit.o;
        a.h[n * H + j] = T(h_new[j]);
        if (!a.activated) continue;
        a.c[n * H + j] = T(c[j]);
        T* act = a.activated + 3 * n * H + j;
        act[0] = T(unit.i), act[H] = T(unit.o), act[2 * H] = T(unit.g);
      }
      __syncwarp();
      for (int j = lane; j < H; j += 32) in[j] = h_new[j];
      __syncwarp();
    }
    for (int j = lane; j < H; j += 32) a.h_n[ray * H + j] = T(in[j]), a.c_n[ray * H + j] = T(c[j]);
    __syncwarp();
  }
}

template <class T>
__global__ void __launch_bounds__(32) backward_ray(const LltmGradients<T> a) {
  using A = acc_t<T>;
  extern __shared__ __align__(16) unsigned char shared[];
  const int H = a.shape.n_state, columns = H + a.shape.n_input, lane = threadIdx.x;
  A *grad_h = reinterpret_cast<A*>(shared), *grad_c = grad_h + H, *grad_gates = grad_c + H;
  for (int64_t ray = blockIdx.x; ray < a.shape.n_rays; ray += gridDim.x) {
    for (int j = lane; j < H; j += 32) grad_h[j] = A(a.h_n[ray * H + j]), grad_c[j] = A(a.c_n[ray * H + j]);
    for (int64_t n = a.shape.ray_offsets[ray + 1] - 1; n >= a.shape.ray_offsets[ray]; --n) {
      for (int j = lane; j < H; j += 32) {
        const T* act = a.activated + 3 * n * H + j;
        const Gates<A> gate{A(act[0]), A(act[H]), A(act[2 * H])};
        Gates<A> grad;
        grad_c[j] = activate_bwd(gate, A(a.c[n * H + j]), grad_h[j] + A(a.h[n * H + j]), grad_c[j], grad);
        grad_gates[j] = grad.i, grad_gates[H + j] = grad.o, grad_gates[2 * H + j] = grad.g;
        T* to = a.gates + 3 * n * H + j;
        to[0] = T(grad.i), to[H] = T(grad.o), to[2 * H] = T(grad.g);
      }
      __syncwarp();
      for (int j = lane; j < H; j += 32) {
        A sum = 0;
        for (int k = 0; k < 3 * H; ++k) sum += grad_gates[k] * A(a.weight[int64_t(k) * columns + j]);
        grad_h[j] = sum;
      }
      __syncwarp();
    }
    for (int j = lane; j < H; j += 32) a.h0[ray * H + j] = T(grad_h[j]), a.c0[ray * H + j] = T(grad_c[j]);
    __syncwarp();
  }
}

// ---- launching ----------------------------------------------------------------------------------------------------------

struct Gpu {
  int major, processors, shared_bytes;
};

Gpu current_gpu() {
  Gpu gpu;
  int device = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&gpu.major, cudaDevAttrComputeCapabilityMajor, device);
  cudaDeviceGetAttribute(&gpu.processors, cudaDevAttrMultiProcessorCount, device);
  cudaDeviceGetAttribute(&gpu.shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  return gpu;
}

int padded(int n) { return n <= 16 ? 16 : n <= 32 ? 32 : 64; }

bool fits_tiles(const LltmShape& s) {
  return s.n_state % 2 == 0 && s.n_input % 2 == 0 && s.n_state <= WIDEST_STATE && s.n_input <= WIDEST_INPUT && s.n_input > 0;
}

// Calls f with a constant.
template <class F>
void with_size(int n, const F& f) {
  switch (padded(n)) {
    case 16: return f(std::integral_constant<int, 16>());
    case 32: return f(std::integral_constant<int, 32>());
    default: return f(std::integral_constant<int, 64>());
  }
}

// False if the kernel needs more shared memory than there is.
template <class Kernel, class Arrays>
bool launch_tiles(Kernel kernel, const Arrays& arrays, size_t shared, const Gpu& gpu, cudaStream_t stream) {
  if (shared > size_t(gpu.shared_bytes)) return false;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(shared));
  int blocks = 0;
  cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, 32 * WARPS, shared);
  if (blocks == 0) return false;
  const int64_t tiles = (arrays.shape.n_rays + RAYS - 1) / RAYS;
  const int64_t grid = std::min<int64_t>((tiles + WARPS - 1) / WARPS, int64_t(blocks) * gpu.processors);
  kernel<<<unsigned(grid), 32 * WARPS, shared, stream>>>(arrays, tiles);
  return true;
}

template <class T>
bool forward_with_tiles(const LltmArrays<T>& a, const Gpu& gpu, cudaStream_t stream) {
  bool done = false;
  if constexpr (sizeof(T) < 8) {
    using Op = Tile<T>;
    with_size(a.shape.n_state, [&](auto state) {
      with_size(a.shape.n_input, [&](auto input) {
        constexpr int H = state.value, I = input.value;
        const size_t shared = size_t(H / 8) * 3 * ((H + I) / Op::DEPTH) * 32 * sizeof(typename Op::Weight) + 3 * H * sizeof(float);
        done = launch_tiles(forward_tiles<T, H, I>, a, shared, gpu, stream);
      });
    });
  }
  return done;
}

template <class T>
bool backward_with_tiles(const LltmGradients<T>& a, const Gpu& gpu, cudaStream_t stream) {
  bool done = false;
  if constexpr (sizeof(T) < 8) {
    using Op = Tile<T>;
    with_size(a.shape.n_state, [&](auto state) {
      constexpr int H = state.value;
      const size_t shared = size_t(3) * (H / Op::DEPTH) * (H / 8) * 32 * sizeof(typename Op::Weight);
      done = launch_tiles(backward_tiles<T, H>, a, shared, gpu, stream);
    });
  }
  return done;
}

template <class Kernel, class Arrays>
void launch_rays(Kernel kernel, const Arrays& arrays, size_t shared, const Gpu&, cudaStream_t stream) {
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(shared));
  kernel<<<unsigned(std::min<int64_t>(arrays.shape.n_rays, 1 << 20)), 32, shared, stream>>>(arrays);
}

}  // namespace

Status lltm(DType dtype, const void* input, const void* weight, const void* bias, const void* h0, const void* c0, void* h,
            void* h_n, void* c_n, void* activated, void* c, const LltmShape& s, Stream stream) {
  if (s.n_rays == 0 || s.n_state == 0) return 0;
  const Gpu gpu = current_gpu();
  dispatch(dtype, [&](auto element) {
    using T = decltype(element);
    const LltmArrays<T> a{(const T*)input, (const T*)weight, (const T*)bias, (const T*)h0, (const T*)c0, (T*)h,
                          (T*)h_n,         (T*)c_n,          (T*)activated,  (T*)c,        s};
    const size_t pair = 2 * sizeof(T);
    const bool pairs = aligned(input, pair) && aligned(h0, pair) && aligned(c0, pair);
    if (gpu.major >= 8 && pairs && fits_tiles(s) && forward_with_tiles(a, gpu, (cudaStream_t)stream)) return;
    launch_rays(forward_ray<T>, a, size_t(3 * s.n_state + s.n_input) * sizeof(acc_t<T>), gpu, (cudaStream_t)stream);
  });
  return launched();
}

Status lltm_bwd(DType dtype, const void* grad_h, const void* grad_h_n, const void* grad_c_n, const void* weight,
                const void* activated, const void* c, void* grad_gates, void* grad_h0, void* grad_c0, const LltmShape& s,
                Stream stream) {
  if (s.n_rays == 0 || s.n_state == 0) return 0;
  const Gpu gpu = current_gpu();
  dispatch(dtype, [&](auto element) {
    using T = decltype(element);
    const LltmGradients<T> a{(const T*)grad_h, (const T*)grad_h_n, (const T*)grad_c_n, (const T*)weight, (const T*)activated,
                             (const T*)c,      (T*)grad_gates,     (T*)grad_h0,        (T*)grad_c0,      s};
    const size_t pair = 2 * sizeof(T);
    const bool pairs = aligned(grad_h, pair) && aligned(grad_h_n, pair) && aligned(grad_c_n, pair);
    if (gpu.major >= 8 && pairs && fits_tiles(s) && backward_with_tiles(a, gpu, (cudaStream_t)stream)) return;
    launch_rays(backward_ray<T>, a, size_t(5) * s.n_state * sizeof(acc_t<T>), gpu, (cudaStream_t)stream);
  });
  return launched();
}

}  // namespace nerfkit
