// SPDX-License-Identifier: Apache-2.0
// The gradients of the LLTM of 16 units along 8 rays per warp, far to near: of all inputs at once.

#include "common/reduce_partials.cuh"
#include "lltm/state16.cuh"

namespace nerfkit {
namespace {

constexpr int STATE16_THREADS = 256;                             // one block per multiprocessor
constexpr int lane_vec4s(int blocks) { return 6 * blocks + 2; }  // of a lane's sums, [3][2 blocks][4] and [3][2]

// The sums of the block's warps: the upper half hands its own to the lower one, until one is left. The same every time.
template <int WARPS, int BLOCKS>
__device__ __forceinline__ void add_warps(float4* shared, float (&grad_weight)[3][2 * BLOCKS][4],
                                          float (&grad_bias)[3][2]) {
  const int lane = threadIdx.x % 32, w = threadIdx.x / 32;
#pragma unroll
  for (int half = WARPS / 2; half > 0; half /= 2) {
    float4* slot = shared + w % half * lane_vec4s(BLOCKS) * 32 + lane;
    __syncthreads();
    if (w >= half && w < 2 * half) {
#pragma unroll
      for (int i = 0; i < 6 * BLOCKS; ++i) {
        const float (&s)[4] = grad_weight[i / (2 * BLOCKS)][i % (2 * BLOCKS)];
        slot[i * 32] = make_float4(s[0], s[1], s[2], s[3]);
      }
      slot[6 * BLOCKS * 32] = make_float4(grad_bias[0][0], grad_bias[0][1], grad_bias[1][0], grad_bias[1][1]);
      slot[(6 * BLOCKS + 1) * 32] = make_float4(grad_bias[2][0], grad_bias[2][1], 0.f, 0.f);
    }
    __syncthreads();
    if (w < half) {
#pragma unroll
      for (int i = 0; i < 6 * BLOCKS; ++i) {
        float (&s)[4] = grad_weight[i / (2 * BLOCKS)][i % (2 * BLOCKS)];
        const float4 v = slot[i * 32];
        s[0] += v.x, s[1] += v.y, s[2] += v.z, s[3] += v.w;
      }
      const float4 v = slot[6 * BLOCKS * 32], last = slot[(6 * BLOCKS + 1) * 32];
      grad_bias[0][0] += v.x, grad_bias[0][1] += v.y, grad_bias[1][0] += v.z, grad_bias[1][1] += v.w;
      grad_bias[2][0] += last.x, grad_bias[2][1] += last.y;
    }
  }
}

// A block's sums [3H, H + I + 1]: the weight's, and the bias's behind them.
template <int I, int N>
__device__ __forceinline__ void write_sums(float* sums, const float (&grad_weight)[3][N][4],
                                           const float (&grad_bias)[3][2], int g, int t) {
  constexpr int H = STATE16, ROW_SUMS = H + I + 1;
#pragma unroll
  for (int gate = 0; gate < 3; ++gate)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float* row = sums + (gate * H + column_of_rank(H, 0, g + 8 * r)) * ROW_SUMS;
#pragma unroll
      for (int k = 0; k < N; ++k) {
        const int column = k < 2 ? H / 4 * t + 2 * k : H + I / 4 * t + 2 * (k - 2);
        row[column] = grad_weight[gate][k][2 * r], row[column + 1] = grad_weight[gate][k][2 * r + 1];
      }
      const float of_bias = warp_sum(grad_bias[gate][r], 4);
      if (t == 0) row[ROW_SUMS - 1] = of_bias;
    }
}

template <class T, int I>
__global__ void __launch_bounds__(STATE16_THREADS, 1)
    lltm_state16_backward(const LltmBackward<T> a, const State16Saved<const T> saved, int tiles) {
  constexpr int H = STATE16, BLOCKS = 1 + I / 16, PREFETCH = 2, WARPS = STATE16_THREADS / 32;
  constexpr int ROW = H * sizeof(T), INPUT_ROW = I * sizeof(T), SAVED_ROW = N_DERIVATIVES * ROW,
                ROW_SUMS = H + I + 1;  // weight's row and bias
  __shared__ __align__(16) float4 shared[WARPS / 2 * lane_vec4s(BLOCKS) * 32];
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  // A processor's quarter has warps w and w + 4: the first takes a long tile, the second a short one.
  const int w = threadIdx.x / 32, warp = (w < WARPS / 2 ? w : WARPS + WARPS / 2 - 1 - w) * gridDim.x + blockIdx.x,
            warps = WARPS * gridDim.x;
  LaneRay next;
  next.find(a.shape, warp, g);
  AFragment weight[3 * BLOCKS];  // [BLOCKS, 3], to state and input
  share_fragments(weight, reinterpret_cast<AFragment*>(shared),
                  [&](int i) { return transposed_fragment<T, H, I>(a.weight, i / 3, i % 3, g, t); });
  float grad_weight[3][2 * BLOCKS][4] = {}, grad_bias[3][2] = {};
  next.find_samples(a.shape);

  struct Sample {
    unsigned x[I / 8], before[2], grad[2];  // by ray
    unsigned derivative[2][N_DERIVATIVES];  // of rays 2t and 2t + 1
  };
  for (int round = 0; round * warps < tiles; ++round) {
    const LaneRay ray = next;
    next.find(a.shape, tile_of(round + 1, warp, warps), g);
    const int length = ray.length(), steps = (longest_ray(length) + PREFETCH - 1) / PREFETCH * PREFETCH;
    const int64_t of_ray = int64_t(ray.ray) * H + t * (H / 4), far = ray.first + steps - 1;
    const char* input = reinterpret_cast<const char*>(a.input + far * I + t * (I / 4));
    int64_t at = (far * H + t * (H / 4)) * int64_t(sizeof(T));  // in before and grad_h
    char* grad_input = reinterpret_cast<char*>(a.grad_input + far * I + t * (I / 4));
    int length_of[2];  // of rays 2t and 2t + 1
    const char* derivatives[2];
#pragma unroll
    for (int q = 0; q < 2; ++q) {
      length_of[q] = __shfl_sync(FULL_MASK, length, 8 * t + 4 * q);
      derivatives[q] = reinterpret_cast<const char*>(
          saved.derivatives + (__shfl_sync(FULL_MASK, far, 8 * t + 4 * q) * 8 + g) * 2 * N_DERIVATIVES);
    }
    Sample sample[PREFETCH] = {};
    auto load_sample = [&](Sample& to, int step, auto back) {
      const bool real = unsigned(step) < unsigned(length);
      to.grad[0] = to.grad[1] = 0;  // h0 has no gradient but that of the first sample
      load_if<-back() * ROW>(real, reinterpret_cast<const char*>(a.grad_h) + at, to.grad);
#pragma unroll
      for (int q = 0; q < 2; ++q)
        load_if<-back() * SAVED_ROW>(unsigned(step) < unsigned(length_of[q]), derivatives[q], to.derivative[q]);
      load_if<-back() * INPUT_ROW>(real, input, to.x);
      load_if<-back() * ROW>(real, reinterpret_cast<const char*>(saved.before) + at, to.before);
    };
    unrolled<PREFETCH>([&](auto j) { return load_sample(sample[j()], steps - 1 - j(), j), true; });
    unsigned grad_h_n[2] = {}, grad_c_n[2] = {};
    load_if<0>(true, reinterpret_cast<const char*>(a.grad_h_n + of_ray), grad_h_n);
    load_if<0>(true, reinterpret_cast<const char*>(a.grad_c_n + of_ray), grad_c_n);
    float dh[4], dc[4];  // gradients of the state, by unit
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float2 both = unpack<T>(movmatrix_trans(grad_c_n[r]));
      dc[2 * r] = both.x, dc[2 * r + 1] = both.y;
      grad_h_n[r] = movmatrix_trans(grad_h_n[r]);
    }
    auto start_grad_h = [&](const Sample& from, int step, float (&to)[4]) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float2 both = unpack<T>(movmatrix_trans(from.grad[r])), end = unpack<T>(grad_h_n[r]);
        to[2 * r] = both.x, to[2 * r + 1] = both.y;
        if (length_of[0] == step + 1) to[2 * r] += end.x;
        if (length_of[1] == step + 1) to[2 * r + 1] += end.y;
      }
    };
    start_grad_h(sample[0], steps - 1, dh);
    input -= PREFETCH * INPUT_ROW, at -= PREFETCH * ROW, derivatives[0] -= PREFETCH * SAVED_ROW,
        derivatives[1] -= PREFETCH * SAVED_ROW;
    next.find_samples(a.shape);
    for (int base = steps - 1; base >= 0; base -= PREFETCH) {
      unsigned by_unit[2][3][2], in[2][2 * BLOCKS];  // of two steps, which make one product for the weight
      unrolled<PREFETCH>([&](auto constant) {
        constexpr int j = constant();
        const int step = base - j;
        Sample& now = sample[j];
        const bool active[2] = {step < length_of[0], step < length_of[1]};
        const unsigned mask = (active[0] ? 0xffffu : 0u) | (active[1] ? 0xffff0000u : 0u);
        float derivative[N_DERIVATIVES][4], grad[3][4];
#pragma unroll
        for (int q = 0; q < 2; ++q)
#pragma unroll
          for (int k = 0; k < N_DERIVATIVES; ++k) {
            const float2 both = unpack<T>(now.derivative[q][k]);
            derivative[k][q] = both.x, derivative[k][q + 2] = both.y;
          }
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          if (active[e % 2]) dc[e] += dh[e] * derivative[DH_DC][e];
          grad[0][e] = dc[e] * derivative[DC_DAI][e], grad[1][e] = dh[e] * derivative[DH_DAO][e],
          grad[2][e] = dc[e] * derivative[DC_DAG][e];
#pragma unroll
          for (int gate = 0; gate < 3; ++gate)
            if (active[e % 2]) grad_bias[gate][e / 2] += grad[gate][e];
        }
        unsigned by_ray[3][2];
#pragma unroll
        for (int gate = 0; gate < 3; ++gate)
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            by_unit[j % 2][gate][r] = pack<T>(grad[gate][2 * r], grad[gate][2 * r + 1]) & mask;
            by_ray[gate][r] = movmatrix_trans(by_unit[j % 2][gate][r]);
          }
        start_grad_h(sample[(j + 1) % PREFETCH], step - 1, dh);
        float half[4] = {};  // two chains of products are shorter than one
        add_mma<T>(half, weight[1], by_ray[1][0], by_ray[1][1]);
        add_mma<T>(dh, weight[0], by_ray[0][0], by_ray[0][1]);
        add_mma<T>(dh, weight[2], by_ray[2][0], by_ray[2][1]);
#pragma unroll
        for (int e = 0; e < 4; ++e) dh[e] += half[e];

#pragma unroll
        for (int k = 0; k < 2 * BLOCKS; ++k)
          in[j % 2][k] = movmatrix_trans(k < 2 ? now.before[k % 2] : now.x[(k + I / 8 - 2) % (I / 8)]);
        load_sample(now, step - PREFETCH, constant);
        unsigned out[I / 8];
#pragma unroll
        for (int k = 0; k < I / 16; ++k) {
          float sum[4] = {};
#pragma unroll
          for (int gate = 0; gate < 3; ++gate)
            add_mma<T>(sum, weight[3 + 3 * k + gate], by_ray[gate][0], by_ray[gate][1]);
          out[2 * k] = movmatrix_trans(pack<T>(sum[0], sum[1])),
                  out[2 * k + 1] = movmatrix_trans(pack<T>(sum[2], sum[3]));
        }
        store_if<-j * INPUT_ROW>(step < length, grad_input, out);
        if constexpr (j % 2 == 1)
#pragma unroll
          for (int gate = 0; gate < 3; ++gate)
#pragma unroll
            for (int k = 0; k < 2 * BLOCKS; ++k)
              mma(T(), grad_weight[gate][k], by_unit[0][gate][0], by_unit[0][gate][1], by_unit[1][gate][0],
                  by_unit[1][gate][1], in[0][k], in[1][k]);
        return true;
      });
      input -= PREFETCH * INPUT_ROW, at -= PREFETCH * ROW, grad_input -= PREFETCH * INPUT_ROW,
          derivatives[0] -= PREFETCH * SAVED_ROW, derivatives[1] -= PREFETCH * SAVED_ROW;
    }
    unsigned out_h[2], out_c[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      out_h[r] = movmatrix_trans(pack<T>(dh[2 * r], dh[2 * r + 1]));
      out_c[r] = movmatrix_trans(pack<T>(dc[2 * r], dc[2 * r + 1]));
    }
    store_if<0>(ray.real, reinterpret_cast<char*>(a.grad_h0 + of_ray), out_h);
    store_if<0>(ray.real, reinterpret_cast<char*>(a.grad_c0 + of_ray), out_c);
  }

  add_warps<WARPS, BLOCKS>(shared, grad_weight, grad_bias);
  if (threadIdx.x < 32)
    write_sums<I>(a.partials + int64_t(blockIdx.x) * 3 * H * ROW_SUMS, grad_weight, grad_bias, g, t);
}

}  // namespace

Status launch_state16_backward(const LltmLaunch& on, const LltmBackward<void>& arguments) {
  dispatch_state16(on.dtype, arguments.shape.n_input, [&](auto element, auto inputs) {
    using T = decltype(element);
    const LltmBackward<T> a = arguments.as<T>();
    const auto kernel = lltm_state16_backward<T, inputs.value>;
    int blocks = 0;
    if (a.shape.n_rays > 0) {
      blocks = state16_grid(kernel, a.shape, STATE16_THREADS, STATE16_PARTIALS, on.gpu);
      kernel<<<blocks, STATE16_THREADS, 0, on.stream>>>(a, state16_saved(a.workspace, a.shape), state16_tiles(a.shape));
    }
    launch_reduce_partials<T>(a.partials, a.grad_weight, a.grad_bias, blocks, 3 * STATE16, STATE16 + inputs.value,
                              on.stream);
  });
  return 0;
}

}  // namespace nerfkit
