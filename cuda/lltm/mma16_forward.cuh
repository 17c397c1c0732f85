// SPDX-License-Identifier: Apache-2.0
// The LLTM along 16 rays, near to far.

#pragma once

#include "lltm/mma16.cuh"

namespace nerfkit {
namespace {

// H and I are the sizes, rounded up to a multiple of 16; what is added is zero and stays zero.
template <class T, int H, int I, bool FULL>
__global__ void __launch_bounds__(Group<T, H>::OF_BLOCK, ALONE<T, H, I>)
    forward_tiles(const LltmArrays<T> a, int tiles) {
  using Op = Tile<T>;
  using Weight = typename Op::Weight;
  constexpr int PARTS = 16 / Op::DEPTH, QUADS_H = H / 16, QUADS = QUADS_H + I / 16, DEPTHS = QUADS * PARTS;
  constexpr int WARPS = Group<T, H>::WARPS, GROUP = Group<T, H>::THREADS, WEIGHTS = 2 * 3 * DEPTHS;  // of a warp
  constexpr bool EARLY =
      Op::IN_REGISTERS || (FULL && ALONE<T, H, I>);  // inputs are in registers a step before they are taken
  extern __shared__ __align__(16) unsigned char shared[];
  const int groups = blockDim.x / GROUP;
  T* states = reinterpret_cast<T*>(shared);  // [groups, 2, RAYS, H + PADDING]
  float* biases = reinterpret_cast<float*>(states + groups * 2 * RAYS * (H + PADDING));  // [3, H]
  Weight* weights = reinterpret_cast<Weight*>(biases + 3 * H);                           // [WARPS, WEIGHTS, 32]
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
  OwnWeights<T, WEIGHTS> own;
  keep_weights<T, WEIGHTS>(own, weights, part, lane, group, groups, weight_of);
  for (int i = threadIdx.x; i < 3 * H; i += blockDim.x)
    biases[i] = i % H < n_state ? float(a.bias[i / H * n_state + i % H]) : 0.f;
  __syncthreads();

  T* state = states + group * 2 * RAYS * (H + PADDING);
  auto place = [&](int buffer, int r) { return state + (buffer * RAYS + g + 8 * r) * (H + PADDING); };
  const int unit = unit0 + 4 * t;  // the first of this lane's four

  for (int tile = blockIdx.x * groups + group; tile < tiles; tile += gridDim.x * groups) {
    const LaneRows rows = rows_of_lane(a.shape, tile, g);
    float c[2][4];
    int now = 0;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const bool real = rows.ray[r] >= 0;
      const Quad<T> start = load_quad<FULL>(a.c0 + rows.real_ray(r) * n_state, unit, n_state, real);
#pragma unroll
      for (int k = 0; k < 4; ++k) c[r][k] = float(start.v[k]);
      *reinterpret_cast<Quad<T>*>(place(now, r) + unit) =
          load_quad<FULL>(a.h0 + rows.real_ray(r) * n_state, unit, n_state, real);
    }
    Quad<T> x[I / 16][2];
    auto load_input = [&](int step) {
#pragma unroll
      for (int i = 0; i < I / 16; ++i)
#pragma unroll
        for (int r = 0; r < 2; ++r)
          x[i][r] =
              load_quad<FULL>(a.input + rows.sample(r, step) * n_input, 16 * i + 4 * t, n_input, step < rows.length[r]);
    };
    if (EARLY) load_input(0);
    wait_for_group(group, GROUP);
    for (int step = 0; step < rows.longest; ++step) {
      if (!EARLY) load_input(step);
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
      auto add = [&](int quad, const Quad<T>& low, const Quad<T>& high) {
        add_products<T, 3, WEIGHTS>(sum, own, weights, part, lane, quad, low, high);
      };
#pragma unroll
      for (int quad = 0; quad < QUADS_H; ++quad)
        add(quad, *reinterpret_cast<const Quad<T>*>(place(now, 0) + 16 * quad + 4 * t),
            *reinterpret_cast<const Quad<T>*>(place(now, 1) + 16 * quad + 4 * t));
#pragma unroll
      for (int i = 0; i < I / 16; ++i) add(QUADS_H + i, x[i][0], x[i][1]);
      if (EARLY) load_input(step + 1);  // arrives while this step is computed
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
      wait_for_group(group, GROUP);
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

}  // namespace
}  // namespace nerfkit
