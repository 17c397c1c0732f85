// SPDX-License-Identifier: Apache-2.0
// The gradients of the LLTM along 16 rays of a cluster, far to near.

#pragma once

#include "lltm/cluster.cuh"
#include "lltm/large_state_backward.cuh"

namespace nerfkit {
namespace {

// A block's shared memory; its values are gradients of gates.
template <class T, int WARPS>
struct BackwardBlock : BlockOfCluster<T, 1, WARPS> {
  using Base = BlockOfCluster<T, 1, WARPS>;
  int row_g;
  T* grads;  // [2, RAYS, row_g]

  HD static int64_t count(const LltmShape& s) { return int64_t(RAYS) * 2 * row_of(3 * sixteens(s.n_state)); }
  __device__ __forceinline__ BackwardBlock(unsigned char* shared, const LltmShape& s, const WideWeight& weight,
                                           int groups, int sum_buffers)
      : Base(shared, count(s), weight, groups, sum_buffers),
        row_g(row_of(3 * sixteens(s.n_state))),
        grads(Base::values) {}
  __device__ __forceinline__ T* grad(unsigned turn, int row) const { return grads + (turn % 2 * RAYS + row) * row_g; }
};

// Bytes of shared memory besides the weight, of a block with that many groups and buffers of sums.
template <class T, int WARPS>
size_t backward_cluster_bytes(const LltmShape& s, int groups, int sum_buffers) {
  return BackwardBlock<T, WARPS>::bytes(BackwardBlock<T, WARPS>::count(s), groups, sum_buffers);
}

// A thread's words of the gradient of the state, and of what it is computed from.
template <class T, int WARPS>
struct BackwardWords : StateWords<T, WARPS> {
  using State = StateWords<T, WARPS>;
  using State::c, State::h, State::n_state, State::own, State::unit;
  using Block = BackwardBlock<T, WARPS>;
  static constexpr int N = State::N, COUNT = State::COUNT;
  float bias[3][N] = {};
  Word<T> act[COUNT][3], cell[COUNT], grad_h[COUNT];  // of the next step

