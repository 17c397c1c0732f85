// SPDX-License-Identifier: Apache-2.0
// The LLTM of 16 units, half types: one warp for 8 rays; everything but the samples stays in its registers. Gates
// are the 16 rows of a product on tensor cores, rays its 8 columns, so that a lane has all gates of 4 of (unit, ray).
// What does not wait for the step before is computed a step ahead, and all steps of a loop's round are one piece
// without a branch: a ray that has ended goes on, without loads or stores.
//
// 8 units of 8 rays are a register, two values a lane, in one of two ways; movmatrix_trans() goes from one to the
// other:
//   by unit, as sums come:   lane 4 g + t has unit g of rays 2t and 2t + 1;
//   by ray, as operands go:  ray g, units 2t and 2t + 1.
// Units and inputs are numbered so that, by ray, a lane's are neighbours in memory.

#pragma once

#include "lltm/fast_cell.cuh"
#include "lltm/launchers.cuh"

namespace nerfkit {
namespace {

constexpr int STATE16 = 16;   // units, H
constexpr int WARP_RAYS = 8;  // columns of a product

// The saved derivatives of a step. With a_i, a_o, a_g the gates before activation:
//   dh'/dc' = o (1 - tanh(c')^2),  dc'/da_i = g i (1 - i),  dh'/da_o = tanh(c') o (1 - o),  dc'/da_g = i min(g + 1, 1)
enum Derivative { DH_DC, DC_DAI, DH_DAO, DC_DAG, N_DERIVATIVES };

// Views of the workspace; T is const on the way back.
template <class T>
struct State16Saved {
  T* derivatives;  // [N, 8, N_DERIVATIVES, 2]: lane row g, which derivative, unit of rank g or g + 8
  T* before;       // [N, H], the hidden state before each sample
};

template <class T>
State16Saved<T> state16_saved(T* workspace, const LltmShape& s) {
  if (!workspace) return {};
  return {workspace, workspace + N_DERIVATIVES * s.n_samples * STATE16};
}

// Which of `width` columns is number `rank`, 0 to 15, of block `block`.
__device__ __forceinline__ int column_of_rank(int width, int block, int rank) {
  return width / 4 * (rank % 8 / 2) + 4 * block + 2 * (rank / 8) + rank % 2;
}

template <class T>
__device__ __forceinline__ float2 unpack(unsigned both) {
  const Vec<T, 2>& values = reinterpret_cast<const Vec<T, 2>&>(both);
  return make_float2(float(values.v[0]), float(values.v[1]));
}

// ---- operands ----

struct alignas(16) AFragment {  // a lane's part of 16 x 16 values
  unsigned value[4];
};

template <class T>
__device__ __forceinline__ void add_mma(float (&sum)[4], const AFragment& a, unsigned b0, unsigned b1) {
  mma(T(), sum, a.value[0], a.value[1], a.value[2], a.value[3], b0, b1);
}

// Gates open by the sigmoid of a = 0.5 + 0.5 tanh(a / 2): their weights are halved beforehand.
__device__ __forceinline__ float scale_of(int gate) { return gate < 2 ? 0.5f : 1.f; }

// Rows of a gate, columns of block k of [h, input].
template <class T, int H, int I>
__device__ __forceinline__ AFragment gate_fragment(const T* weight, int gate, int k, int g, int t) {
  AFragment out;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int rank = 2 * t + 8 * (i / 2),
              column = k == 0 ? column_of_rank(H, 0, rank) : H + column_of_rank(I, k - 1, rank);
    const T* from = weight + (gate * H + column_of_rank(H, 0, g + 8 * (i % 2))) * (H + I) + column;
    out.value[i] = pack<T>(float(from[0]) * scale_of(gate), float(from[1]) * scale_of(gate));
  }
  return out;
}

// The same transposed: rows are those of block k of [h, input].
template <class T, int H, int I>
__device__ __forceinline__ AFragment transposed_fragment(const T* weight, int k, int gate, int g, int t) {
  AFragment out;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int rank = g + 8 * (i % 2), at = 2 * t + 8 * (i / 2);
    const T* from = weight + (k == 0 ? column_of_rank(H, 0, rank) : H + column_of_rank(I, k - 1, rank));
    out.value[i] = pack<T>(float(from[(gate * H + column_of_rank(H, 0, at)) * (H + I)]),
                           float(from[(gate * H + column_of_rank(H, 0, at + 1)) * (H + I)]));
  }
  return out;
}

// All warps of a block make the operands of all, and each gets its own copy.
template <int N, class F>
__device__ __forceinline__ void share_fragments(AFragment (&own)[N], AFragment* shared, const F& make) {
  const int lane = threadIdx.x % 32;
  for (int i = threadIdx.x / 32; i < N; i += blockDim.x / 32) shared[i * 32 + lane] = make(i);
  __syncthreads();
#pragma unroll
  for (int i = 0; i < N; ++i) own[i] = shared[i * 32 + lane];
}

