// SPDX-License-Identifier: Apache-2.0
// The LLTM of at most 64 units (forward, 64 inputs too) along few rays, in plain arithmetic of float32: what counts is
// how long a step takes. A unit has 2 or 4 lanes, and a block as many rays, or one where that leaves no processor idle.
// Each lane has a part of the unit's weights in registers and multiplies it for all rays; then the lanes exchange their
// sums, so that each has those of one ray, and is that ray's unit from there on; of a single ray all are, and the first
// one writes. H and I are the sizes, rounded up; what is added is zero and stays zero.

#pragma once

#include "lltm/small_batch_reading.cuh"

namespace nerfkit {
namespace {

// Threads of a processor, at once, one for every unit of every ray. More rays of half types are faster on tensor cores.
template <class T>
constexpr int FEW_THREADS = sizeof(T) == 4 ? 512 : 256;
// Threads of a block: the lanes of all its units.
constexpr int few_block(int n_state, int n_input) { return n_state * (n_state > 16 || n_input > 16 ? 4 : 2); }
// Blocks of a processor; more than 32 inputs take too many registers for as many.
template <class T>
constexpr int few_blocks(int block, int n_input) {
  return std::max(1, FEW_THREADS<T> / block / (n_input > 32 ? 2 : 1));
}
// From one ray to the next in shared memory: the units of a warp's lanes lie in different banks.
constexpr int few_row(int n, int lanes) { return n % 32 == 32 / lanes ? n : n + 32 / lanes; }

template <int BLOCK>
__device__ __forceinline__ void await_block() {
  if constexpr (BLOCK == 32)
    __syncwarp();
  else
    __syncthreads();
}

// The column of number k of a lane's part.
template <int LANES>
__device__ __forceinline__ int column_of_part(int k, int l) {
  return 4 * (k / 4 * LANES + l) + k % 4;
}

// A lane's sums, one of every gate of every ray.
template <int RAYS, int GATES>
struct FewSums {
  float of[RAYS][GATES];
};

// Adds the products of a lane's part with every ray's values, `row` apart.
template <int LANES, int RAYS, int GATES, int N>
__device__ __forceinline__ void add_part(FewSums<RAYS, GATES>& sum, const float (&weight)[GATES][N],
                                         const float* values, int row, int l) {
#pragma unroll
  for (int k = 0; k < N; k += 4)
#pragma unroll
    for (int ray = 0; ray < RAYS; ++ray) {
      const float4 v = *reinterpret_cast<const float4*>(values + ray * row + column_of_part<LANES>(k, l));
#pragma unroll
      for (int gate = 0; gate < GATES; ++gate) {
        const float* w = weight[gate] + k;
        float& to = sum.of[ray][gate];
        to += w[0] * v.x, to += w[1] * v.y, to += w[2] * v.z, to += w[3] * v.w;
      }
    }
}

// Adds up over the lanes of a unit. Lane l has the sums of ray l in of[0], or of the only one.
template <int LANES, int RAYS, int GATES>
__device__ __forceinline__ void share_out(FewSums<RAYS, GATES>& sum, int l) {
  static_assert(RAYS == LANES || RAYS == 1);
#pragma unroll
  for (int apart = 1; RAYS == 1 && apart < LANES; apart *= 2)
#pragma unroll
    for (int gate = 0; gate < GATES; ++gate) sum.of[0][gate] += __shfl_xor_sync(FULL_MASK, sum.of[0][gate], apart);
#pragma unroll
  for (int half = RAYS / 2; half; half /= 2)
#pragma unroll
    for (int ray = 0; ray < half; ++ray)
#pragma unroll
      for (int gate = 0; gate < GATES; ++gate) {
        float &low = sum.of[ray][gate], high = sum.of[ray + half][gate];
        const float given = __shfl_xor_sync(FULL_MASK, l & half ? low : high, half);
        low = (l & half ? high : low) + given;
      }
}

template <int LANES>
__device__ __forceinline__ int longest_of_block(int length) {
#pragma unroll
  for (int apart = 1; apart < LANES; apart *= 2) length = max(length, __shfl_xor_sync(FULL_MASK, length, apart));
  return length;
}

// ---- the weight ----

// A lane's part of columns first .. first + count - 1 of a row.
template <int LANES, class T, int N>
__device__ __forceinline__ void load_part(float (&part)[N], const T* row, int first, int count, bool real, int l) {
#pragma unroll
  for (int k = 0; k < N; ++k) {
    const int column = column_of_part<LANES>(k, l);
    part[k] = real && column < count ? float(row[first + column]) : 0.f;
  }
}

// A lane's part of a unit's rows, one of each gate, and its bias.
template <int LANES, int H, int I>
struct FewWeights {
  float of_h[3][H / LANES], of_x[3][I / LANES], bias[3];

