// SPDX-License-Identifier: Apache-2.0
// The gradients of the LLTM along 16 rays, far to near.

#pragma once

#include "lltm/mma16.cuh"

namespace nerfkit {
namespace {

template <class T, int H, bool FULL>
__global__ void __launch_bounds__(Group<T, H>::OF_BLOCK, ALONE<T, H, 0>)
    backward_tiles(const LltmGradients<T> a, int tiles) {
  using Op = Tile<T>;
  using Weight = typename Op::Weight;
  constexpr int PARTS = 16 / Op::DEPTH, QUADS = 3 * H / 16, DEPTHS = QUADS * PARTS;
  constexpr int WARPS = Group<T, H>::WARPS, GROUP = Group<T, H>::THREADS, WEIGHTS = 2 * DEPTHS, ROW = 3 * H + PADDING;
  constexpr bool EARLY =
      Op::IN_REGISTERS || (FULL && ALONE<T, H, 0>);  // a sample is in registers a step before it is taken
  extern __shared__ __align__(16) unsigned char shared[];
  const int groups = blockDim.x / GROUP;
  T* grads = reinterpret_cast<T*>(shared);  // [groups, 2, RAYS, ROW], of the gates
  Weight* weights = reinterpret_cast<Weight*>(grads + groups * 2 * RAYS * ROW);
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
  OwnWeights<T, WEIGHTS> own;
  keep_weights<T, WEIGHTS>(own, weights, part, lane, group, groups, weight_of);
  if constexpr (!Op::IN_REGISTERS) __syncthreads();
  T* grad_rows = grads + group * 2 * RAYS * ROW;
  float bias[3][4] = {};
  auto place = [&](int buffer, int r) { return grad_rows + (buffer * RAYS + g + 8 * r) * ROW; };
  const int unit = unit0 + 4 * t;

  for (int tile = blockIdx.x * groups + group; tile < tiles; tile += gridDim.x * groups) {
    const LaneRows rows = rows_of_lane(a.shape, tile, g);
    float grad_h[2][4], grad_c[2][4];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const bool real = rows.ray[r] >= 0;
      const Quad<T> from_h = load_quad<FULL>(a.h_n + rows.real_ray(r) * n_state, unit, n_state, real);
      const Quad<T> from_c = load_quad<FULL>(a.c_n + rows.real_ray(r) * n_state, unit, n_state, real);
#pragma unroll
      for (int k = 0; k < 4; ++k)
        grad_h[r][k] = real ? float(from_h.v[k]) : 0.f, grad_c[r][k] = real ? float(from_c.v[k]) : 0.f;
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
    if (EARLY) load_sample(rows.longest - 1);
    for (int step = rows.longest - 1; step >= 0; --step) {
      if (!EARLY) load_sample(step);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const bool active = step < rows.length[r];
        float grad[3][4];
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const float i = float(sample[r].act[0].v[k]), o = float(sample[r].act[1].v[k]),
                      gate_g = float(sample[r].act[2].v[k]);
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
      if (EARLY) load_sample(step - 1);  // arrives while this step is computed
      if (FULL && part == 0)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int64_t n = rows.sample(r, step - AHEAD);
          fetch_ahead(a.activated + 3 * n * n_state, 3 * n_state);
          fetch_ahead(a.c + n * n_state, n_state);
          fetch_ahead(a.h + n * n_state, n_state);
        }
      wait_for_group(group, GROUP);
      float before[1][2][4] = {};  // gradient of the state before this step
#pragma unroll
      for (int quad = 0; quad < QUADS; ++quad)
        add_products<T, 1, WEIGHTS>(before, own, weights, part, lane, quad,
                                    *reinterpret_cast<const Quad<T>*>(place(now, 0) + 16 * quad + 4 * t),
                                    *reinterpret_cast<const Quad<T>*>(place(now, 1) + 16 * quad + 4 * t));
#pragma unroll
      for (int r = 0; r < 2; ++r)
#pragma unroll
        for (int k = 0; k < 4; ++k)
          grad_h[r][k] = step < rows.length[r] ? before[0][k / 2][2 * r + k % 2] : grad_h[r][k];
      now ^= 1;
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const bool real = rows.ray[r] >= 0;
      store_quad<FULL>(a.h0 + rows.ray[r] * n_state, unit, n_state, real, grad_h[r]);
      store_quad<FULL>(a.c0 + rows.ray[r] * n_state, unit, n_state, real, grad_c[r]);
    }
    wait_for_group(group, GROUP);
  }
  float* bias_row = a.bias + (int64_t(blockIdx.x) * groups + group) * 3 * n_state;
#pragma unroll
  for (int gate = 0; gate < 3; ++gate)
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      float sum = bias[gate][k];
      for (int offset = 16; offset >= 4; offset /= 2) sum += __shfl_xor_sync(FULL_MASK, sum, offset);
      if (g == 0 && unit + k < n_state) bias_row[gate * n_state + unit + k] = sum;
    }
}

}  // namespace
}  // namespace nerfkit