__device__ __forceinline__ float elu(float a) {
  float power = 0;
#if __CUDA_ARCH__ >= 800
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(a * 1.44269504f));
#endif
  return a > 0 ? a : power - 1.f;
}

// ---- memory ----

// Where `real`, without a branch between one access and the next; else `to` stays. The address is `from` and OFFSET
// bytes.
template <int OFFSET, int WORDS>
__device__ __forceinline__ void load_if(bool real, const char* from, unsigned (&to)[WORDS]) {
#if __CUDA_ARCH__ >= 800
  if constexpr (WORDS == 2)
    asm volatile("{ .reg .pred p; setp.ne.s32 p, %2, 0; @p ld.global.nc.L2::256B.v2.b32 {%0,%1}, [%3+%4]; }"
                 : "+r"(to[0]), "+r"(to[1])
                 : "r"(int(real)), "l"(from), "n"(OFFSET));
  else
    asm volatile("{ .reg .pred p; setp.ne.s32 p, %4, 0; @p ld.global.nc.L2::256B.v4.b32 {%0,%1,%2,%3}, [%5+%6]; }"
                 : "+r"(to[0]), "+r"(to[1]), "+r"(to[2]), "+r"(to[3])
                 : "r"(int(real)), "l"(from), "n"(OFFSET));
#endif
}
template <int OFFSET, int WORDS>
__device__ __forceinline__ void store_if(bool real, char* to, const unsigned (&from)[WORDS]) {
  if constexpr (WORDS == 2)
    asm volatile("{ .reg .pred p; setp.ne.s32 p, %2, 0; @p st.global.v2.b32 [%3+%4], {%0,%1}; }" ::"r"(from[0]),
                 "r"(from[1]), "r"(int(real)), "l"(to), "n"(OFFSET)
                 : "memory");
  else
    asm volatile("{ .reg .pred p; setp.ne.s32 p, %4, 0; @p st.global.v4.b32 [%5+%6], {%0,%1,%2,%3}; }" ::"r"(from[0]),
                 "r"(from[1]), "r"(from[2]), "r"(from[3]), "r"(int(real)), "l"(to), "n"(OFFSET)
                 : "memory");
}

// Calls f with the constants from 0 to N - 1 until it says false.
template <int N, int FIRST = 0, class F>
__device__ __forceinline__ void unrolled(const F& f) {
  if constexpr (FIRST < N)
    if (f(std::integral_constant<int, FIRST>())) unrolled<N, FIRST + 1>(f);
}

// ---- 8 rays ----

// The tile that a warp takes in a round: longest rays lie first, so every other round goes from the other end.
__device__ __forceinline__ int tile_of(int round, int warp, int warps) {
  return round * warps + (round % 2 ? warps - 1 - warp : warp);
}

// Ray g of a tile. It is found during the tile before, in two steps, the second of which waits for the first.
// States of more rays than an int counts would not fit into any memory.
struct LaneRay {
  int ray;
  bool real;
  int64_t first, end;

  __device__ __forceinline__ void find(const LltmShape& s, int tile, int g) {
    const int rank = tile * WARP_RAYS + g;
    real = rank < int(s.n_rays);
    ray = real ? rank : int(s.n_rays) - 1;
    if (s.order) ray = int(s.order[ray]);
  }
  __device__ __forceinline__ void find_samples(const LltmShape& s) {
    first = s.ray_offsets[ray], end = s.ray_offsets[ray + 1];
  }
  __device__ __forceinline__ int length() const { return real ? int(end - first) : 0; }
};

// ---- launches ----

// Calls f with an element of a half type and the number of inputs, a constant.
template <class F>
void dispatch_state16(DType dtype, int n_input, const F& f) {
  dispatch(dtype, [&](auto element) {
    if constexpr (sizeof(element) == 2) {
      if (n_input == 16)
        f(element, std::integral_constant<int, 16>());
      else
        f(element, std::integral_constant<int, 32>());
    }
  });
}

inline int state16_tiles(const LltmShape& s) { return int((s.n_rays + WARP_RAYS - 1) / WARP_RAYS); }

// As many blocks as run at once, at most `most`.
template <class Kernel>
int state16_grid(Kernel kernel, const LltmShape& s, int threads, int64_t most, const Gpu& gpu) {
  int resident = 0;  // blocks of a multiprocessor
  cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, threads, 0);
  const int64_t warps = threads / 32, blocks = (state16_tiles(s) + warps - 1) / warps;
  return int(std::min(std::min(blocks, int64_t(resident) * gpu.processors), most));
}

}  // namespace
}  // namespace nerfkit