  template <class T>
  __device__ __forceinline__ FewWeights(const LltmArrays<T>& a, bool real, int unit, int l) {
    const int n_state = a.shape.n_state, n_input = a.shape.n_input;
#pragma unroll
    for (int gate = 0; gate < 3; ++gate) {
      const T* row = a.weight + int64_t(gate * n_state + unit) * (n_state + n_input);
      load_part<LANES>(of_h[gate], row, 0, n_state, real, l);
      load_part<LANES>(of_x[gate], row, n_state, n_input, real, l);
      bias[gate] = real ? float(a.bias[gate * n_state + unit]) : 0.f;
    }
  }
};

// A lane's part of a unit's column, from each gate; a row has `columns`.
template <int LANES, class T, int N>
__device__ __forceinline__ void load_column(float (&part)[3][1][N], const T* column, int n_state, int columns,
                                            bool real, int l) {
#pragma unroll
  for (int gate = 0; gate < 3; ++gate)
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const int from = column_of_part<LANES>(k, l);
      part[gate][0][k] = real && from < n_state ? float(column[int64_t(gate * n_state + from) * columns]) : 0.f;
    }
}

// Adds a lane's products with the gradients of all gates, in some chains of sums; the first one gets the others in the
// end.
template <int LANES, int RAYS, int CHAINS, int N>
__device__ __forceinline__ void add_gates(FewSums<RAYS, 1> (&sum)[CHAINS], const float (&weight)[3][1][N],
                                          const float* grads, int row, int l) {
  constexpr int H = LANES * N;
#pragma unroll
  for (int gate = 0; gate < 3; ++gate) add_part<LANES>(sum[gate % CHAINS], weight[gate], grads + gate * H, row, l);
#pragma unroll
  for (int i = 1; i < CHAINS; ++i)
#pragma unroll
    for (int ray = 0; ray < RAYS; ++ray) sum[0].of[ray][0] += sum[i].of[ray][0];
}

// ---- results ----

// Those of a unit.
template <class T>
__device__ __forceinline__ void write_gates(T* to, int n_state, const Gates<float>& gates) {
  to[0] = T(gates.i), to[n_state] = T(gates.o), to[2 * n_state] = T(gates.g);
}

// What the backward pass takes of a step; `before`: the state in front of it.
template <class T>
__device__ __forceinline__ void save_step(const LltmArrays<T>& a, int64_t at, int64_t gates_at,
                                          const Gates<float>& gates, float c, float before) {
  a.c[at] = T(c), a.before[at] = T(before);
  write_gates(a.activated + gates_at, a.shape.n_state, gates);
}

// A block's row of the bias' gradient.
template <int RAYS>
__device__ __forceinline__ void write_bias(float* row, const float (&bias)[3], int n_state, int unit, bool real,
                                           int l) {
#pragma unroll
  for (int gate = 0; gate < 3; ++gate) {
    const float sum = warp_sum(bias[gate], RAYS);
    if (l == 0 && real) row[gate * n_state + unit] = sum;
  }
}

// ---- the passes ----

template <class T, int H, int I, bool ALONE>
__global__ void __launch_bounds__(few_block(H, I), few_blocks<T>(few_block(H, I), I))
    forward_few(const LltmArrays<T> a) {
  constexpr int BLOCK = few_block(H, I), LANES = BLOCK / H, RAYS = ALONE ? 1 : LANES, ROW = few_row(H, LANES);
  using Inputs = FewInputs<T, BLOCK, RAYS, I>;
  __shared__ __align__(16) float states[2][RAYS * ROW];
  __shared__ __align__(16) typename Inputs::Buffers buffers;
  const int n_state = a.shape.n_state;
  const int l = threadIdx.x % LANES, unit = threadIdx.x / LANES, own_ray = l % RAYS;
  const RowOfBlock own = row_at(a.shape, int64_t(blockIdx.x) * RAYS + own_ray);
  const bool real = unit < n_state, starts = real && own.ray >= 0, writes = l < RAYS;
  const int longest = longest_of_block<LANES>(own.length);

  Inputs inputs(a, own, buffers);
  inputs.start_first();
  const FewWeights<LANES, H, I> weights(a, real, unit, l);
  float h = starts ? float(a.h0[own.ray * n_state + unit]) : 0.f,
        c = starts ? float(a.c0[own.ray * n_state + unit]) : 0.f;
  if (writes) states[0][own_ray * ROW + unit] = h;

  FewSums<RAYS, 3> ahead;  // the next step's gates, as far as the input goes
  auto add_input = [&](int step) {
    ahead = {};
    add_part<LANES>(ahead, weights.of_x, inputs.of(step), I, l);
  };
  inputs.await_first();
  await_block<BLOCK>();
  add_input(0);
  int64_t at = own.first * n_state + unit, gates_at = 3 * own.first * n_state + unit;  // of the step's sample
#pragma unroll 1
  for (int step = 0; step < longest; ++step) {
    inputs.await_next();
    await_block<BLOCK>();  // the state is there, and nothing is read any more of what is written below
    if constexpr (Inputs::EARLY) inputs.start(step + Inputs::AHEAD);
    FewSums<RAYS, 3> sum = ahead;
    add_part<LANES>(sum, weights.of_h, states[step % 2], ROW, l);
    if constexpr (!Inputs::EARLY) inputs.start(step + Inputs::AHEAD);
    add_input(step + 1);
    share_out<LANES>(sum, l);
    const Gates<float> gates = fast_activate<float>(sum.of[0][0] + weights.bias[0], sum.of[0][1] + weights.bias[1],
                                                    sum.of[0][2] + weights.bias[2]);
    const bool active = real && step < own.length;
    const float before = h;
    c += active ? gates.g * gates.i : 0.f;
    h = active ? fast_tanh<float>(c) * gates.o : h;
    if (writes) states[(step + 1) % 2][own_ray * ROW + unit] = h;
    if (active && writes) a.h[at] = T(h);
    if (active && writes && a.activated) save_step(a, at, gates_at, gates, c, before);
    at += n_state, gates_at += 3 * n_state;
    inputs.end(step + Inputs::AHEAD);
  }
  if (starts && writes) a.h_n[own.ray * n_state + unit] = T(h), a.c_n[own.ray * n_state + unit] = T(c);
}

template <class T, int H, bool ALONE>
__global__ void __launch_bounds__(few_block(H, 0), few_blocks<T>(few_block(H, 0), 0))
    backward_few(const LltmGradients<T> a) {
  constexpr int BLOCK = few_block(H, 0), LANES = BLOCK / H, RAYS = ALONE ? 1 : LANES, ROW = few_row(3 * H, LANES);
  constexpr int CHAINS = RAYS == 4 ? 1 : 3;  // of sums: more than rays where these are too few to add at full speed
  using Samples = FewSamples<T, BLOCK>;
  __shared__ __align__(16) float grads[2][RAYS * ROW];  // of the gates
  __shared__ typename Samples::Buffers buffers;
  const int n_state = a.shape.n_state, columns = n_state + a.shape.n_input;
  const int l = threadIdx.x % LANES, unit = threadIdx.x / LANES, own_ray = l % RAYS;
  const RowOfBlock own = row_at(a.shape, int64_t(blockIdx.x) * RAYS + own_ray);
  const bool real = unit < n_state, starts = real && own.ray >= 0, writes = l < RAYS;
  const int longest = longest_of_block<LANES>(own.length);

  Samples samples(buffers);
  const int64_t last = own.first + longest - 1;
  int64_t at = last * n_state + unit, gates_at = 3 * last * n_state + unit;  // of the sample that is asked for
  auto start_sample = [&](int step) {                                        // one after the other
    const bool active = real && step >= 0 && step < own.length;
    const T *c = a.c + at, *grad_h = a.h + at, *act = a.activated + gates_at;
    const T* from[] = {act, act + n_state, act + 2 * n_state, c, grad_h};
    at -= n_state, gates_at -= 3 * n_state;
    samples.start(step, from, active);
  };
#pragma unroll 1
  for (int i = 1; i <= Samples::AHEAD; ++i) start_sample(longest - i);

  float weight[3][1][H / LANES];  // from the gates to this unit
  load_column<LANES>(weight, a.weight + unit, n_state, columns, real, l);
  float grad_h = starts ? float(a.h_n[own.ray * n_state + unit]) : 0.f;
  float grad_c = starts ? float(a.c_n[own.ray * n_state + unit]) : 0.f;
  float bias[3] = {};
#pragma unroll 1
  for (int step = longest - 1; step >= 0; --step) {
    float sample[FEW_VALUES];
    samples.take(step, sample);
    const Gates<float> gates{sample[0], sample[1], sample[2]};
    const float tanh_c = fast_tanh<float>(sample[3]), dh = grad_h + sample[4];
    start_sample(step - Samples::AHEAD);
    const bool active = real && step < own.length;
    Gates<float> grad;
    const float dc = activate_bwd_at(gates, tanh_c, dh, grad_c, grad);
    grad_c = active ? dc : grad_c;
    const float of[3] = {active ? grad.i : 0.f, active ? grad.o : 0.f, active ? grad.g : 0.f};
#pragma unroll
    for (int gate = 0; gate < 3; ++gate) {
      bias[gate] += of[gate];
      if (writes) grads[step % 2][own_ray * ROW + gate * H + unit] = of[gate];
    }
    await_block<BLOCK>();
    FewSums<RAYS, 1> before[CHAINS] = {};  // gradient of the state before this step
    add_gates<LANES>(before, weight, grads[step % 2], ROW, l);
    share_out<LANES>(before[0], l);
    T* to = a.gates + gates_at + (Samples::AHEAD + 1) * 3 * n_state;  // so far ahead are samples asked for
    if (active && writes) write_gates(to, n_state, {of[0], of[1], of[2]});
    grad_h = active ? before[0].of[0][0] : grad_h;
  }
  if (starts && writes) a.h0[own.ray * n_state + unit] = T(grad_h), a.c0[own.ray * n_state + unit] = T(grad_c);
  write_bias<RAYS>(a.bias + int64_t(blockIdx.x) * 3 * n_state, bias, n_state, unit, real, l);
}

}  // namespace
}  // namespace nerfkit
