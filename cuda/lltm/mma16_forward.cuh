// SPDX-License-Identifier: Apache-2.0
// The LLTM along 16 rays, near to far.

#pragma once

#include "lltm/mma16.cuh"

namespace nerfkit {
namespace {

// H and I are the sizes, rounded up to a multiple of 16; what is added is zero and stays zero.
template <class T, int H, int I, bool FULL>
__global__ void __launch_bounds__(Group<T, H>::BLOCK_THREADS, ONE_BLOCK<T, H, I>)
    lltm_mma16_forward(const LltmForward<T> a, const SavedGates<T> saved, int tiles) {
  using Op = MmaOperand<T>;
  using Weight = typename Op::BFragment;
  constexpr int MMAS = 16 / Op::K, K_BLOCKS_H = H / 16, K_BLOCKS = K_BLOCKS_H + I / 16, K_STEPS = K_BLOCKS * MMAS;
  constexpr int WARPS = Group<T, H>::WARPS, GROUP = Group<T, H>::THREADS, WEIGHTS = 2 * 3 * K_STEPS;  // of a warp
  constexpr bool PREFETCH =
      Op::IN_REGISTERS || (FULL && ONE_BLOCK<T, H, I>);  // inputs are in registers a step before they are taken
  extern __shared__ __align__(16) unsigned char shared[];
  const int groups = blockDim.x / GROUP;
  T* states = reinterpret_cast<T*>(shared);  // [groups, 2, RAYS, H + PADDING]
  float* biases = reinterpret_cast<float*>(states + groups * 2 * RAYS * (H + PADDING));  // [3, H]
  Weight* weights = reinterpret_cast<Weight*>(biases + 3 * H);                           // [WARPS, WEIGHTS, 32]
  const int n_state = a.shape.n_state, n_input = a.shape.n_input, columns = n_state + n_input;
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int warp = threadIdx.x / 32 % WARPS, group = threadIdx.x / 32 / WARPS, unit0 = warp * UNITS;

  auto weight_of = [&](int i) {  // i = (p * 3 + gate) * K_STEPS + d
    const int d = i % K_STEPS, gate = i / K_STEPS % 3, p = i / K_STEPS / 3, k_block = d / MMAS;
    const int unit = unit0 + column_of(g, p);
    const T* row = a.weight + int64_t(gate * n_state + unit) * columns;
    return Op::b_fragment(t, d % MMAS, [&](int k) {
      const bool is_h = k_block < K_BLOCKS_H;
      const int column = (is_h ? k_block : k_block - K_BLOCKS_H) * 16 + k;
      return unit < n_state && column < (is_h ? n_state : n_input) ? float(row[is_h ? column : n_state + column]) : 0.f;
    });
  };
  RegisterWeights<T, WEIGHTS> own;
  stage_weights<T, WEIGHTS>(own, weights, warp, lane, group, groups, weight_of);
  for (int i = threadIdx.x; i < 3 * H; i += blockDim.x)
    biases[i] = i % H < n_state ? float(a.bias[i / H * n_state + i % H]) : 0.f;
  __syncthreads();

  T* state = states + group * 2 * RAYS * (H + PADDING);
  auto shared_row = [&](int buffer, int r) { return state + (buffer * RAYS + g + 8 * r) * (H + PADDING); };
  const int unit = unit0 + 4 * t;  // the first of this lane's four

  for (int tile = blockIdx.x * groups + group; tile < tiles; tile += gridDim.x * groups) {
    const LaneRays rays = lane_rays(a.shape, tile, g);
    float c[2][4];
    int now = 0;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const bool real = rays.ray[r] >= 0;
      const Vec4<T> start = load_vec4<FULL>(a.c0 + rays.real_ray(r) * n_state, unit, n_state, real);
#pragma unroll
      for (int k = 0; k < 4; ++k) c[r][k] = float(start.v[k]);
      *reinterpret_cast<Vec4<T>*>(shared_row(now, r) + unit) =
          load_vec4<FULL>(a.h0 + rays.real_ray(r) * n_state, unit, n_state, real);
    }
    Vec4<T> x[I / 16][2];
    auto load_input = [&](int step) {
#pragma unroll
      for (int i = 0; i < I / 16; ++i)
#pragma unroll
        for (int r = 0; r < 2; ++r)
          x[i][r] =
              load_vec4<FULL>(a.input + rays.sample(r, step) * n_input, 16 * i + 4 * t, n_input, step < rays.length[r]);
    };
    if (PREFETCH) load_input(0);
    sync_group(group, GROUP);
    for (int step = 0; step < rays.longest; ++step) {
      if (!PREFETCH) load_input(step);
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
      auto add = [&](int k_block, const Vec4<T>& low, const Vec4<T>& high) {
        add_products<T, 3, WEIGHTS>(sum, own, weights, warp, lane, k_block, low, high);
      };
#pragma unroll
      for (int k_block = 0; k_block < K_BLOCKS_H; ++k_block)
        add(k_block, *reinterpret_cast<const Vec4<T>*>(shared_row(now, 0) + 16 * k_block + 4 * t),
            *reinterpret_cast<const Vec4<T>*>(shared_row(now, 1) + 16 * k_block + 4 * t));
#pragma unroll
      for (int i = 0; i < I / 16; ++i) add(K_BLOCKS_H + i, x[i][0], x[i][1]);
      if (PREFETCH) load_input(step + 1);  // arrives while this step is computed
      if (FULL && warp == 0)
#pragma unroll
        for (int r = 0; r < 2; ++r) prefetch_row_l2(a.input + rays.sample(r, step + PREFETCH_STEPS) * n_input, n_input);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const bool active = step < rays.length[r];
        const int64_t n = rays.first[r] + step;
        float h[4], act[3][4];
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const int e = 2 * r + k % 2;
          const Gates<float> gates = fast_activate<T>(sum[0][k / 2][e], sum[1][k / 2][e], sum[2][k / 2][e]);
          if (active) c[r][k] += gates.g * gates.i;
          h[k] = fast_tanh<T>(c[r][k]) * gates.o;
          act[0][k] = gates.i, act[1][k] = gates.o, act[2][k] = gates.g;
        }
        T* next = shared_row(now ^ 1, r) + unit;
        if (active)
          store(next, h);
        else
          *reinterpret_cast<Vec4<T>*>(next) = *reinterpret_cast<const Vec4<T>*>(shared_row(now, r) + unit);
        store_vec4<FULL>(a.h + n * n_state, unit, n_state, active, h);
        if (!saved.activated) continue;
        store_vec4<FULL>(saved.c + n * n_state, unit, n_state, active, c[r]);
        float before[4];
        load(shared_row(now, r) + unit, before);
        store_vec4<FULL>(saved.before + n * n_state, unit, n_state, active, before);
#pragma unroll
        for (int gate = 0; gate < 3; ++gate)
          store_vec4<FULL>(saved.activated + (3 * n + gate) * n_state, unit, n_state, active, act[gate]);
      }
      now ^= 1;
      sync_group(group, GROUP);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const bool real = rays.ray[r] >= 0;
      float h[4];
      load(shared_row(now, r) + unit, h);
      store_vec4<FULL>(a.h_n + rays.ray[r] * n_state, unit, n_state, real, h);
      store_vec4<FULL>(a.c_n + rays.ray[r] * n_state, unit, n_state, real, c[r]);
    }
  }
}

}  // namespace

template <class T>
bool launch_mma16_forward(const LltmLaunch& on, const LltmForward<void>& arguments) {
  using Op = MmaOperand<T>;
  const LltmForward<T> a = arguments.as<T>();
  const LltmShape& s = a.shape;
  bool done = false;
  with_size(s.n_state, [&](auto state) {
    with_size(s.n_input, [&](auto input) {
      constexpr int H = state.value, I = input.value;
      using Size = Group<T, H>;
      size_t of_block = 3 * H * sizeof(float);
      if (!Op::IN_REGISTERS)
        of_block += size_t(Size::WARPS) * 2 * 3 * ((H + I) / Op::K) * 32 * sizeof(typename Op::BFragment);
      const size_t of_group = 2 * RAYS * (H + PADDING) * sizeof(T);
      const bool full = s.n_state == H && s.n_input == I && s.n_samples > 0;
      const auto kernel = full ? lltm_mma16_forward<T, H, I, true> : lltm_mma16_forward<T, H, I, false>;
      done = launch_mma16<Size>(kernel, a, saved_gates(a.workspace, s), of_block, of_group, on);
    });
  });
  return done;
}

}  // namespace nerfkit
