// SPDX-License-Identifier: Apache-2.0
// The gradients of the LLTM along 16 rays, far to near.

#include "lltm/mma16.cuh"

namespace nerfkit {
namespace {

template <class T, int H, bool FULL>
__global__ void __launch_bounds__(Group<T, H>::BLOCK_THREADS, ONE_BLOCK<T, H, 0>)
    lltm_mma16_backward(const LltmGateBackward<T> a, const SavedGates<const T> saved, int tiles) {
  using Op = MmaOperand<T>;
  using Weight = typename Op::BFragment;
  constexpr int MMAS = 16 / Op::K, K_BLOCKS = 3 * H / 16, K_STEPS = K_BLOCKS * MMAS;
  constexpr int WARPS = Group<T, H>::WARPS, GROUP = Group<T, H>::THREADS, WEIGHTS = 2 * K_STEPS, ROW = 3 * H + PADDING;
  constexpr bool PREFETCH =
      Op::IN_REGISTERS || (FULL && ONE_BLOCK<T, H, 0>);  // a sample is in registers a step before it is taken
  extern __shared__ __align__(16) unsigned char shared[];
  const int groups = blockDim.x / GROUP;
  T* grads = reinterpret_cast<T*>(shared);  // [groups, 2, RAYS, ROW], of the gates
  Weight* weights = reinterpret_cast<Weight*>(grads + groups * 2 * RAYS * ROW);
  const int n_state = a.shape.n_state, columns = n_state + a.shape.n_input;
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int warp = threadIdx.x / 32 % WARPS, group = threadIdx.x / 32 / WARPS, unit0 = warp * UNITS;

  auto weight_of = [&](int i) {  // i = p * K_STEPS + d
    const int d = i % K_STEPS, p = i / K_STEPS, to = unit0 + column_of(g, p);
    return Op::b_fragment(t, d % MMAS, [&](int k) {
      const int at = d / MMAS * 16 + k, gate = at / H, from = at % H;
      return from < n_state && to < n_state ? float(a.weight[int64_t(gate * n_state + from) * columns + to]) : 0.f;
    });
  };
  RegisterWeights<T, WEIGHTS> own;
  stage_weights<T, WEIGHTS>(own, weights, warp, lane, group, groups, weight_of);
  if constexpr (!Op::IN_REGISTERS) __syncthreads();
  T* grad_rows = grads + group * 2 * RAYS * ROW;
  float bias[3][4] = {};
  auto shared_row = [&](int buffer, int r) { return grad_rows + (buffer * RAYS + g + 8 * r) * ROW; };
  const int unit = unit0 + 4 * t;

  for (int tile = blockIdx.x * groups + group; tile < tiles; tile += gridDim.x * groups) {
    const LaneRays rays = lane_rays(a.shape, tile, g);
    float grad_h[2][4], grad_c[2][4];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const bool real = rays.ray[r] >= 0;
      const Vec4<T> from_h = load_vec4<FULL>(a.grad_h_n + rays.real_ray(r) * n_state, unit, n_state, real);
      const Vec4<T> from_c = load_vec4<FULL>(a.grad_c_n + rays.real_ray(r) * n_state, unit, n_state, real);
#pragma unroll
      for (int k = 0; k < 4; ++k)
        grad_h[r][k] = real ? float(from_h.v[k]) : 0.f, grad_c[r][k] = real ? float(from_c.v[k]) : 0.f;
    }
    struct Sample {
      Vec4<T> act[3], c, grad_h;
    } sample[2];
    auto load_sample = [&](int step) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const bool active = step >= 0 && step < rays.length[r];
        const int64_t n = rays.sample(r, step);
#pragma unroll
        for (int gate = 0; gate < 3; ++gate)
          sample[r].act[gate] = load_vec4<FULL>(saved.activated + (3 * n + gate) * n_state, unit, n_state, active);
        sample[r].c = load_vec4<FULL>(saved.c + n * n_state, unit, n_state, active);
        sample[r].grad_h = load_vec4<FULL>(a.grad_h + n * n_state, unit, n_state, active);
      }
    };
    int now = 0;
    if (PREFETCH) load_sample(rays.longest - 1);
    for (int step = rays.longest - 1; step >= 0; --step) {
      if (!PREFETCH) load_sample(step);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const bool active = step < rays.length[r];
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
        const int64_t n = rays.first[r] + step;
#pragma unroll
        for (int gate = 0; gate < 3; ++gate) {
#pragma unroll
          for (int k = 0; k < 4; ++k) bias[gate][k] += grad[gate][k];
          store(shared_row(now, r) + gate * H + unit, grad[gate]);
          store_vec4<FULL>(a.grad_gates + (3 * n + gate) * n_state, unit, n_state, active, grad[gate]);
        }
      }
      if (PREFETCH) load_sample(step - 1);  // arrives while this step is computed
      if (FULL && warp == 0)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int64_t n = rays.sample(r, step - PREFETCH_STEPS);
          prefetch_row_l2(saved.activated + 3 * n * n_state, 3 * n_state);
          prefetch_row_l2(saved.c + n * n_state, n_state);
          prefetch_row_l2(a.grad_h + n * n_state, n_state);
        }
      sync_group(group, GROUP);
      float before[1][2][4] = {};  // gradient of the state before this step
