// SPDX-License-Identifier: Apache-2.0
// The LLTM along 16 rays of a cluster, near to far. The input's part of the next step's products comes while what was sent is
// on its way.

#pragma once

#include "lltm_cluster.cuh"
#include "lltm_wide_forward.cuh"

namespace nerfkit {
namespace {

// Bytes of shared memory besides the weight, of a block with that many groups.
template <class T, int WARPS>
size_t forward_cluster_bytes(const LltmShape& s, int groups) {
  const size_t rows = size_t(RAYS) * (2 * row_of(sixteens(s.n_state)) + BUFFERS * row_of(sixteens(s.n_input))) * sizeof(T);
  const size_t sums = groups * SUMS_OF_GROUP<3, WARPS> * sizeof(float);
  return rows + sums + RAYS * sizeof(RowOfBlock) + 2 * sizeof(Arrivals);
}

// A thread's words of the state, and what becomes of them.
template <class T, int WARPS>
struct ForwardWords : StateWords<T, WARPS> {
  using State = StateWords<T, WARPS>;
  using State::c, State::h;
  static constexpr int N = State::N;
  float bias[3][N];

  __device__ __forceinline__ ForwardWords(const LltmArrays<T>& a, const RowOfBlock* rows, const OwnWords<T, WARPS>& own,
                                          int unit)
      : State(a.h0, a.c0, rows, own, unit, a.shape.n_state) {
    const int n_state = a.shape.n_state;
#pragma unroll
    for (int i = 0; i < 3 * N; ++i)
      bias[i / N][i % N] = unit + i % N < n_state ? float(a.bias[i / N * n_state + unit + i % N]) : 0.f;
  }
  // The step of row j whose gates, before activation and bias, are `sum`. Its state, also of a ray that has ended, for so
  // many bytes are waited for.
  __device__ __forceinline__ unsigned step(const float (&sum)[3][N], int j, bool active, float (&before)[N],
                                           float (&act)[3][N]) {
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const Gates<float> gates = fast_activate<T>(sum[0][k] + bias[0][k], sum[1][k] + bias[1][k], sum[2][k] + bias[2][k]);
      before[k] = h[j][k];
      c[j][k] += active ? gates.g * gates.i : 0.f;
      h[j][k] = active ? fast_tanh<T>(c[j][k]) * gates.o : h[j][k];
      act[0][k] = gates.i, act[1][k] = gates.o, act[2][k] = gates.g;
    }
    return word_of<T>(h[j]);
  }
  template <bool FULL>
  __device__ __forceinline__ void store(const LltmArrays<T>& a, int j, int64_t n, int unit, const float (&before)[N],
                                        const float (&act)[3][N]) const {
    const int n_state = a.shape.n_state;
    const int64_t at = n * n_state;
    store_word<FULL>(a.h + at, unit, n_state, h[j]);
    if (!a.activated) return;
    store_word<FULL>(a.c + at, unit, n_state, c[j]);
    store_word<FULL>(a.before + at, unit, n_state, before);
#pragma unroll
    for (int gate = 0; gate < 3; ++gate) store_word<FULL>(a.activated + 3 * at + gate * n_state, unit, n_state, act[gate]);
  }
};

template <class T, int WARPS>
__global__ void __launch_bounds__(32 * CLUSTER_WARPS<WARPS>, 1)
    forward_cluster(const LltmArrays<T> a, WideWeight weight, const int groups) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(16) unsigned char shared[];
  const int n_state = a.shape.n_state, n_input = a.shape.n_input, blocks_h = sixteens(n_state), blocks_x = sixteens(n_input);
  const int row_h = row_of(blocks_h), row_x = row_of(blocks_x), first = groups * rank_in_cluster();
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const WarpOfCluster<WARPS> w(first, blocks_h);
  const int bytes = RAYS * 16 * blocks_h * int(sizeof(T));  // that come at every step
  uint4* kept = reinterpret_cast<uint4*>(shared);           // [groups, weight.kept, SIZE]
  T* states = reinterpret_cast<T*>(kept + groups * weight.kept * Operands<T, 3>::SIZE);  // [2, RAYS, row_h]
  T* inputs = states + 2 * RAYS * row_h;                                                 // [BUFFERS, RAYS, row_x]
  float* sums = reinterpret_cast<float*>(inputs + BUFFERS * RAYS * row_x);
  RowOfBlock* rows = reinterpret_cast<RowOfBlock*>(sums + groups * SUMS_OF_GROUP<3, WARPS>);
  Arrivals* arrivals = reinterpret_cast<Arrivals*>(rows + RAYS);  // of either buffer of states

