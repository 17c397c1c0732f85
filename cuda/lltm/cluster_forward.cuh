// SPDX-License-Identifier: Apache-2.0
// The LLTM along 16 rays of a cluster, near to far. The input's part of the next step's products comes while what was
// sent is on its way.

#pragma once

#include "lltm/cluster.cuh"
#include "lltm/large_state_forward.cuh"

namespace nerfkit {
namespace {

// A block's shared memory; its values are states and inputs.
template <class T, int WARPS>
struct ForwardBlock : BlockOfCluster<T, 3, WARPS> {
  using Base = BlockOfCluster<T, 3, WARPS>;
  using Base::rows;
  int n_state, n_input, row_h, row_x;
  T *states, *inputs;  // [2, RAYS, row_h], [BUFFERS, RAYS, row_x]

  HD static int64_t count(const LltmShape& s) {
    return int64_t(RAYS) * (2 * row_of(sixteens(s.n_state)) + BUFFERS * row_of(sixteens(s.n_input)));
  }
  __device__ __forceinline__ ForwardBlock(unsigned char* shared, const LltmShape& s, const WideWeight& weight,
                                          int groups, int sum_buffers)
      : Base(shared, count(s), weight, groups, sum_buffers),
        n_state(s.n_state),
        n_input(s.n_input),
        row_h(row_of(sixteens(n_state))),
        row_x(row_of(sixteens(n_input))),
        states(Base::values),
        inputs(states + 2 * RAYS * row_h) {}
  // A row of the state before a step.
  __device__ __forceinline__ T* state(unsigned step, int row) const { return states + (step % 2 * RAYS + row) * row_h; }
  __device__ __forceinline__ T* input(unsigned step, int row) const {
    return inputs + (step % BUFFERS * RAYS + row) * row_x;
  }

  // By all threads, before begin(): what is sent comes after it.
  __device__ __forceinline__ void clear_values() const {
    for (int i = threadIdx.x; i < RAYS * (2 * row_h + BUFFERS * row_x); i += blockDim.x) states[i] = T(0.f);
  }
  __device__ __forceinline__ void start_input(const T* all, int step) const {
    start_row_copies<16>(input(step, 0), row_x, all, n_input, rows, RAYS, step);
  }
  __device__ __forceinline__ void load_states(const T* h0) const {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    for (int i = threadIdx.x / 32; i < 2 * sixteens(n_state); i += blockDim.x / 32) {
      const int row = i % 2 * 8 + g, column = i / 2 * 16 + 4 * t;
      const int64_t ray = rows[row].ray;
      *reinterpret_cast<Quad<T>*>(state(0, row) + column) =
          load_quad<false>(h0 + ray * n_state, column, n_state, ray >= 0);
    }
  }
};

// Bytes of shared memory besides the weight, of a block with that many groups and buffers of sums.
template <class T, int WARPS>
size_t forward_cluster_bytes(const LltmShape& s, int groups, int sum_buffers) {
  return ForwardBlock<T, WARPS>::bytes(ForwardBlock<T, WARPS>::count(s), groups, sum_buffers);
}

// A thread's words of the state, and what becomes of them.
template <class T, int WARPS>
struct ForwardWords : StateWords<T, WARPS> {
  using State = StateWords<T, WARPS>;
  using State::c, State::h, State::n_state, State::own, State::unit;
  static constexpr int N = State::N;
  float bias[3][N];

