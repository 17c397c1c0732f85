// SPDX-License-Identifier: Apache-2.0
// The gradients of the LLTM along 16 rays of a cluster, far to near.

#pragma once

#include "lltm_cluster.cuh"
#include "lltm_wide_backward.cuh"

namespace nerfkit {
namespace {

// Bytes of shared memory besides the weight, of a block with that many groups.
template <class T, int WARPS>
size_t backward_cluster_bytes(const LltmShape& s, int groups) {
  const size_t rows = size_t(RAYS) * 2 * row_of(3 * sixteens(s.n_state)) * sizeof(T);
  return rows + groups * SUMS_OF_GROUP<1, WARPS> * sizeof(float) + RAYS * sizeof(RowOfBlock) + 2 * sizeof(Arrivals);
}

// A thread's words of the gradient of the state, and of what it is computed from.
template <class T, int WARPS>
struct BackwardWords : StateWords<T, WARPS> {
  using State = StateWords<T, WARPS>;
  using State::c, State::h;
  using Own = OwnWords<T, WARPS>;
  static constexpr int N = State::N, COUNT = State::COUNT;
  float bias[3][N] = {};
  Word<T> act[COUNT][3], cell[COUNT], grad_h[COUNT];  // of the next step

  __device__ __forceinline__ BackwardWords(const LltmGradients<T>& a, const RowOfBlock* rows, const Own& own, int unit)
      : State(a.h_n, a.c_n, rows, own, unit, a.shape.n_state) {}
  // All loads are on their way together.
  template <bool FULL>
  __device__ __forceinline__ void load(const LltmGradients<T>& a, const RowOfBlock* rows, const Own& own, int step,
                                       int unit) {
    const int n_state = a.shape.n_state;
#pragma unroll
    for (int j = 0; j < COUNT; ++j) {
      const RowOfBlock row = rows[own.row + j * Own::ROWS];
      const int64_t at = (step < row.length ? row.first + step : 0) * n_state;
#pragma unroll
      for (int gate = 0; gate < 3; ++gate)
        act[j][gate] = load_word<FULL>(a.activated + 3 * at + gate * n_state, unit, n_state);
      cell[j] = load_word<FULL>(a.c + at, unit, n_state), grad_h[j] = load_word<FULL>(a.h + at, unit, n_state);
    }
  }
  // Gradients of the gates of row j before activation, which are added to `bias`; those of a ray that has not begun, or of
  // units that are not there, are zero.
  __device__ __forceinline__ void step(int j, bool active, int unit, int n_state, float (&grad)[3][N]) {
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
};

// Adds up over the threads of a group that have a unit, in the order of their rows, to [3, H].
template <class T, int WARPS>
__device__ __forceinline__ void add_bias(const float (&bias)[3][WORD<T>], const OwnWords<T, WARPS>& own, float* sums,
                                         float* to, int first_unit, int n_state, int group) {
  constexpr int ROWS = std::min(OwnWords<T, WARPS>::ROWS, RAYS);
  static_assert(ROWS * 48 <= SUMS_OF_STEP<1, WARPS>);
  wait_for_group(group, 32 * WARPS);  // whose sums are read
  if (own.any())
#pragma unroll
    for (int i = 0; i < 3 * WORD<T>; ++i)
      sums[(own.row * 3 + i / WORD<T>) * 16 + own.unit + i % WORD<T>] = bias[i / WORD<T>][i % WORD<T>];
  wait_for_group(group, 32 * WARPS);
  for (int i = threadIdx.x % (32 * WARPS); i < 48; i += 32 * WARPS) {
    const int unit = first_unit + i % 16;
    float total = 0.f;
    for (int row = 0; row < ROWS; ++row) total += sums[row * 48 + i];
    if (unit < n_state) to[i / 16 * n_state + unit] = total;
  }
}

template <class T, int WARPS>
__global__ void __launch_bounds__(32 * CLUSTER_WARPS<WARPS>, 1)
    backward_cluster(const LltmGradients<T> a, WideWeight weight, const int groups) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(16) unsigned char shared[];
  const int n_state = a.shape.n_state, blocks_h = sixteens(n_state), padded_h = 16 * blocks_h, row_g = row_of(3 * blocks_h);
  const int tile = blockIdx.x / blocks_of_cluster(), first = groups * rank_in_cluster();
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const WarpOfCluster<WARPS> w(first, blocks_h);
  const int bytes = RAYS * 3 * padded_h * int(sizeof(T));                                // that come at every step
  uint4* kept = reinterpret_cast<uint4*>(shared);                                        // [groups, weight.kept, SIZE]
  T* grads = reinterpret_cast<T*>(kept + groups * weight.kept * Operands<T, 1>::SIZE);  // of gates, [2, RAYS, row_g]
  float* sums = reinterpret_cast<float*>(grads + 2 * RAYS * row_g);
  RowOfBlock* rows = reinterpret_cast<RowOfBlock*>(sums + groups * SUMS_OF_GROUP<1, WARPS>);
  Arrivals* arrivals = reinterpret_cast<Arrivals*>(rows + RAYS);  // of either buffer of gradients

