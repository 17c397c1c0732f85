// SPDX-License-Identifier: Apache-2.0
// The gradients of the LLTM along 16 rays of a cluster, far to near.

#pragma once

#include "lltm_cluster.cuh"
#include "lltm_wide_backward.cuh"

namespace nerfkit {
namespace {

// Bytes of shared memory besides the weight.
template <class T>
size_t backward_cluster_bytes(const LltmShape& s, const ClusterShare& share) {
  const size_t rows = size_t(RAYS) * 2 * row_of(3 * sixteens(s.n_state)) * sizeof(T);
  return rows + 2 * 4 * sums_of<1>(share) * sizeof(float) + RAYS * sizeof(RowOfBlock) + 2 * sizeof(Arrivals);
}

template <class T>
struct GradientsOfRow {
  float h[4], c[4];
  WideSample<T> sample;  // of the next step

  __device__ __forceinline__ void start(const LltmGradients<T>& a, int64_t ray, int unit) {
    load_state(a.h_n, a.c_n, ray, unit, a.shape.n_state, h, c);
  }
  // Gradients of the gates before activation, which go to `to` in all blocks and are added to `bias`; those of a ray that
  // has not begun, or of units that are not there, are zero.
  __device__ __forceinline__ void step(const LltmGradients<T>& a, bool active, int64_t n, int unit, int padded_h,
                                       float (&bias)[3][4], T* to, Arrivals& arrivals) {
    const int n_state = a.shape.n_state;
    float grad[3][4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const bool real = active && unit + k < n_state;
      const Gates<float> gates{float(sample.act[0].v[k]), float(sample.act[1].v[k]), float(sample.act[2].v[k])};
      Gates<float> of;
      const float tanh_c = fast_tanh<T>(float(sample.c.v[k])), dh = h[k] + float(sample.grad_h.v[k]);
      const float before = activate_bwd_at(gates, tanh_c, dh, c[k], of);
      grad[0][k] = real ? of.i : 0.f, grad[1][k] = real ? of.o : 0.f, grad[2][k] = real ? of.g : 0.f;
      c[k] = real ? before : c[k];
    }
#pragma unroll
    for (int gate = 0; gate < 3; ++gate) send_units(to + gate * padded_h, grad[gate], arrivals);
#pragma unroll
    for (int gate = 0; gate < 3; ++gate) {
      if (active) store_units(a.gates + (3 * n + gate) * n_state, unit, n_state, grad[gate]);
#pragma unroll
      for (int k = 0; k < 4; ++k) bias[gate][k] += grad[gate][k];
    }
  }
  __device__ __forceinline__ void end(const LltmGradients<T>& a, int64_t ray, int unit) const {
    const int n_state = a.shape.n_state;
    store_units(a.h0 + ray * n_state, unit, n_state, h);
    store_units(a.c0 + ray * n_state, unit, n_state, c);
  }
};

// Adds up over a warp's rays, and the two warps that have rows, to [3, H].
__device__ __forceinline__ void add_bias(float (&bias)[3][4], float4* sums, float* to, int unit, int n_state,
                                         const WarpOfCluster& w) {
  const int t = threadIdx.x % 4;
  const bool first_ray = threadIdx.x % 32 < 4;
  float* const of_other = reinterpret_cast<float*>(sums + w.group * w.parts * 2 * 32) + 12 * t;  // the other's sums
#pragma unroll
  for (int i = 0; i < 12; ++i)
    for (int offset = 16; offset >= 4; offset /= 2)
      bias[i / 4][i % 4] += __shfl_xor_sync(ALL_LANES, bias[i / 4][i % 4], offset);
  await_warps_of_group(w);  // whose sums are read
#pragma unroll
  for (int i = 0; i < 12; ++i)
    if (w.part == 1 && first_ray) of_other[i] = bias[i / 4][i % 4];
  await_warps_of_group(w);
#pragma unroll
  for (int i = 0; i < 12; ++i)
    if (w.part == 0 && first_ray && unit + i % 4 < n_state)
      to[i / 4 * n_state + unit + i % 4] = bias[i / 4][i % 4] + (w.parts > 1 ? of_other[i] : 0.f);
}

template <class T>
__global__ void __launch_bounds__(32 * CLUSTER_WARPS, 1)
    backward_cluster(const LltmGradients<T> a, WideWeight weight, const ClusterShare share) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(16) unsigned char shared[];
  const int n_state = a.shape.n_state, blocks_h = sixteens(n_state), padded_h = 16 * blocks_h, row_g = row_of(3 * blocks_h);
  const int tile = blockIdx.x / blocks_of_cluster(), first = share.groups * rank_in_cluster();
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const WarpOfCluster w = warp_of_cluster(share, first, blocks_h);
  const int unit = 16 * (first + w.group) + 4 * t, bytes = RAYS * 3 * padded_h * int(sizeof(T));  // that come at every step
  uint4* kept = reinterpret_cast<uint4*>(shared);                                             // [groups, weight.kept, SIZE]
  T* grads = reinterpret_cast<T*>(kept + share.groups * weight.kept * Operands<T, 1>::SIZE);  // of gates, [2, RAYS, row_g]
  float4* sums = reinterpret_cast<float4*>(grads + 2 * RAYS * row_g);  // one step's beside those of the one before
  RowOfBlock* rows = reinterpret_cast<RowOfBlock*>(sums + 2 * blockDim.x * 2);
  Arrivals* arrivals = reinterpret_cast<Arrivals*>(rows + RAYS);  // of either buffer of gradients

