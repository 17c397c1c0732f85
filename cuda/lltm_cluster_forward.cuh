// SPDX-License-Identifier: Apache-2.0
// The LLTM along 16 rays of a cluster, near to far. The input's part of a step's products comes before what was sent is
// waited for.

#pragma once

#include "lltm_cluster.cuh"
#include "lltm_wide_forward.cuh"

namespace nerfkit {
namespace {

// Bytes of shared memory besides the weight.
template <class T>
size_t forward_cluster_bytes(const LltmShape& s, const ClusterShare& share) {
  const size_t rows = size_t(RAYS) * (2 * row_of(sixteens(s.n_state)) + BUFFERS * row_of(sixteens(s.n_input))) * sizeof(T);
  const size_t floats = 4 * sums_of<3>(share) + 3 * 16 * share.groups;
  return rows + floats * sizeof(float) + RAYS * sizeof(RowOfBlock) + 2 * sizeof(Arrivals);
}

template <class T>
struct UnitsOfRow {
  float h[4], c[4];

  __device__ __forceinline__ void start(const LltmArrays<T>& a, int64_t ray, int unit) {
    load_state(a.h0, a.c0, ray, unit, a.shape.n_state, h, c);
  }
  // The step whose gates, before activation, are row r of `sum`. The state goes to `to` in all blocks, also of a ray that
  // has ended: so many bytes are waited for.
  __device__ __forceinline__ void step(const LltmArrays<T>& a, const float (&sum)[3][2][4], int r, bool active, int64_t n,
                                       int unit, T* to, Arrivals& arrivals) {
    float before[4], act[3][4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int at = 2 * r + k % 2;
      const Gates<float> gates = fast_activate<T>(sum[0][k / 2][at], sum[1][k / 2][at], sum[2][k / 2][at]);
      before[k] = h[k];
      c[k] += active ? gates.g * gates.i : 0.f;
      h[k] = active ? fast_tanh<T>(c[k]) * gates.o : h[k];
      act[0][k] = gates.i, act[1][k] = gates.o, act[2][k] = gates.g;
    }
    send_units(to, h, arrivals);
    if (active) store_step(a, n, unit, h, c, before, act);
  }
  __device__ __forceinline__ void end(const LltmArrays<T>& a, int64_t ray, int unit) const {
    const int n_state = a.shape.n_state;
    store_units(a.h_n + ray * n_state, unit, n_state, h);
    store_units(a.c_n + ray * n_state, unit, n_state, c);
  }
};

template <class T>
__global__ void __launch_bounds__(32 * CLUSTER_WARPS, 1)
    forward_cluster(const LltmArrays<T> a, WideWeight weight, const ClusterShare share) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(16) unsigned char shared[];
  const int n_state = a.shape.n_state, n_input = a.shape.n_input, blocks_h = sixteens(n_state), blocks_x = sixteens(n_input);
  const int row_h = row_of(blocks_h), row_x = row_of(blocks_x), units = 16 * share.groups;
  const int first = share.groups * rank_in_cluster();
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const WarpOfCluster w = warp_of_cluster(share, first, blocks_h);
  const int unit = 16 * (first + w.group) + 4 * t, bytes = RAYS * 16 * blocks_h * int(sizeof(T));  // that come at every step
  uint4* kept = reinterpret_cast<uint4*>(shared);                                              // [groups, weight.kept, SIZE]
  T* states = reinterpret_cast<T*>(kept + share.groups * weight.kept * Operands<T, 3>::SIZE);  // [2, RAYS, row_h]
  T* inputs = states + 2 * RAYS * row_h;                                                       // [BUFFERS, RAYS, row_x]
  float4* sums = reinterpret_cast<float4*>(inputs + BUFFERS * RAYS * row_x);
  float* biases = reinterpret_cast<float*>(sums + blockDim.x * 2 * 3);  // [3, groups, 16]
  RowOfBlock* rows = reinterpret_cast<RowOfBlock*>(biases + 3 * units);
  Arrivals* arrivals = reinterpret_cast<Arrivals*>(rows + RAYS);  // of either buffer of states

