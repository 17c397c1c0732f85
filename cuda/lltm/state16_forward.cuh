// SPDX-License-Identifier: Apache-2.0
// The LLTM of 16 units along 8 rays a warp, near to far.

#pragma once

#include "lltm/state16.cuh"

namespace nerfkit {
namespace {

constexpr int NARROW_THREADS = 128, NARROW_BLOCKS = 4;

// SAVE: slopes and the state in front of each sample are written too.
template <class T, int I, bool SAVE>
__global__ void __launch_bounds__(NARROW_THREADS, NARROW_BLOCKS) forward_narrow(const NarrowArrays<T> a, int tiles) {
  constexpr int H = NARROW_STATE, BLOCKS = 1 + I / 16, DEEP = 4;  // steps that the input is read ahead
  constexpr int ROW = H * sizeof(T), INPUT_ROW = I * sizeof(T), SLOPE_ROW = SLOPES * ROW;
  __shared__ Operand shared[3 * BLOCKS * 32];
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int warp = (blockIdx.x * NARROW_THREADS + threadIdx.x) / 32, warps = NARROW_THREADS / 32 * gridDim.x;
  LaneRay next;
  next.find(a.shape, warp, g);
  Operand weight[3 * BLOCKS];  // [BLOCKS, 3]
  share_operands(weight, shared, [&](int i) { return gate_operand<T, H, I>(a.weight, i % 3, i / 3, g, t); });
  float bias[3][4];
#pragma unroll
  for (int gate = 0; gate < 3; ++gate)
#pragma unroll
    for (int e = 0; e < 4; ++e)
      bias[gate][e] = float(a.bias[gate * H + column_at(H, 0, g + e / 2 * 8)]) * scale_of(gate);
  next.find_samples(a.shape);
  for (int round = 0; round * warps < tiles; ++round) {
    const LaneRay ray = next;
    next.find(a.shape, tile_of(round + 1, warp, warps), g);
    const int length = ray.length(), longest = longest_of(length);
    const char* input = reinterpret_cast<const char*>(a.input + ray.first * I + t * (I / 4));
    unsigned x[DEEP][I / 8] = {};
    each<DEEP>([&](auto j) { return load_if<j() * INPUT_ROW>(j() < length, input, x[j()]), true; });
    input += DEEP * INPUT_ROW;

    const int64_t of_ray = int64_t(ray.ray) * H + t * (H / 4), of_sample = ray.first * H + t * (H / 4);
    char *h_n = reinterpret_cast<char*>(a.h_n + of_ray), *c_n = reinterpret_cast<char*>(a.c_n + of_ray);
    unsigned h[2] = {}, start[2] = {};
    load_if<0>(true, reinterpret_cast<const char*>(a.h0 + of_ray), h);
    load_if<0>(true, reinterpret_cast<const char*>(a.c0 + of_ray), start);
    store_if<0>(ray.real && length == 0, h_n, h);
    store_if<0>(ray.real && length == 0, c_n, start);
    float c[4];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float2 both = unpack<T>(movmatrix_trans(start[r]));
      c[2 * r] = both.x, c[2 * r + 1] = both.y;
    }
    char *h_out = reinterpret_cast<char*>(a.h + of_sample),
         *before = SAVE ? reinterpret_cast<char*>(a.before + of_sample) : nullptr;
    int length_of[2] = {};  // of rays 2t and 2t + 1
    char* slopes[2] = {};
    if (SAVE)
#pragma unroll
      for (int q = 0; q < 2; ++q) {
        length_of[q] = __shfl_sync(FULL_MASK, length, 8 * t + 4 * q);
        slopes[q] =
            reinterpret_cast<char*>(a.slopes + (__shfl_sync(FULL_MASK, ray.first, 8 * t + 4 * q) * 8 + g) * 2 * SLOPES);
      }

    float ahead[3][4];  // the next step's gates, as far as the input goes
    auto add_input = [&](const unsigned (&row)[I / 8]) {
#pragma unroll
      for (int gate = 0; gate < 3; ++gate)
#pragma unroll
        for (int e = 0; e < 4; ++e) ahead[gate][e] = bias[gate][e];
#pragma unroll
      for (int k = 0; k < I / 16; ++k)
#pragma unroll
        for (int gate = 0; gate < 3; ++gate)
          add_operand<T>(ahead[gate], weight[3 + 3 * k + gate], row[2 * k], row[2 * k + 1]);
    };
    add_input(x[0]);
    next.find_samples(a.shape);
    for (int base = 0; base < longest; base += DEEP) {
      each<DEEP>([&](auto constant) {
        constexpr int j = constant();
        const int step = base + j;
        if (j % 2 == 0 && j > 0 && step >= longest) return false;
        const bool active = step < length, last = step + 1 == length;
        float sum[3][4];
#pragma unroll
        for (int gate = 0; gate < 3; ++gate) {
#pragma unroll
          for (int e = 0; e < 4; ++e) sum[gate][e] = ahead[gate][e];
          add_operand<T>(sum[gate], weight[gate], h[0], h[1]);
        }
        add_input(x[(j + 1) % DEEP]);
        if (SAVE) store_if<j * ROW>(active, before, h);
        float out[4], slope[SLOPES][4];
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float i = 0.5f + 0.5f * fast_tanh<T>(sum[0][e]), candidate = elu(sum[2][e]);
          c[e] += candidate * i;
          slope[I_OF_C][e] = candidate * (i - i * i);
          slope[G_OF_C][e] = sum[2][e] > 0 ? i : i * candidate + i;
        }
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float o = 0.5f + 0.5f * fast_tanh<T>(sum[1][e]), tanh_c = fast_tanh<T>(c[e]);
          out[e] = tanh_c * o;
          slope[C_OF_H][e] = o - out[e] * tanh_c;
          slope[O_OF_H][e] = out[e] - out[e] * o;
        }
        unsigned c_now[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) h[r] = movmatrix_trans(pack<T>(out[2 * r], out[2 * r + 1]));
#pragma unroll
        for (int r = 0; r < 2; ++r) c_now[r] = movmatrix_trans(pack<T>(c[2 * r], c[2 * r + 1]));
        load_if<j * INPUT_ROW>(step + DEEP < length, input, x[j]);
        if (SAVE)
#pragma unroll
          for (int q = 0; q < 2; ++q) {
            unsigned words[SLOPES];
#pragma unroll
            for (int k = 0; k < SLOPES; ++k) words[k] = pack<T>(slope[k][q], slope[k][q + 2]);
            store_if<j * SLOPE_ROW>(step < length_of[q], slopes[q], words);
          }
        store_if<j * ROW>(active, h_out, h);
        store_if<0>(last, h_n, h);
        store_if<0>(last, c_n, c_now);
        return true;
      });
      input += DEEP * INPUT_ROW, h_out += DEEP * ROW, before += DEEP * ROW, slopes[0] += DEEP * SLOPE_ROW,
          slopes[1] += DEEP * SLOPE_ROW;
    }
  }
}

}  // namespace
}  // namespace nerfkit