  __device__ __forceinline__ ForwardWords(const LltmArrays<T>& a, const RowOfBlock* rows, int first_unit)
      : State(a.h0, a.c0, rows, first_unit, a.shape.n_state) {
#pragma unroll
    for (int i = 0; i < 3 * N; ++i)
      bias[i / N][i % N] = unit + i % N < n_state ? float(a.bias[i / N * n_state + unit + i % N]) : 0.f;
  }
  // The step of row j whose gates, before activation and bias, are `sum`. Its state, also of a ray that has ended, for
  // so many bytes are waited for.
  __device__ __forceinline__ unsigned step_of_row(const float (&sum)[3][N], int j, bool active, float (&before)[N],
                                                  float (&act)[3][N]) {
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const Gates<float> gates =
          fast_activate<T>(sum[0][k] + bias[0][k], sum[1][k] + bias[1][k], sum[2][k] + bias[2][k]);
      before[k] = h[j][k];
      c[j][k] += active ? gates.g * gates.i : 0.f;
      h[j][k] = active ? fast_tanh<T>(c[j][k]) * gates.o : h[j][k];
      act[0][k] = gates.i, act[1][k] = gates.o, act[2][k] = gates.g;
    }
    return word_of<T>(h[j]);
  }
  template <bool FULL>
  __device__ __forceinline__ void store(const LltmArrays<T>& a, int j, int64_t n, const float (&before)[N],
                                        const float (&act)[3][N]) const {
    const int64_t at = n * n_state;
    store_word<FULL>(a.h + at, unit, n_state, h[j]);
    if (!a.activated) return;
    store_word<FULL>(a.c + at, unit, n_state, c[j]);
    store_word<FULL>(a.before + at, unit, n_state, before);
#pragma unroll
    for (int gate = 0; gate < 3; ++gate)
      store_word<FULL>(a.activated + 3 * at + gate * n_state, unit, n_state, act[gate]);
  }
  // The step of all its rows, from the sums of its group; `blocks` get the states.
  __device__ __forceinline__ void take_step(const LltmArrays<T>& a, const ForwardBlock<T, WARPS>& block,
                                            const float* sums, int step, int blocks) {
#pragma unroll
    for (int j = 0; j < State::COUNT; ++j) {
      const int row = State::row(j);
      const RowOfBlock of = block.rows[row];
      const bool active = step < of.length;
      float gates[3][N] = {}, before[N], act[3][N];
      add_sums<3, WARPS>(gates, sums, row, own.unit);
      const unsigned word = step_of_row(gates, j, active, before, act);
      send_to_all(block.state(step + 1, row) + unit, word, block.arrival(step + 1), blocks);
      if (active)
        with_full<T>(unit, n_state, [&](auto full) { store<full.value>(a, j, of.first + step, before, act); });
    }
  }
};

template <class T, int WARPS, int SUM_BUFFERS>
__global__ void __launch_bounds__(32 * CLUSTER_WARPS<WARPS>, 1)
    forward_cluster(const LltmArrays<T> a, WideWeight weight, const int groups) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(16) unsigned char shared[];
  const int blocks_h = sixteens(a.shape.n_state), blocks_x = sixteens(a.shape.n_input), blocks = blocks_of_cluster();
  const int first = groups * rank_in_cluster(), g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  const int bytes = RAYS * 16 * blocks_h * int(sizeof(T));  // that come at every step
  const WarpOfCluster<WARPS> w(first, blocks_h);
  const ForwardBlock<T, WARPS> block(shared, a.shape, weight, groups, SUM_BUFFERS);

  block.clear_values();
  block.begin(weight, a.shape, first);
  const int longest = longest_of(block.rows, RAYS);
  for (int step = 0; step < BUFFERS; ++step) block.start_input(a.input, step);
  block.load_states(a.h0);
  ForwardWords<T, WARPS> words(a, block.rows, 16 * (first + w.group));
  const int from_x = w.begin(blocks_x), end_x = w.end(blocks_x), from_h = w.begin(blocks_h), end_h = w.end(blocks_h);
  float sum[1][3][2][4];
  auto add_input = [&](int step) {  // to nothing
#pragma unroll
    for (int i = 0; i < 24; ++i) sum[0][i / 8][i / 4 % 2][i % 4] = 0.f;
    if (!w.real || from_x == end_x || step >= longest) return;
    const T* x = block.input(step, g) + 16 * from_x + 4 * t;
    add_depths<T, 3, 1>(sum, weight, block.kept, w.group, blocks_h + from_x, blocks_h + end_x, x, block.row_x);
  };
  cp_async_wait<0>();
  __syncthreads();
  add_input(0);
  for (int step = 0; step < longest; ++step) {
    float* const sums = block.sums_of(w.group, step);
    if (threadIdx.x == 0) expect(block.arrival(step + 1), bytes);  // what this step gives
    if (step > 0) await(block.arrival(step), unsigned(step - 1) / 2 % 2);
    if (w.real) {
      const T* h = block.state(step, g) + 16 * from_h + 4 * t;
      add_depths<T, 3, 1>(sum, weight, block.kept, w.group, from_h, end_h, h, block.row_h);
      write_sums<3>(sum, sums, w.part);
    }
    cp_async_wait<BUFFERS - 2>();  // of the next step
    __syncthreads();               // the sums are there, and this step's input is read
    if (w.real && words.own.any()) words.take_step(a, block, sums, step, blocks);
    block.start_input(a.input, step + BUFFERS);
    block.await_sums(w.group);
    add_input(step + 1);
  }
  if (longest > 0) await(block.arrival(longest), unsigned(longest - 1) / 2 % 2);  // none leaves while it is sent to
  if (w.real && words.own.any()) words.end(a.h_n, a.c_n, block.rows);
#endif
}

}  // namespace
}  // namespace nerfkit
