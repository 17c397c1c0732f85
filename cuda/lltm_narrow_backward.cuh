// SPDX-License-Identifier: Apache-2.0
// The gradients of the LLTM of 16 units along 8 rays a warp, far to near: of all inputs at once. Gates are computed again from
// the input and the state in front of each sample; only what waits for the step behind it is kept short.

#pragma once

#include "lltm_narrow.cuh"

namespace nerfkit {
namespace {

constexpr int NARROW_BACKWARD_THREADS = 256;  // one block a processor

// Not to be moved out of a loop, into registers that are not there.
__device__ __forceinline__ Operand load_operand(const uint4* from) {
  uint4 v{};
  asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(unsigned(__cvta_generic_to_shared(from))));
  return {{v.x, v.y, v.z, v.w}};
}

template <class T, int I>
__global__ void __launch_bounds__(NARROW_BACKWARD_THREADS, 1) backward_narrow(const NarrowGradients<T> a, int tiles) {
  constexpr int H = NARROW_STATE, BLOCKS = 1 + I / 16, DEEP = 2, WARPS = NARROW_BACKWARD_THREADS / 32;
  constexpr int ROW = H * sizeof(T), INPUT_ROW = I * sizeof(T), SUMS = H + I + 1;  // of a gate's unit: weight's row and bias
  constexpr int GATE_OPERANDS = 3 * BLOCKS, OPERANDS = GATE_OPERANDS + 3 * (BLOCKS - 1);
  constexpr int SHARED = OPERANDS * 512 > 3 * H * SUMS * 4 ? OPERANDS * 512 : 3 * H * SUMS * 4;
  __shared__ __align__(16) unsigned char shared[SHARED];
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;

  // Those that the recurrence does not wait for: of the gates [3, BLOCKS], then of the input's gradient [BLOCKS - 1, 3].
  uint4* operands = reinterpret_cast<uint4*>(shared) + lane;
  for (int i = threadIdx.x / 32; i < OPERANDS; i += WARPS) {
    const int back = i - GATE_OPERANDS;
    const Operand v = i < GATE_OPERANDS ? gate_operand<T, H, I>(a.weight, i / BLOCKS, i % BLOCKS, g, t)
                                        : back_operand<T, H, I>(a.weight, 1 + back / 3, back % 3, g, t);
    operands[i * 32] = make_uint4(v.value[0], v.value[1], v.value[2], v.value[3]);
  }
  Operand to_state[3];
  float bias[3][2];
#pragma unroll
  for (int gate = 0; gate < 3; ++gate) {
    to_state[gate] = back_operand<T, H, I>(a.weight, 0, gate, g, t);
#pragma unroll
    for (int r = 0; r < 2; ++r) bias[gate][r] = float(a.bias[gate * H + column_at(H, 0, g + 8 * r)]) * scale_of(gate);
  }
  __syncthreads();
  float grad_weight[3][2 * BLOCKS][4] = {}, grad_bias[3][2] = {};

  struct Sample {  // by ray
    unsigned x[I / 8], before[2], c[2], grad[2];
  };
  const int warp = threadIdx.x / 32 * gridDim.x + blockIdx.x, warps = WARPS * gridDim.x;
  LaneRay next;
  next.find(a.shape, warp, g);
  next.find_samples(a.shape);
  for (int round = 0; round * warps < tiles; ++round) {
    const LaneRay ray = next;
    next.find(a.shape, tile_of(round + 1, warp, warps), g);
    const int length = ray.length(), longest = longest_of(length);
    const int length0 = __shfl_sync(ALL_LANES, length, 8 * t), length1 = __shfl_sync(ALL_LANES, length, 8 * t + 4);  // of rays 2t and 2t + 1

    const int64_t of_ray = int64_t(ray.ray) * H + t * (H / 4), far = ray.first + longest - 1;
    const char* input = reinterpret_cast<const char*>(a.input + far * I + t * (I / 4));
    int64_t at = (far * H + t * (H / 4)) * int64_t(sizeof(T));  // in before, c and grad_h
    char* grad_input = reinterpret_cast<char*>(a.input_out + far * I + t * (I / 4));
    Sample sample[DEEP] = {};
    auto load_sample = [&](Sample& to, int step, auto back) {
      const bool real = step >= 0 && step < length;
      load_if<-back() * INPUT_ROW>(real, input, to.x);
      load_if<-back() * ROW>(real, reinterpret_cast<const char*>(a.before) + at, to.before);
      load_if<-back() * ROW>(real, reinterpret_cast<const char*>(a.c) + at, to.c);
#pragma unroll
      for (int r = 0; r < 2; ++r) to.grad[r] = step < 0 ? 0 : to.grad[r];  // h0 has no gradient but that of the first sample
      load_if<-back() * ROW>(real, reinterpret_cast<const char*>(a.grad_h) + at, to.grad);
    };
    each<DEEP>([&](auto j) { return load_sample(sample[j()], longest - 1 - j(), j), true; });
    unsigned end_h[2] = {}, end_c[2] = {};
    load_if<0>(true, reinterpret_cast<const char*>(a.grad_h_n + of_ray), end_h);
    load_if<0>(true, reinterpret_cast<const char*>(a.grad_c_n + of_ray), end_c);
    float dh[4], dc[4];  // gradients of the state, by unit
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float2 both = unpack<T>(transposed(end_c[r]));
      dc[2 * r] = both.x, dc[2 * r + 1] = both.y;
      end_h[r] = transposed(end_h[r]);
    }
    auto from_outside = [&](const Sample& from, int step, float (&to)[4]) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float2 both = unpack<T>(transposed(from.grad[r])), end = unpack<T>(end_h[r]);
        to[2 * r] = both.x, to[2 * r + 1] = both.y;
        if (length0 == step + 1) to[2 * r] += end.x;
        if (length1 == step + 1) to[2 * r + 1] += end.y;
      }
    };
    struct Ready {  // what a step needs beside the recurrence
      float c_of_h[4], i_of_c[4], o_of_h[4], g_of_c[4];  // d c' / d h' and so on, gates before activation
      unsigned in[2 * BLOCKS];                           // [before, input] by unit
    } ready;
    auto make_ready = [&](const Sample& from) {
      float sum[3][4];
#pragma unroll
      for (int gate = 0; gate < 3; ++gate)
#pragma unroll
        for (int e = 0; e < 4; ++e) sum[gate][e] = bias[gate][e / 2];
#pragma unroll
      for (int k = 0; k < BLOCKS; ++k)
#pragma unroll
        for (int gate = 0; gate < 3; ++gate) {
          const Operand weight = load_operand(operands + (gate * BLOCKS + k) * 32);
          if (k == 0)
            add_operand<T>(sum[gate], weight, from.before[0], from.before[1]);
          else
            add_operand<T>(sum[gate], weight, from.x[2 * (k - (k > 0))], from.x[2 * (k - (k > 0)) + 1]);
        }
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float2 c = unpack<T>(transposed(from.c[r]));
#pragma unroll
        for (int e = 2 * r; e < 2 * r + 2; ++e) {
          const float tanh_i = fast_tanh<T>(sum[0][e]), tanh_o = fast_tanh<T>(sum[1][e]), tanh_c = fast_tanh<T>(e % 2 ? c.y : c.x);
          const float i = 0.5f + 0.5f * tanh_i, o = 0.5f + 0.5f * tanh_o, candidate = elu(sum[2][e]);
          ready.c_of_h[e] = o - o * tanh_c * tanh_c;
          ready.i_of_c[e] = candidate * (0.25f - 0.25f * tanh_i * tanh_i);
          ready.o_of_h[e] = tanh_c * (0.25f - 0.25f * tanh_o * tanh_o);
          ready.g_of_c[e] = sum[2][e] > 0 ? i : i * candidate + i;
        }
        ready.in[r] = transposed(from.before[r]);
      }
