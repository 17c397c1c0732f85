// SPDX-License-Identifier: Apache-2.0
// The gradients of the LLTM of many units along 16 or 32 rays, far to near.

#pragma once

#include "lltm/large_state.cuh"

namespace nerfkit {
namespace {

// Warps of a block, at most: half as many where a thread has more to hold.
template <int TILES, int GROUPS>
constexpr int BACKWARD_WARPS = TILES * GROUPS == 1 ? 16 : 8;

// Bytes of shared memory besides the weight.
template <class T>
size_t backward_wide_bytes(const LltmShape& s, int rays) {
  return size_t(rays) * 2 * row_of(3 * sixteens(s.n_state)) * sizeof(T) + rays * sizeof(RowOfBlock);
}

template <class T>
struct WideSample {
  Quad<T> act[3], c, grad_h;
};

// Units unit .. unit + 3 of sample n; of units that are not there, anything. All loads are on their way together.
template <class T>
__device__ __forceinline__ void load_sample(WideSample<T>& to, const LltmGradients<T>& a, int64_t n, int unit) {
  const int n_state = a.shape.n_state, first = unit < n_state ? unit : 0;
  const T *act = a.activated + 3 * n * n_state + first, *c = a.c + n * n_state + first,
          *grad_h = a.h + n * n_state + first;
  if (n_state % 4 == 0) {
#pragma unroll
    for (int gate = 0; gate < 3; ++gate) to.act[gate] = *reinterpret_cast<const Quad<T>*>(act + gate * n_state);
    to.c = *reinterpret_cast<const Quad<T>*>(c), to.grad_h = *reinterpret_cast<const Quad<T>*>(grad_h);
  } else {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int at = first + k < n_state ? k : 0;
#pragma unroll
      for (int gate = 0; gate < 3; ++gate) to.act[gate].v[k] = act[gate * n_state + at];
      to.c.v[k] = c[at], to.grad_h.v[k] = grad_h[at];
    }
  }
}

// TILES of 16 rays; a warp has GROUPS times 16 units.
template <class T, int TILES, int GROUPS>
__global__ void __launch_bounds__(32 * BACKWARD_WARPS<TILES, GROUPS>)
    backward_wide(const LltmGradients<T> a, const WideWeight weight, int tiles) {
  constexpr int BLOCK_RAYS = TILES * RAYS;
  constexpr bool EARLY =
      sizeof(T) == 2 && TILES == 1 && GROUPS == 1;  // a sample is in registers a step before it is taken
  extern __shared__ __align__(16) unsigned char shared[];
  const int n_state = a.shape.n_state, blocks_h = sixteens(n_state), padded_h = 16 * blocks_h,
            row_g = row_of(3 * blocks_h);
  uint4* kept = reinterpret_cast<uint4*>(shared);  // [blocks_h, weight.kept, SIZE]
  T* grads =
      reinterpret_cast<T*>(kept + blocks_h * weight.kept * Operands<T, 1>::SIZE);  // of gates, [2, BLOCK_RAYS, row_g]
  RowOfBlock* rows = reinterpret_cast<RowOfBlock*>(grads + 2 * BLOCK_RAYS * row_g);
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  float bias[GROUPS][3][4] = {};
  keep_first<Operands<T, 1>>(kept, weight, blocks_h);
  auto each_state = [&](const auto& f) {  // of this lane: group j of the warp's, row r of its rays
#pragma unroll
    for (int j = 0; j < GROUPS; ++j)
#pragma unroll
      for (int r = 0; r < 2 * TILES; ++r) f(j, r, 16 * (warp + j * warps) + 4 * t, rows[g + 8 * r].ray);
  };

#pragma unroll 1
  for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    __syncthreads();
    find_rows(rows, BLOCK_RAYS, a.shape, tile);
    __syncthreads();
    const int longest = longest_of(rows, BLOCK_RAYS);
    float grad_h[GROUPS][TILES][2][4], grad_c[GROUPS][TILES][2][4];
    each_state([&](int j, int r, int unit, int64_t ray) {
      const Quad<T> from_h = load_quad<false>(a.h_n + ray * n_state, unit, n_state, ray >= 0);
      const Quad<T> from_c = load_quad<false>(a.c_n + ray * n_state, unit, n_state, ray >= 0);
#pragma unroll
      for (int k = 0; k < 4; ++k)
        grad_h[j][r / 2][r % 2][k] = float(from_h.v[k]), grad_c[j][r / 2][r % 2][k] = float(from_c.v[k]);
    });
    WideSample<T> sample[2 * TILES];
    auto load_samples = [&](int step, int unit) {
#pragma unroll
      for (int r = 0; r < 2 * TILES; ++r) {
        const RowOfBlock& row = rows[g + 8 * r];
        load_sample(sample[r], a, step < row.length ? row.first + step : 0, unit);
      }
    };
    if (EARLY && longest > 0) load_samples(longest - 1, 16 * warp + 4 * t);
#pragma unroll 1
    for (int step = longest - 1; step >= 0; --step) {
      T* to = grads + step % 2 * BLOCK_RAYS * row_g;
#pragma unroll
      for (int j = 0; j < GROUPS; ++j) {
        const int unit = 16 * (warp + j * warps) + 4 * t;
        if (unit >= padded_h) continue;
        if (!EARLY) load_samples(step, unit);
#pragma unroll
        for (int r = 0; r < 2 * TILES; ++r) {
          const RowOfBlock& row = rows[g + 8 * r];
          const bool active = step < row.length;
          float grad[3][4];
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            const bool real = active && unit + k < n_state;
            const Quad<T>(&act)[3] = sample[r].act;
            const Gates<float> gates{float(act[0].v[k]), float(act[1].v[k]), float(act[2].v[k])};
            Gates<float> of;
            float &dc = grad_c[j][r / 2][r % 2][k], dh = grad_h[j][r / 2][r % 2][k] + float(sample[r].grad_h.v[k]);
            const float before = activate_bwd_at(gates, fast_tanh<T>(float(sample[r].c.v[k])), dh, dc, of);
            grad[0][k] = real ? of.i : 0.f, grad[1][k] = real ? of.o : 0.f, grad[2][k] = real ? of.g : 0.f;
            dc = real ? before : dc;
          }
          const int64_t n = row.first + step;
#pragma unroll
          for (int gate = 0; gate < 3; ++gate) {
#pragma unroll
            for (int k = 0; k < 4; ++k) bias[j][gate][k] += grad[gate][k];
            store(to + (g + 8 * r) * row_g + gate * padded_h + unit, grad[gate]);
            if (active) store_units(a.gates + (3 * n + gate) * n_state, unit, n_state, grad[gate]);
          }
        }
      }
      if (EARLY && step > 0) load_samples(step - 1, 16 * warp + 4 * t);  // arrives while this step is computed
      __syncthreads();
#pragma unroll
      for (int j = 0; j < GROUPS; ++j) {
        const int group = warp + j * warps;
        if (group >= blocks_h) continue;
        float before[TILES][1][2][4] = {};  // gradient of the state before this step
        add_depths<T, 1, TILES>(before, weight, kept, group, 0, weight.depths, to + g * row_g + 4 * t, row_g);
#pragma unroll
        for (int r = 0; r < 2 * TILES; ++r)
#pragma unroll
          for (int k = 0; k < 4; ++k)
            if (step < rows[g + 8 * r].length) grad_h[j][r / 2][r % 2][k] = before[r / 2][0][k / 2][r % 2 * 2 + k % 2];
      }
    }
    each_state([&](int j, int r, int unit, int64_t ray) {
      if (ray < 0) return;
      store_units(a.h0 + ray * n_state, unit, n_state, grad_h[j][r / 2][r % 2]);
      store_units(a.c0 + ray * n_state, unit, n_state, grad_c[j][r / 2][r % 2]);
    });
  }
  float* bias_row = a.bias + int64_t(blockIdx.x) * 3 * n_state;
#pragma unroll
  for (int j = 0; j < GROUPS; ++j)
#pragma unroll
    for (int gate = 0; gate < 3; ++gate)
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        float sum = bias[j][gate][k];
        for (int offset = 16; offset >= 4; offset /= 2) sum += __shfl_xor_sync(FULL_MASK, sum, offset);
        const int unit = 16 * (warp + j * warps) + 4 * t + k;
        if (g == 0 && unit < n_state) bias_row[gate * n_state + unit] = sum;
      }
}

}  // namespace
}  // namespace nerfkit