  __device__ __forceinline__ BackwardWords(const LltmGradients<T>& a, const RowOfBlock* rows, int first_unit)
      : State(a.h_n, a.c_n, rows, first_unit, a.shape.n_state) {}
  // All loads are on their way together.
  template <bool FULL>
  __device__ __forceinline__ void load_words(const LltmGradients<T>& a, const RowOfBlock* rows, int step) {
#pragma unroll
    for (int j = 0; j < COUNT; ++j) {
      const RowOfBlock of = rows[State::row(j)];
      const int64_t at = (step < of.length ? of.first + step : 0) * n_state;
#pragma unroll
      for (int gate = 0; gate < 3; ++gate)
        act[j][gate] = load_word<FULL>(a.activated + 3 * at + gate * n_state, unit, n_state);
      cell[j] = load_word<FULL>(a.c + at, unit, n_state), grad_h[j] = load_word<FULL>(a.h + at, unit, n_state);
    }
  }
  __device__ __forceinline__ void load(const LltmGradients<T>& a, const RowOfBlock* rows, int step) {
    with_full<T>(unit, n_state, [&](auto full) { load_words<full.value>(a, rows, step); });
  }
  // Gradients of the gates of row j before activation, which are added to `bias`; those of a ray that has not begun, or
  // of units that are not there, are zero.
  __device__ __forceinline__ void step_of_row(int j, bool active, float (&grad)[3][N]) {
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const bool real = active && unit + k < n_state;
      const Gates<float> gates{float(act[j][0].v[k]), float(act[j][1].v[k]), float(act[j][2].v[k])};
      Gates<float> of;
      const float tanh_c = fast_tanh<T>(float(cell[j].v[k])), dh = h[j][k] + float(grad_h[j].v[k]);
      const float before = activate_bwd_at(gates, tanh_c, dh, c[j][k], of);
      grad[0][k] = real ? of.i : 0.f, grad[1][k] = real ? of.o : 0.f, grad[2][k] = real ? of.g : 0.f;
      c[j][k] = real ? before : c[j][k];
#pragma unroll
      for (int gate = 0; gate < 3; ++gate) bias[gate][k] += grad[gate][k];
    }
  }
  // The step of all its rows; `blocks` get the gradients.
  __device__ __forceinline__ void take_step(const LltmGradients<T>& a, const Block& block, int step, unsigned turn,
                                            int blocks) {
    const int padded_h = 16 * sixteens(n_state);
#pragma unroll
    for (int j = 0; j < COUNT; ++j) {
      const int row = State::row(j);
      const RowOfBlock of = block.rows[row];
      const bool active = step < of.length;
      float grad[3][N];
      step_of_row(j, active, grad);
      T* const to = block.grad(turn, row) + unit;
#pragma unroll
      for (int gate = 0; gate < 3; ++gate)
        send_to_all(to + gate * padded_h, word_of<T>(grad[gate]), block.arrival(turn), blocks);
      T* const gates = a.gates + 3 * (of.first + step) * n_state;
      if (active)
        with_full<T>(unit, n_state, [&](auto full) {
#pragma unroll
          for (int gate = 0; gate < 3; ++gate)
            store_word<full.value>(gates + gate * n_state, unit, n_state, grad[gate]);
        });
    }
  }
  // The gradient of the state before a step, from the sums of its group.
  __device__ __forceinline__ void take_sums(const RowOfBlock* rows, const float* sums, int step) {
#pragma unroll
    for (int j = 0; j < COUNT; ++j) {
      float total[1][N] = {};
      add_sums<1, WARPS>(total, sums, State::row(j), own.unit);
#pragma unroll
      for (int k = 0; k < N; ++k)
        if (step < rows[State::row(j)].length) h[j][k] = total[0][k];
    }
  }
  // Adds `bias` up over the threads of a group that have a unit, in the order of their rows, to [3, H].
  __device__ __forceinline__ void end_bias(float* sums, float* to, int group) const {
    constexpr int ROWS = std::min(State::Own::ROWS, RAYS);
    static_assert(ROWS * 48 <= SUMS_OF_GROUP<1, WARPS>);
    wait_for_group(group, 32 * WARPS);  // whose sums are read
    if (own.any())
#pragma unroll
      for (int i = 0; i < 3 * N; ++i) sums[(own.row * 3 + i / N) * 16 + own.unit + i % N] = bias[i / N][i % N];
    wait_for_group(group, 32 * WARPS);
    for (int i = threadIdx.x % (32 * WARPS); i < 48; i += 32 * WARPS) {
      const int of = unit - own.unit + i % 16;
      float total = 0.f;
      for (int row = 0; row < ROWS; ++row) total += sums[row * 48 + i];
      if (of < n_state) to[i / 16 * n_state + of] = total;
    }
  }
};

template <class T, int WARPS, int SUM_BUFFERS>
__global__ void __launch_bounds__(32 * CLUSTER_WARPS<WARPS>, 1)
    backward_cluster(const LltmGradients<T> a, WideWeight weight, const int groups) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(16) unsigned char shared[];
  const int n_state = a.shape.n_state, blocks_h = sixteens(n_state), blocks = blocks_of_cluster();
  const int first = groups * rank_in_cluster(), g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  const int bytes = RAYS * 3 * 16 * blocks_h * int(sizeof(T));  // that come at every step
  const WarpOfCluster<WARPS> w(first, blocks_h);
  const BackwardBlock<T, WARPS> block(shared, a.shape, weight, groups, SUM_BUFFERS);

  block.begin(weight, a.shape, first);
  if (!w.real) return;  // others of its block stay until the last bytes have come
  const int longest = longest_of(block.rows, RAYS), from = w.begin(weight.depths), behind = w.end(weight.depths);
  BackwardWords<T, WARPS> words(a, block.rows, 16 * (first + w.group));
  if (longest > 0 && words.own.any()) words.load(a, block.rows, longest - 1);
  unsigned turn = 0;
  for (int step = longest - 1; step >= 0; --step, ++turn) {
    float* const sums = block.sums_of(w.group, turn);
    if (threadIdx.x == 0) expect(block.arrival(turn), bytes);
    if (words.own.any()) {
      words.take_step(a, block, step, turn, blocks);
      if (step > 0) words.load(a, block.rows, step - 1);  // arrives while this step is computed
    }
    block.await_sums(w.group);
    await(block.arrival(turn), turn / 2 % 2);
    float before[1][1][2][4] = {};  // gradient of the state before this step
    const T* grads = block.grad(turn, g) + 16 * from + 4 * t;
    add_depths<T, 1, 1>(before, weight, block.kept, w.group, from, behind, grads, block.row_g);
    write_sums<1>(before, sums, w.part);
    wait_for_group(w.group, 32 * WARPS);
    if (words.own.any()) words.take_sums(block.rows, sums, step);
  }
  if (words.own.any()) words.end(a.h0, a.c0, block.rows);
  float* const bias = a.bias + int64_t(blockIdx.x / blocks) * 3 * n_state;
  words.end_bias(block.sums_of(w.group, 0), bias, w.group);
#endif
}

}  // namespace
}  // namespace nerfkit
