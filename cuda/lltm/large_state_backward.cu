// SPDX-License-Identifier: Apache-2.0
// The gradients of the LLTM of many units along 16 or 32 rays, far to near.

#include "lltm/large_state.cuh"

namespace nerfkit {
namespace {

// Warps of a block, at most: half as many where a thread has more to hold.
template <int TILES, int GROUPS>
constexpr int BACKWARD_WARPS = TILES * GROUPS == 1 ? 16 : 8;

// Bytes of shared memory besides the weight.
template <class T>
size_t backward_bytes(const LltmShape& s, int rays) {
  return size_t(rays) * 2 * shared_row(3 * blocks_of_16(s.n_state)) * sizeof(T) + rays * sizeof(BlockRay);
}

template <class T>
struct LargeStateSample {
  Vec4<T> act[3], c, grad_h;
};

// Units unit .. unit + 3 of sample n; of units that are not there, anything. All loads are on their way together.
template <class T>
__device__ __forceinline__ void load_sample(LargeStateSample<T>& to, const LltmGateBackward<T>& a,
                                            const SavedGates<const T>& saved, int64_t n, int unit) {
  const int n_state = a.shape.n_state, first = unit < n_state ? unit : 0;
  const T *act = saved.activated + 3 * n * n_state + first, *c = saved.c + n * n_state + first,
          *grad_h = a.grad_h + n * n_state + first;
  if (n_state % 4 == 0) {
#pragma unroll
    for (int gate = 0; gate < 3; ++gate) to.act[gate] = *reinterpret_cast<const Vec4<T>*>(act + gate * n_state);
    to.c = *reinterpret_cast<const Vec4<T>*>(c), to.grad_h = *reinterpret_cast<const Vec4<T>*>(grad_h);
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
    lltm_large_state_backward(const LltmGateBackward<T> a, const SavedGates<const T> saved, const PackedWeight weight,
                              int tiles) {
  constexpr int BLOCK_RAYS = TILES * RAYS;
  constexpr bool PREFETCH =
      sizeof(T) == 2 && TILES == 1 && GROUPS == 1;  // a sample is in registers a step before it is taken
  extern __shared__ __align__(16) unsigned char shared[];
  const int n_state = a.shape.n_state, blocks_h = blocks_of_16(n_state), padded_h = 16 * blocks_h,
            row_g = shared_row(3 * blocks_h);
  uint4* resident = reinterpret_cast<uint4*>(shared);  // [blocks_h, weight.resident, SIZE]
  T* grads = reinterpret_cast<T*>(resident + blocks_h * weight.resident *
                                                 PackedBlock<T, 1>::SIZE);  // of gates, [2, BLOCK_RAYS, row_g]
  BlockRay* rows = reinterpret_cast<BlockRay*>(grads + 2 * BLOCK_RAYS * row_g);
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  float bias[GROUPS][3][4] = {};
  stage_weight<PackedBlock<T, 1>>(resident, weight, blocks_h);
  auto each_state = [&](const auto& f) {  // of this lane: group j of the warp's, row r of its rays
#pragma unroll
    for (int j = 0; j < GROUPS; ++j)
#pragma unroll
      for (int r = 0; r < 2 * TILES; ++r) f(j, r, 16 * (warp + j * warps) + 4 * t, rows[g + 8 * r].ray);
  };

#pragma unroll 1
  for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    __syncthreads();
    find_rays(rows, BLOCK_RAYS, a.shape, tile);
    __syncthreads();
    const int longest = longest_of(rows, BLOCK_RAYS);
    float grad_h[GROUPS][TILES][2][4], grad_c[GROUPS][TILES][2][4];
    each_state([&](int j, int r, int unit, int64_t ray) {
      const Vec4<T> from_h = load_vec4<false>(a.grad_h_n + ray * n_state, unit, n_state, ray >= 0);
      const Vec4<T> from_c = load_vec4<false>(a.grad_c_n + ray * n_state, unit, n_state, ray >= 0);
#pragma unroll
      for (int k = 0; k < 4; ++k)
        grad_h[j][r / 2][r % 2][k] = float(from_h.v[k]), grad_c[j][r / 2][r % 2][k] = float(from_c.v[k]);
    });
    LargeStateSample<T> sample[2 * TILES];
    auto load_samples = [&](int step, int unit) {
#pragma unroll
      for (int r = 0; r < 2 * TILES; ++r) {
        const BlockRay& row = rows[g + 8 * r];
        load_sample(sample[r], a, saved, step < row.length ? row.first + step : 0, unit);
      }
    };
    if (PREFETCH && longest > 0) load_samples(longest - 1, 16 * warp + 4 * t);
#pragma unroll 1
    for (int step = longest - 1; step >= 0; --step) {
      T* to = grads + step % 2 * BLOCK_RAYS * row_g;
#pragma unroll
      for (int j = 0; j < GROUPS; ++j) {
        const int unit = 16 * (warp + j * warps) + 4 * t;
        if (unit >= padded_h) continue;
        if (!PREFETCH) load_samples(step, unit);
#pragma unroll
        for (int r = 0; r < 2 * TILES; ++r) {
          const BlockRay& row = rows[g + 8 * r];
          const bool active = step < row.length;
          float grad[3][4];
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            const bool real = active && unit + k < n_state;
            const Vec4<T>(&act)[3] = sample[r].act;
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
            if (active) store_units(a.grad_gates + (3 * n + gate) * n_state, unit, n_state, grad[gate]);
          }
        }
      }
      if (PREFETCH && step > 0) load_samples(step - 1, 16 * warp + 4 * t);  // arrives while this step is computed
      __syncthreads();
#pragma unroll
      for (int j = 0; j < GROUPS; ++j) {
        const int group = warp + j * warps;
        if (group >= blocks_h) continue;
        float before[TILES][1][2][4] = {};  // gradient of the state before this step
        add_depths<T, 1, TILES>(before, weight, resident, group, 0, weight.depths, to + g * row_g + 4 * t, row_g);
#pragma unroll
        for (int r = 0; r < 2 * TILES; ++r)
#pragma unroll
          for (int k = 0; k < 4; ++k)
            if (step < rows[g + 8 * r].length) grad_h[j][r / 2][r % 2][k] = before[r / 2][0][k / 2][r % 2 * 2 + k % 2];
      }
    }
    each_state([&](int j, int r, int unit, int64_t ray) {
      if (ray < 0) return;
      store_units(a.grad_h0 + ray * n_state, unit, n_state, grad_h[j][r / 2][r % 2]);
      store_units(a.grad_c0 + ray * n_state, unit, n_state, grad_c[j][r / 2][r % 2]);
    });
  }
#pragma unroll
  for (int j = 0; j < GROUPS; ++j)
    store_bias(a.grad_bias + int64_t(blockIdx.x) * 3 * n_state, bias[j], 16 * (warp + j * warps) + 4 * t, n_state);
}

// TILES of 16 rays per block, GROUPS of 16 units per warp.
template <class T, int TILES, int GROUPS>
bool launch(const LltmGateBackward<T>& a, const LltmLaunch& on) {
  const int rays = RAYS * TILES, warps = (blocks_of_16(a.shape.n_state) + GROUPS - 1) / GROUPS;
  return warps <= BACKWARD_WARPS<TILES, GROUPS> &&
         launch_large_state<T, 1>(lltm_large_state_backward<T, TILES, GROUPS>, a, saved_gates(a.workspace, a.shape),
                                  rays, warps, backward_bytes<T>(a.shape, rays), on);
}

}  // namespace

bool launch_large_state_backward(const LltmLaunch& on, const LltmGateBackward<void>& arguments) {
  bool done = false;
  dispatch(on.dtype, [&](auto element) {
    using T = decltype(element);
    if constexpr (sizeof(T) < 8) {
      const LltmGateBackward<T> a = arguments.as<T>();
      done = (rays_wait(a.shape, on.gpu) && launch<T, 2, 1>(a, on)) || launch<T, 1, 1>(a, on) || launch<T, 1, 4>(a, on);
    }
  });
  return done;
}

}  // namespace nerfkit