#pragma unroll
      for (int k_block = 0; k_block < K_BLOCKS; ++k_block)
        add_products<T, 1, WEIGHTS>(before, own, weights, warp, lane, k_block,
                                    *reinterpret_cast<const Vec4<T>*>(shared_row(now, 0) + 16 * k_block + 4 * t),
                                    *reinterpret_cast<const Vec4<T>*>(shared_row(now, 1) + 16 * k_block + 4 * t));
#pragma unroll
      for (int r = 0; r < 2; ++r)
#pragma unroll
        for (int k = 0; k < 4; ++k)
          grad_h[r][k] = step < rays.length[r] ? before[0][k / 2][2 * r + k % 2] : grad_h[r][k];
      now ^= 1;
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const bool real = rays.ray[r] >= 0;
      store_vec4<FULL>(a.grad_h0 + rays.ray[r] * n_state, unit, n_state, real, grad_h[r]);
      store_vec4<FULL>(a.grad_c0 + rays.ray[r] * n_state, unit, n_state, real, grad_c[r]);
    }
    sync_group(group, GROUP);
  }
  store_bias(a.grad_bias + (int64_t(blockIdx.x) * groups + group) * 3 * n_state, bias, unit, n_state);
}

}  // namespace

bool launch_mma16_backward(const LltmLaunch& on, const LltmGateBackward<void>& arguments) {
  bool done = false;
  dispatch(on.dtype, [&](auto element) {
    using T = decltype(element);
    if constexpr (sizeof(T) < 8) {
      using Op = MmaOperand<T>;
      const LltmGateBackward<T> a = arguments.as<T>();
      const LltmShape& s = a.shape;
      with_size(s.n_state, [&](auto state) {
        constexpr int H = state.value;
        using Size = Group<T, H>;
        size_t of_block = 0;
        if (!Op::IN_REGISTERS)
          of_block = size_t(Size::WARPS) * 2 * (3 * H / Op::K) * 32 * sizeof(typename Op::BFragment);
        const bool full = s.n_state == H && s.n_samples > 0;
        const auto kernel = full ? lltm_mma16_backward<T, H, true> : lltm_mma16_backward<T, H, false>;
        const size_t of_group = 2 * RAYS * (3 * H + PADDING) * sizeof(T);
        done = launch_mma16<Size>(kernel, a, saved_gates(a.workspace, s), of_block, of_group, on);
      });
    }
  });
  return done;
}

}  // namespace nerfkit