  start_arrivals(arrivals, 2);
  find_rows(rows, RAYS, a.shape, tile);
  __syncthreads();  // racecheck knows of no barrier of a cluster
  weight.ordered += int64_t(first) * weight.depths * Operands<T, 1>::SIZE;
  keep_first<Operands<T, 1>>(kept, weight, max(0, min(groups, blocks_h - first)));
  sync_cluster();
  if (!w.real) return;  // others of its block stay until the last bytes have come
  const int longest = longest_of(rows, RAYS);
  const OwnWords<T, WARPS> own;
  const int unit = 16 * (first + w.group) + own.unit, from = w.begin(weight.depths), behind = w.end(weight.depths);
  BackwardWords<T, WARPS> words(a, rows, own, unit);
  const int blocks = blocks_of_cluster();
  float* const own_sums = sums + w.group * SUMS_OF_GROUP<1, WARPS>;
  auto load_samples = [&](int step) {
    with_full<T>(unit, n_state, [&](auto full) { words.template load<full.value>(a, rows, own, step, unit); });
  };
  if (longest > 0 && own.any()) load_samples(longest - 1);
  for (int step = longest - 1, turn = 0; step >= 0; --step, ++turn) {
    const int now = turn % 2;
    T* const to = grads + now * RAYS * row_g;
    float* const sums_now = own_sums + turn % SUM_BUFFERS<WARPS> * SUMS_OF_STEP<1, WARPS>;
    if (threadIdx.x == 0) expect(arrivals[now], bytes);
    if (own.any()) {
#pragma unroll
      for (int j = 0; j < own.COUNT; ++j) {
        const RowOfBlock row = rows[own.row + j * own.ROWS];
        const bool active = step < row.length;
        float grad[3][WORD<T>];
        words.step(j, active, unit, n_state, grad);
        T* const of_row = to + (own.row + j * own.ROWS) * row_g + unit;
#pragma unroll
        for (int gate = 0; gate < 3; ++gate)
          send_to_all(of_row + gate * padded_h, word_of<T>(grad[gate]), arrivals[now], blocks);
        T* const gates = a.gates + 3 * (row.first + step) * n_state;
        if (active)
          with_full<T>(unit, n_state, [&](auto full) {
#pragma unroll
            for (int gate = 0; gate < 3; ++gate) store_word<full.value>(gates + gate * n_state, unit, n_state, grad[gate]);
          });
      }
      if (step > 0) load_samples(step - 1);  // arrives while this step is computed
    }
    __syncwarp();  // products take all lanes
    await(arrivals[now], turn / 2 % 2);
    float before[1][1][2][4] = {};  // gradient of the state before this step
    add_depths<T, 1, 1>(before, weight, kept, w.group, from, behind, to + g * row_g + 16 * from + 4 * t, row_g);
    write_sums<1>(before, sums_now, w.part);
    wait_for_group(w.group, 32 * WARPS);
    if (own.any()) {
#pragma unroll
      for (int j = 0; j < own.COUNT; ++j) {
        float total[1][WORD<T>] = {};
        add_sums<1, WARPS>(total, sums_now, own.row + j * own.ROWS, own.unit);
#pragma unroll
        for (int k = 0; k < WORD<T>; ++k)
          if (step < rows[own.row + j * own.ROWS].length) words.h[j][k] = total[0][k];
      }
    }
  }
  if (own.any()) words.end(a.h0, a.c0, rows, own, unit, n_state);
  add_bias<T, WARPS>(words.bias, own, own_sums, a.bias + int64_t(tile) * 3 * n_state, unit - own.unit, n_state, w.group);
#endif
}

}  // namespace
}  // namespace nerfkit
