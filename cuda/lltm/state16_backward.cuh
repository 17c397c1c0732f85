// SPDX-License-Identifier: Apache-2.0
// The gradients of the LLTM of 16 units along 8 rays a warp, far to near: of all inputs at once.

#pragma once

#include "lltm/state16.cuh"

namespace nerfkit {
namespace {

constexpr int NARROW_BACKWARD_THREADS = 256;                       // one block a processor
constexpr int narrow_quads(int blocks) { return 6 * blocks + 2; }  // of sums in a lane

// The sums of the block's warps: the upper half hands its own to the lower one, until one is left. The same every time.
template <int WARPS, int BLOCKS>
__device__ __forceinline__ void add_warps(float4* shared, float (&grad_weight)[3][2 * BLOCKS][4],
                                          float (&grad_bias)[3][2]) {
  const int lane = threadIdx.x % 32, w = threadIdx.x / 32;
#pragma unroll
  for (int half = WARPS / 2; half > 0; half /= 2) {
    float4* room = shared + w % half * narrow_quads(BLOCKS) * 32 + lane;
    __syncthreads();
    if (w >= half && w < 2 * half) {
#pragma unroll
      for (int i = 0; i < 6 * BLOCKS; ++i) {
        const float (&s)[4] = grad_weight[i / (2 * BLOCKS)][i % (2 * BLOCKS)];
        room[i * 32] = make_float4(s[0], s[1], s[2], s[3]);
      }
      room[6 * BLOCKS * 32] = make_float4(grad_bias[0][0], grad_bias[0][1], grad_bias[1][0], grad_bias[1][1]);
      room[(6 * BLOCKS + 1) * 32] = make_float4(grad_bias[2][0], grad_bias[2][1], 0.f, 0.f);
    }
    __syncthreads();
    if (w < half) {
#pragma unroll
      for (int i = 0; i < 6 * BLOCKS; ++i) {
        float (&s)[4] = grad_weight[i / (2 * BLOCKS)][i % (2 * BLOCKS)];
        const float4 v = room[i * 32];
        s[0] += v.x, s[1] += v.y, s[2] += v.z, s[3] += v.w;
      }
      const float4 v = room[6 * BLOCKS * 32], last = room[(6 * BLOCKS + 1) * 32];
      grad_bias[0][0] += v.x, grad_bias[0][1] += v.y, grad_bias[1][0] += v.z, grad_bias[1][1] += v.w;
      grad_bias[2][0] += last.x, grad_bias[2][1] += last.y;
    }
  }
}

// A block's sums [3H, H + I + 1]: the weight's, and the bias's behind them.
template <int I, int N>
__device__ __forceinline__ void write_sums(float* sums, const float (&grad_weight)[3][N][4],
                                           const float (&grad_bias)[3][2], int g, int t) {
  constexpr int H = NARROW_STATE, SUMS = H + I + 1;
#pragma unroll
  for (int gate = 0; gate < 3; ++gate)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float* row = sums + (gate * H + column_at(H, 0, g + 8 * r)) * SUMS;
#pragma unroll
      for (int k = 0; k < N; ++k) {
        const int column = k < 2 ? H / 4 * t + 2 * k : H + I / 4 * t + 2 * (k - 2);
        row[column] = grad_weight[gate][k][2 * r], row[column + 1] = grad_weight[gate][k][2 * r + 1];
      }
      const float of_bias = warp_sum(grad_bias[gate][r], 4);
      if (t == 0) row[SUMS - 1] = of_bias;
    }
}

template <class T, int I>
__global__ void __launch_bounds__(NARROW_BACKWARD_THREADS, 1) backward_narrow(const NarrowGradients<T> a, int tiles) {
  constexpr int H = NARROW_STATE, BLOCKS = 1 + I / 16, DEEP = 2, WARPS = NARROW_BACKWARD_THREADS / 32;
  constexpr int ROW = H * sizeof(T), INPUT_ROW = I * sizeof(T), SLOPE_ROW = SLOPES * ROW,
                SUMS = H + I + 1;  // weight's row and bias
  __shared__ __align__(16) float4 shared[WARPS / 2 * narrow_quads(BLOCKS) * 32];
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  // A processor's quarter has warps w and w + 4: the first takes a long tile, the second a short one.
  const int w = threadIdx.x / 32, warp = (w < WARPS / 2 ? w : WARPS + WARPS / 2 - 1 - w) * gridDim.x + blockIdx.x,
            warps = WARPS * gridDim.x;
  LaneRay next;
  next.find(a.shape, warp, g);
  Operand weight[3 * BLOCKS];  // [BLOCKS, 3], to state and input
  share_operands(weight, reinterpret_cast<Operand*>(shared),
                 [&](int i) { return back_operand<T, H, I>(a.weight, i / 3, i % 3, g, t); });
  float grad_weight[3][2 * BLOCKS][4] = {}, grad_bias[3][2] = {};
  next.find_samples(a.shape);

  struct Sample {
    unsigned x[I / 8], before[2], grad[2];  // by ray
    unsigned slope[2][SLOPES];              // of rays 2t and 2t + 1
  };
  for (int round = 0; round * warps < tiles; ++round) {
    const LaneRay ray = next;
    next.find(a.shape, tile_of(round + 1, warp, warps), g);
    const int length = ray.length(), steps = (longest_of(length) + DEEP - 1) / DEEP * DEEP;
    const int64_t of_ray = int64_t(ray.ray) * H + t * (H / 4), far = ray.first + steps - 1;
    const char* input = reinterpret_cast<const char*>(a.input + far * I + t * (I / 4));
    int64_t at = (far * H + t * (H / 4)) * int64_t(sizeof(T));  // in before and grad_h
    char* grad_input = reinterpret_cast<char*>(a.input_out + far * I + t * (I / 4));
    int length_of[2];  // of rays 2t and 2t + 1
    const char* slopes[2];
#pragma unroll
    for (int q = 0; q < 2; ++q) {
      length_of[q] = __shfl_sync(FULL_MASK, length, 8 * t + 4 * q);
      slopes[q] =
          reinterpret_cast<const char*>(a.slopes + (__shfl_sync(FULL_MASK, far, 8 * t + 4 * q) * 8 + g) * 2 * SLOPES);
    }
    Sample sample[DEEP] = {};
    auto load_sample = [&](Sample& to, int step, auto back) {
      const bool real = unsigned(step) < unsigned(length);
      to.grad[0] = to.grad[1] = 0;  // h0 has no gradient but that of the first sample
      load_if<-back() * ROW>(real, reinterpret_cast<const char*>(a.grad_h) + at, to.grad);
#pragma unroll
      for (int q = 0; q < 2; ++q)
        load_if<-back() * SLOPE_ROW>(unsigned(step) < unsigned(length_of[q]), slopes[q], to.slope[q]);
      load_if<-back() * INPUT_ROW>(real, input, to.x);
      load_if<-back() * ROW>(real, reinterpret_cast<const char*>(a.before) + at, to.before);
    };
    each<DEEP>([&](auto j) { return load_sample(sample[j()], steps - 1 - j(), j), true; });
    unsigned end_h[2] = {}, end_c[2] = {};
    load_if<0>(true, reinterpret_cast<const char*>(a.grad_h_n + of_ray), end_h);
    load_if<0>(true, reinterpret_cast<const char*>(a.grad_c_n + of_ray), end_c);
    float dh[4], dc[4];  // gradients of the state, by unit
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float2 both = unpack<T>(movmatrix_trans(end_c[r]));
      dc[2 * r] = both.x, dc[2 * r + 1] = both.y;
      end_h[r] = movmatrix_trans(end_h[r]);
    }
    auto from_outside = [&](const Sample& from, int step, float (&to)[4]) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float2 both = unpack<T>(movmatrix_trans(from.grad[r])), end = unpack<T>(end_h[r]);
        to[2 * r] = both.x, to[2 * r + 1] = both.y;
        if (length_of[0] == step + 1) to[2 * r] += end.x;
        if (length_of[1] == step + 1) to[2 * r + 1] += end.y;
      }
    };
    from_outside(sample[0], steps - 1, dh);
    input -= DEEP * INPUT_ROW, at -= DEEP * ROW, slopes[0] -= DEEP * SLOPE_ROW, slopes[1] -= DEEP * SLOPE_ROW;
    next.find_samples(a.shape);
    for (int base = steps - 1; base >= 0; base -= DEEP) {
      unsigned by_unit[2][3][2], in[2][2 * BLOCKS];  // of two steps, which make one product for the weight
      each<DEEP>([&](auto constant) {
        constexpr int j = constant();
        const int step = base - j;
        Sample& now = sample[j];
        const bool active[2] = {step < length_of[0], step < length_of[1]};
        const unsigned mask = (active[0] ? 0xffffu : 0u) | (active[1] ? 0xffff0000u : 0u);
        float slope[SLOPES][4], grad[3][4];
#pragma unroll
        for (int q = 0; q < 2; ++q)
#pragma unroll
          for (int k = 0; k < SLOPES; ++k) {
            const float2 both = unpack<T>(now.slope[q][k]);
            slope[k][q] = both.x, slope[k][q + 2] = both.y;
          }
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          if (active[e % 2]) dc[e] += dh[e] * slope[C_OF_H][e];
          grad[0][e] = dc[e] * slope[I_OF_C][e], grad[1][e] = dh[e] * slope[O_OF_H][e],
          grad[2][e] = dc[e] * slope[G_OF_C][e];
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
        from_outside(sample[(j + 1) % DEEP], step - 1, dh);
        float half[4] = {};  // two chains of products are shorter than one
        add_operand<T>(half, weight[1], by_ray[1][0], by_ray[1][1]);
        add_operand<T>(dh, weight[0], by_ray[0][0], by_ray[0][1]);
        add_operand<T>(dh, weight[2], by_ray[2][0], by_ray[2][1]);
#pragma unroll
        for (int e = 0; e < 4; ++e) dh[e] += half[e];

#pragma unroll
        for (int k = 0; k < 2 * BLOCKS; ++k)
          in[j % 2][k] = movmatrix_trans(k < 2 ? now.before[k % 2] : now.x[(k + I / 8 - 2) % (I / 8)]);
        load_sample(now, step - DEEP, constant);
        unsigned out[I / 8];
#pragma unroll
        for (int k = 0; k < I / 16; ++k) {
          float sum[4] = {};
#pragma unroll
          for (int gate = 0; gate < 3; ++gate)
            add_operand<T>(sum, weight[3 + 3 * k + gate], by_ray[gate][0], by_ray[gate][1]);
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
      input -= DEEP * INPUT_ROW, at -= DEEP * ROW, grad_input -= DEEP * INPUT_ROW, slopes[0] -= DEEP * SLOPE_ROW,
          slopes[1] -= DEEP * SLOPE_ROW;
    }
    unsigned out_h[2], out_c[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      out_h[r] = movmatrix_trans(pack<T>(dh[2 * r], dh[2 * r + 1]));
      out_c[r] = movmatrix_trans(pack<T>(dc[2 * r], dc[2 * r + 1]));
    }
    store_if<0>(ray.real, reinterpret_cast<char*>(a.h0 + of_ray), out_h);
    store_if<0>(ray.real, reinterpret_cast<char*>(a.c0 + of_ray), out_c);
  }

  add_warps<WARPS, BLOCKS>(shared, grad_weight, grad_bias);
  if (threadIdx.x < 32) write_sums<I>(a.parts + int64_t(blockIdx.x) * 3 * H * SUMS, grad_weight, grad_bias, g, t);
}

}  // namespace
}  // namespace nerfkit