  if (threadIdx.x < 2) start_arrivals(arrivals[threadIdx.x]);
  find_rows(rows, RAYS, a.shape, blockIdx.x / blocks_of_cluster());
  __syncthreads();
  weight.ordered += int64_t(first) * weight.depths * Operands<T, 3>::SIZE;
  keep_first<Operands<T, 3>>(kept, weight, max(0, min(share.groups, blocks_h - first)));
  for (int i = threadIdx.x; i < int(reinterpret_cast<T*>(sums) - states); i += blockDim.x) states[i] = T(0.f);
  for (int i = threadIdx.x; i < 3 * units; i += blockDim.x) {
    const int of = 16 * first + i % units;
    biases[i] = of < n_state ? float(a.bias[i / units * n_state + of]) : 0.f;
  }
  sync_cluster();
  const int longest = longest_of(rows, RAYS);
  auto start_input = [&](int step) {
    start_row_copies(inputs + step % BUFFERS * RAYS * row_x, row_x, a.input, n_input, rows, RAYS, step);
  };
  for (int step = 0; step < BUFFERS - 1; ++step) start_input(step);
  for (int i = threadIdx.x / 32; i < 2 * blocks_h; i += blockDim.x / 32) {
    const int row = i % 2 * 8 + g, column = i / 2 * 16 + 4 * t;
    const int64_t ray = rows[row].ray;
    const Quad<T> h0 = load_quad<false>(a.h0 + ray * n_state, column, n_state, ray >= 0);
    *reinterpret_cast<Quad<T>*>(states + row * row_h + column) = h0;
  }
  UnitsOfRow<T> own[2];  // of rows g and g + 8, where this warp has them
#pragma unroll
  for (int r = 0; r < 2; ++r) own[r].start(a, rows[g + 8 * r].ray, unit);
  await_copies<0>();
  __syncthreads();
  for (int step = 0; step < longest; ++step) {
    const int now = step % 2, from_x = w.begin(blocks_x), from_h = w.begin(blocks_h);
    if (threadIdx.x == 0) expect(arrivals[now ^ 1], bytes);  // what this step gives
    float sum[1][3][2][4];
    start_sums(sum, biases + 16 * w.group + 4 * t, units, w.part == 0);
    const T* x = inputs + (step % BUFFERS * RAYS + g) * row_x + 16 * from_x + 4 * t;
    if (w.real) add_depths<T, 3, 1>(sum, weight, kept, w.group, blocks_h + from_x, blocks_h + w.end(blocks_x), x, row_x);
    await_copies<0>();  // of the next step
    __syncthreads();    // nothing is read any more of where inputs and sums are written below
    start_input(step + BUFFERS - 1);
    if (step > 0) await(arrivals[now], (step - 1) / 2 % 2);
    if (!w.real) continue;
    const T* h = states + (now * RAYS + g) * row_h + 16 * from_h + 4 * t;
    add_depths<T, 3, 1>(sum, weight, kept, w.group, from_h, w.end(blocks_h), h, row_h);
    add_up<3>(sum, sums, w);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (!w.has_row(r)) continue;
      const RowOfBlock row = rows[g + 8 * r];
      T* const to = states + ((now ^ 1) * RAYS + g + 8 * r) * row_h + unit;
      own[r].step(a, sum[0], r, step < row.length, row.first + step, unit, to, arrivals[now ^ 1]);
    }
    __syncwarp();  // products take all lanes
  }
  if (longest > 0) await(arrivals[longest % 2], (longest - 1) / 2 % 2);  // none leaves while it is sent to
#pragma unroll
  for (int r = 0; r < 2; ++r)
    if (w.real && w.has_row(r) && rows[g + 8 * r].ray >= 0) own[r].end(a, rows[g + 8 * r].ray, unit);
#endif
}

}  // namespace
}  // namespace nerfkit