  if (threadIdx.x < 2) start_arrivals(arrivals[threadIdx.x]);
  find_rows(rows, RAYS, a.shape, tile);
  __syncthreads();
  weight.ordered += int64_t(first) * weight.depths * Operands<T, 1>::SIZE;
  keep_first<Operands<T, 1>>(kept, weight, max(0, min(share.groups, blocks_h - first)));
  sync_cluster();
  if (!w.real) return;  // others of its block stay until the last bytes have come
  const int longest = longest_of(rows, RAYS);
  GradientsOfRow<T> own[2];  // of rows g and g + 8, where this warp has them
#pragma unroll
  for (int r = 0; r < 2; ++r) own[r].start(a, rows[g + 8 * r].ray, unit);
  auto load_samples = [&](int step) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const RowOfBlock row = rows[g + 8 * r];
      if (w.has_row(r)) load_sample(own[r].sample, a, step < row.length ? row.first + step : 0, unit);
    }
  };
  if (longest > 0) load_samples(longest - 1);
  float bias[3][4] = {};
  for (int step = longest - 1, turn = 0; step >= 0; --step, ++turn) {
    const int now = turn % 2;
    T* const to = grads + now * RAYS * row_g;
    if (threadIdx.x == 0) expect(arrivals[now], bytes);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (!w.has_row(r)) continue;
      const RowOfBlock row = rows[g + 8 * r];
      T* const of_row = to + (g + 8 * r) * row_g + unit;
      own[r].step(a, step < row.length, row.first + step, unit, padded_h, bias, of_row, arrivals[now]);
    }
    if (step > 0) load_samples(step - 1);  // arrives while this step is computed
    await(arrivals[now], turn / 2 % 2);
    float before[1][1][2][4] = {};  // gradient of the state before this step
    const int from = w.begin(weight.depths), behind = w.end(weight.depths);
    add_depths<T, 1, 1>(before, weight, kept, w.group, from, behind, to + g * row_g + 16 * from + 4 * t, row_g);
    add_up<1>(before, sums + now * blockDim.x * 2, w);
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int k = 0; k < 4; ++k)
        if (w.has_row(r) && step < rows[g + 8 * r].length) own[r].h[k] = before[0][0][k / 2][2 * r + k % 2];
  }
#pragma unroll
  for (int r = 0; r < 2; ++r)
    if (w.has_row(r) && rows[g + 8 * r].ray >= 0) own[r].end(a, rows[g + 8 * r].ray, unit);
  add_bias(bias, sums, a.bias + int64_t(tile) * 3 * n_state, unit, n_state, w);
#endif
}

}  // namespace
}  // namespace nerfkit
