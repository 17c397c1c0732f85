// SPDX-License-Identifier: Apache-2.0
// The LLTM of 16 units along 8 rays per warp, near to far.

#include "lltm/state16.cuh"

namespace nerfkit {
namespace {

constexpr int STATE16_THREADS = 128, STATE16_BLOCKS = 4;

// SAVE: derivatives and the state before each sample are written too.
template <class T, int I, bool SAVE>
__global__ void __launch_bounds__(STATE16_THREADS, STATE16_BLOCKS)
    lltm_state16_forward(const LltmForward<T> a, const State16Saved<T> saved, int tiles) {
  constexpr int H = STATE16, BLOCKS = 1 + I / 16, PREFETCH = 4;  // steps that the input is read ahead
  constexpr int ROW = H * sizeof(T), INPUT_ROW = I * sizeof(T), SAVED_ROW = N_DERIVATIVES * ROW;
  __shared__ AFragment shared[3 * BLOCKS * 32];
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int warp = (blockIdx.x * STATE16_THREADS + threadIdx.x) / 32, warps = STATE16_THREADS / 32 * gridDim.x;
  LaneRay next;
  next.find(a.shape, warp, g);
  AFragment weight[3 * BLOCKS];  // [BLOCKS, 3]
  share_fragments(weight, shared, [&](int i) { return gate_fragment<T, H, I>(a.weight, i % 3, i / 3, g, t); });
  float bias[3][4];
#pragma unroll
  for (int gate = 0; gate < 3; ++gate)
#pragma unroll
    for (int e = 0; e < 4; ++e)
      bias[gate][e] = float(a.bias[gate * H + column_of_rank(H, 0, g + e / 2 * 8)]) * scale_of(gate);
  next.find_samples(a.shape);
  for (int round = 0; round * warps < tiles; ++round) {
    const LaneRay ray = next;
    next.find(a.shape, tile_of(round + 1, warp, warps), g);
    const int length = ray.length(), longest = longest_ray(length);
    const char* input = reinterpret_cast<const char*>(a.input + ray.first * I + t * (I / 4));
    unsigned x[PREFETCH][I / 8] = {};
    unrolled<PREFETCH>([&](auto j) { return load_if<j() * INPUT_ROW>(j() < length, input, x[j()]), true; });
    input += PREFETCH * INPUT_ROW;

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
         *before = SAVE ? reinterpret_cast<char*>(saved.before + of_sample) : nullptr;
    int length_of[2] = {};  // of rays 2t and 2t + 1
    char* derivatives[2] = {};
    if (SAVE)
#pragma unroll
      for (int q = 0; q < 2; ++q) {
        length_of[q] = __shfl_sync(FULL_MASK, length, 8 * t + 4 * q);
        derivatives[q] = reinterpret_cast<char*>(
            saved.derivatives + (__shfl_sync(FULL_MASK, ray.first, 8 * t + 4 * q) * 8 + g) * 2 * N_DERIVATIVES);
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
          add_mma<T>(ahead[gate], weight[3 + 3 * k + gate], row[2 * k], row[2 * k + 1]);
    };
    add_input(x[0]);
    next.find_samples(a.shape);
    for (int base = 0; base < longest; base += PREFETCH) {
      unrolled<PREFETCH>([&](auto constant) {
        constexpr int j = constant();
        const int step = base + j;
        if (j % 2 == 0 && j > 0 && step >= longest) return false;
        const bool active = step < length, last = step + 1 == length;
        float sum[3][4];
#pragma unroll
        for (int gate = 0; gate < 3; ++gate) {
#pragma unroll
          for (int e = 0; e < 4; ++e) sum[gate][e] = ahead[gate][e];
          add_mma<T>(sum[gate], weight[gate], h[0], h[1]);
        }
        add_input(x[(j + 1) % PREFETCH]);
        if (SAVE) store_if<j * ROW>(active, before, h);
        float out[4], derivative[N_DERIVATIVES][4];
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float i = 0.5f + 0.5f * fast_tanh<T>(sum[0][e]), candidate = elu(sum[2][e]);
          c[e] += candidate * i;
          derivative[DC_DAI][e] = candidate * (i - i * i);
          derivative[DC_DAG][e] = sum[2][e] > 0 ? i : i * candidate + i;
        }
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float o = 0.5f + 0.5f * fast_tanh<T>(sum[1][e]), tanh_c = fast_tanh<T>(c[e]);
          out[e] = tanh_c * o;
          derivative[DH_DC][e] = o - out[e] * tanh_c;
          derivative[DH_DAO][e] = out[e] - out[e] * o;
        }
        unsigned c_now[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) h[r] = movmatrix_trans(pack<T>(out[2 * r], out[2 * r + 1]));
#pragma unroll
        for (int r = 0; r < 2; ++r) c_now[r] = movmatrix_trans(pack<T>(c[2 * r], c[2 * r + 1]));
        load_if<j * INPUT_ROW>(step + PREFETCH < length, input, x[j]);
        if (SAVE)
#pragma unroll
          for (int q = 0; q < 2; ++q) {
            unsigned words[N_DERIVATIVES];
#pragma unroll
            for (int k = 0; k < N_DERIVATIVES; ++k) words[k] = pack<T>(derivative[k][q], derivative[k][q + 2]);
            store_if<j * SAVED_ROW>(step < length_of[q], derivatives[q], words);
          }
        store_if<j * ROW>(active, h_out, h);
        store_if<0>(last, h_n, h);
        store_if<0>(last, c_n, c_now);
        return true;
      });
      input += PREFETCH * INPUT_ROW, h_out += PREFETCH * ROW, before += PREFETCH * ROW,
          derivatives[0] += PREFETCH * SAVED_ROW, derivatives[1] += PREFETCH * SAVED_ROW;
    }
  }
}

}  // namespace

Status launch_state16_forward(const LltmLaunch& on, const LltmForward<void>& arguments) {
  dispatch_state16(on.dtype, arguments.shape.n_input, [&](auto element, auto inputs) {
    using T = decltype(element);
    const LltmForward<T> a = arguments.as<T>();
    auto kernel =
        a.workspace ? lltm_state16_forward<T, inputs.value, true> : lltm_state16_forward<T, inputs.value, false>;
    const int blocks = state16_grid(kernel, a.shape, STATE16_THREADS, INT32_MAX, on.gpu);
    kernel<<<blocks, STATE16_THREADS, 0, on.stream>>>(a, state16_saved(a.workspace, a.shape), state16_tiles(a.shape));
  });
  return 0;
}

}  // namespace nerfkit
