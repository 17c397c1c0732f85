// SPDX-License-Identifier: Apache-2.0
// The LLTM of 16 units along 8 rays a warp, near to far.

#pragma once

#include "lltm_narrow.cuh"

namespace nerfkit {
namespace {

constexpr int NARROW_THREADS = 128, NARROW_BLOCKS = 4;

// SAVE: c and the state in front of each sample are written too.
template <class T, int I, bool SAVE>
__global__ void __launch_bounds__(NARROW_THREADS, NARROW_BLOCKS) forward_narrow(const LltmArrays<T> a, int tiles) {
  constexpr int H = NARROW_STATE, BLOCKS = 1 + I / 16, DEEP = 4;  // steps that the input is read ahead
  constexpr int ROW = H * sizeof(T), INPUT_ROW = I * sizeof(T);
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  Operand weight[3][BLOCKS];
  float bias[3][4];
#pragma unroll
  for (int gate = 0; gate < 3; ++gate) {
#pragma unroll
    for (int k = 0; k < BLOCKS; ++k) weight[gate][k] = gate_operand<T, H, I>(a.weight, gate, k, g, t);
#pragma unroll
    for (int e = 0; e < 4; ++e) bias[gate][e] = float(a.bias[gate * H + column_at(H, 0, g + e / 2 * 8)]) * scale_of(gate);
  }
  const int warp = threadIdx.x / 32 * gridDim.x + blockIdx.x, warps = NARROW_THREADS / 32 * gridDim.x;
  LaneRay next;
  next.find(a.shape, warp, g);
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
      const float2 both = unpack<T>(transposed(start[r]));
      c[2 * r] = both.x, c[2 * r + 1] = both.y;
    }
    char* h_out = reinterpret_cast<char*>(a.h + of_sample);
    char *c_out = SAVE ? reinterpret_cast<char*>(a.c + of_sample) : nullptr, *before = SAVE ? reinterpret_cast<char*>(a.before + of_sample) : nullptr;

    float ahead[3][4];  // the next step's gates, as far as the input goes
    auto add_input = [&](const unsigned (&row)[I / 8]) {
#pragma unroll
      for (int gate = 0; gate < 3; ++gate)
#pragma unroll
        for (int e = 0; e < 4; ++e) ahead[gate][e] = bias[gate][e];
#pragma unroll
      for (int k = 0; k < I / 16; ++k)
#pragma unroll
        for (int gate = 0; gate < 3; ++gate) add_operand<T>(ahead[gate], weight[gate][1 + k], row[2 * k], row[2 * k + 1]);
    };
    add_input(x[0]);
    next.find_samples(a.shape);
    for (int base = 0; base < longest; base += DEEP) {
      each<DEEP>([&](auto constant) {
        constexpr int j = constant();
        const int step = base + j;
        if (step >= longest) return false;
        const bool active = step < length, last = step + 1 == length;
        load_if<j * INPUT_ROW>(step + DEEP < length, input, x[j]);
        float sum[3][4];
#pragma unroll
        for (int gate = 0; gate < 3; ++gate) {
#pragma unroll
          for (int e = 0; e < 4; ++e) sum[gate][e] = ahead[gate][e];
          add_operand<T>(sum[gate], weight[gate][0], h[0], h[1]);
        }
        add_input(x[(j + 1) % DEEP]);
        if (SAVE) store_if<j * ROW>(active, before, h);
        float out[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          c[e] += elu(sum[2][e]) * (0.5f + 0.5f * fast_tanh<T>(sum[0][e]));
          out[e] = fast_tanh<T>(c[e]) * (0.5f + 0.5f * fast_tanh<T>(sum[1][e]));
        }
        unsigned c_now[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          h[r] = transposed(pack<T>(out[2 * r], out[2 * r + 1]));
          c_now[r] = transposed(pack<T>(c[2 * r], c[2 * r + 1]));
        }
        store_if<j * ROW>(active, h_out, h);
        if (SAVE) store_if<j * ROW>(active, c_out, c_now);
        store_if<0>(last, h_n, h);
        store_if<0>(last, c_n, c_now);
        return true;
      });
      input += DEEP * INPUT_ROW, h_out += DEEP * ROW, c_out += DEEP * ROW, before += DEEP * ROW;
    }
  }
}

}  // namespace
}  // namespace nerfkit