#pragma unroll
      for (int k = 0; k < I / 8; ++k) ready.in[2 + k] = transposed(from.x[k]);
    };
    make_ready(sample[0]);
    from_outside(sample[0], longest - 1, dh);
    load_sample(sample[0], longest - 1 - DEEP, std::integral_constant<int, DEEP>());
    input -= (DEEP + 1) * INPUT_ROW, at -= (DEEP + 1) * ROW;
    next.find_samples(a.shape);
    for (int base = longest - 1; base >= 0; base -= DEEP) {
      each<DEEP>([&](auto constant) {
        constexpr int j = constant();
        const int step = base - j;
        if (step < 0) return false;
        const bool active[2] = {step < length0, step < length1};
        const unsigned mask = (active[0] ? 0xffffu : 0u) | (active[1] ? 0xffff0000u : 0u);
        float grad[3][4];
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          if (active[e % 2]) dc[e] += dh[e] * ready.c_of_h[e];
          grad[0][e] = dc[e] * ready.i_of_c[e], grad[1][e] = dh[e] * ready.o_of_h[e], grad[2][e] = dc[e] * ready.g_of_c[e];
#pragma unroll
          for (int gate = 0; gate < 3; ++gate)
            if (active[e % 2]) grad_bias[gate][e / 2] += grad[gate][e];
        }
        unsigned by_unit[3][2], by_ray[3][2];
#pragma unroll
        for (int gate = 0; gate < 3; ++gate)
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            by_unit[gate][r] = pack<T>(grad[gate][2 * r], grad[gate][2 * r + 1]) & mask;
            by_ray[gate][r] = transposed(by_unit[gate][r]);
          }
        const Ready now = ready;
        Sample& before_this = sample[(j + 1) % DEEP];
        from_outside(before_this, step - 1, dh);
        float half[4] = {};  // two chains of products are shorter than one
        add_operand<T>(dh, to_state[0], by_ray[0][0], by_ray[0][1]);
        add_operand<T>(half, to_state[1], by_ray[1][0], by_ray[1][1]);
        add_operand<T>(dh, to_state[2], by_ray[2][0], by_ray[2][1]);
#pragma unroll
        for (int e = 0; e < 4; ++e) dh[e] += half[e];
        make_ready(before_this);
        load_sample(before_this, step - 1 - DEEP, constant);

        unsigned out[I / 8];
#pragma unroll
        for (int k = 0; k < I / 16; ++k) {
          float sum[4] = {};
#pragma unroll
          for (int gate = 0; gate < 3; ++gate)
            add_operand<T>(sum, load_operand(operands + (GATE_OPERANDS + 3 * k + gate) * 32), by_ray[gate][0], by_ray[gate][1]);
          out[2 * k] = transposed(pack<T>(sum[0], sum[1])), out[2 * k + 1] = transposed(pack<T>(sum[2], sum[3]));
        }
        store_if<-j * INPUT_ROW>(step < length, grad_input, out);
#pragma unroll
        for (int gate = 0; gate < 3; ++gate)
#pragma unroll
          for (int k = 0; k < 2 * BLOCKS; ++k) add_short_product(T(), grad_weight[gate][k], by_unit[gate][0], by_unit[gate][1], now.in[k]);
        return true;
      });
      input -= DEEP * INPUT_ROW, at -= DEEP * ROW, grad_input -= DEEP * INPUT_ROW;
    }
    if (longest == 0) from_outside(Sample{}, -1, dh);
    unsigned out_h[2], out_c[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      out_h[r] = transposed(pack<T>(dh[2 * r], dh[2 * r + 1]));
      out_c[r] = transposed(pack<T>(dc[2 * r], dc[2 * r + 1]));
    }
    store_if<0>(ray.real, reinterpret_cast<char*>(a.h0 + of_ray), out_h);
    store_if<0>(ray.real, reinterpret_cast<char*>(a.c0 + of_ray), out_c);
  }

  // The sums of the block's warps, one warp after the other: the same every time.
  float* sums = reinterpret_cast<float*>(shared);  // [3H, SUMS]
  for (int turn = 0; turn < WARPS; ++turn) {
    __syncthreads();
    if (int(threadIdx.x / 32) != turn) continue;
    auto add = [&](float& to, float value) { to = turn == 0 ? value : to + value; };
#pragma unroll
    for (int gate = 0; gate < 3; ++gate)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float* row = sums + (gate * H + column_at(H, 0, g + 8 * r)) * SUMS;
#pragma unroll
        for (int k = 0; k < 2 * BLOCKS; ++k) {
          const int column = k < 2 ? H / 4 * t + 2 * k : H + I / 4 * t + 2 * (k - 2);
          add(row[column], grad_weight[gate][k][2 * r]);
          add(row[column + 1], grad_weight[gate][k][2 * r + 1]);
        }
        const float of_bias = sum_lanes(grad_bias[gate][r], 4);
        if (t == 0) add(row[SUMS - 1], of_bias);
      }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < 3 * H * SUMS; i += NARROW_BACKWARD_THREADS) a.parts[int64_t(blockIdx.x) * 3 * H * SUMS + i] = sums[i];
}

}  // namespace
}  // namespace nerfkit