  start_arrivals(arrivals, 2);
  find_rows(rows, RAYS, a.shape, blockIdx.x / blocks_of_cluster());
  __syncthreads();  // racecheck knows of no barrier of a cluster
  weight.ordered += int64_t(first) * weight.depths * Operands<T, 3>::SIZE;
  keep_first<Operands<T, 3>>(kept, weight, max(0, min(groups, blocks_h - first)));
  for (int i = threadIdx.x; i < int(reinterpret_cast<T*>(sums) - states); i += blockDim.x) states[i] = T(0.f);
  sync_cluster();
  const int longest = longest_of(rows, RAYS);
  auto start_input = [&](int step) {
    start_row_copies<16>(inputs + step % BUFFERS * RAYS * row_x, row_x, a.input, n_input, rows, RAYS, step);
  };
  for (int step = 0; step < BUFFERS; ++step) start_input(step);
  for (int i = threadIdx.x / 32; i < 2 * blocks_h; i += blockDim.x / 32) {
    const int row = i % 2 * 8 + g, column = i / 2 * 16 + 4 * t;
    const int64_t ray = rows[row].ray;
    const Quad<T> h0 = load_quad<false>(a.h0 + ray * n_state, column, n_state, ray >= 0);
    *reinterpret_cast<Quad<T>*>(states + row * row_h + column) = h0;
  }
  const OwnWords<T, WARPS> own;
  const int unit = 16 * (first + w.group) + own.unit;
  ForwardWords<T, WARPS> words(a, rows, own, unit);
  const int blocks = blocks_of_cluster();
  float* const own_sums = sums + w.group * SUMS_OF_GROUP<3, WARPS>;
  const int from_x = w.begin(blocks_x), end_x = w.end(blocks_x), from_h = w.begin(blocks_h), end_h = w.end(blocks_h);
  float sum[1][3][2][4];
  auto add_input = [&](int step) {  // to nothing
#pragma unroll
    for (int i = 0; i < 24; ++i) sum[0][i / 8][i / 4 % 2][i % 4] = 0.f;
    if (!w.real || from_x == end_x || step >= longest) return;
    const T* x = inputs + (step % BUFFERS * RAYS + g) * row_x + 16 * from_x + 4 * t;
    add_depths<T, 3, 1>(sum, weight, kept, w.group, blocks_h + from_x, blocks_h + end_x, x, row_x);
  };
  await_copies<0>();
  __syncthreads();
  add_input(0);
  for (int step = 0; step < longest; ++step) {
    const int now = step % 2;
    if (threadIdx.x == 0) expect(arrivals[now ^ 1], bytes);  // what this step gives
    if (step > 0) await(arrivals[now], (step - 1) / 2 % 2);
    float* const sums_now = own_sums + step % SUM_BUFFERS<WARPS> * SUMS_OF_STEP<3, WARPS>;
    const T* h = states + (now * RAYS + g) * row_h + 16 * from_h + 4 * t;
    if (w.real) {
      add_depths<T, 3, 1>(sum, weight, kept, w.group, from_h, end_h, h, row_h);
      write_sums<3>(sum, sums_now, w.part);
    }
    await_copies<BUFFERS - 2>();  // of the next step
    __syncthreads();              // the sums are there, and this step's input is read
    if (w.real && own.any()) {
#pragma unroll
      for (int j = 0; j < own.COUNT; ++j) {
        const int row = own.row + j * own.ROWS;
        const RowOfBlock of = rows[row];
        const bool active = step < of.length;
        float gates[3][WORD<T>] = {}, before[WORD<T>], act[3][WORD<T>];
        add_sums<3, WARPS>(gates, sums_now, row, own.unit);
        const unsigned word = words.step(gates, j, active, before, act);
        send_to_all(states + ((now ^ 1) * RAYS + row) * row_h + unit, word, arrivals[now ^ 1], blocks);
        const int64_t n = of.first + step;
        if (active)
          with_full<T>(unit, n_state, [&](auto full) { words.template store<full.value>(a, j, n, unit, before, act); });
      }
    }
    start_input(step + BUFFERS);
    __syncwarp();  // products take all lanes
    add_input(step + 1);
  }
  if (longest > 0) await(arrivals[longest % 2], (longest - 1) / 2 % 2);  // none leaves while it is sent to
  if (w.real && own.any()) words.end(a.h_n, a.c_n, rows, own, unit, n_state);
#endif
}

}  // namespace
}  // namespace nerfkit
