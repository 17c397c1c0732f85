// SPDX-License-Identifier: Apache-2.0
// The LLTM of at most 64 units (forward, 64 inputs too) along few rays, in plain arithmetic of float32: what counts is how
// long a step takes.
// A unit has 2 or 4 lanes, and a block as many rays, or one where that leaves no processor idle. Each lane has a part of the
// unit's weights in registers and multiplies it for all rays; then the lanes exchange their sums, so that each has those of one
// ray, and is that ray's unit from there on; of a single ray all are, and the first one writes.
// H and I are the sizes, rounded up; what is added is zero and stays zero.

#pragma once

#include "async_copy.cuh"
#include "lltm_wide.cuh"

namespace nerfkit {
namespace {

constexpr int FEW_INPUTS = 8, FEW_SAMPLES = 4;  // buffers of steps that are on their way, forward and backward

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

// Adds the products of a lane's part with every ray's values, `row` apart.
template <int LANES, int RAYS, int GATES, int N>
__device__ __forceinline__ void add_part(float (&sum)[RAYS][GATES], const float (&weight)[GATES][N], const float* values,
                                         int row, int l) {
#pragma unroll
  for (int k = 0; k < N; k += 4)
#pragma unroll
    for (int ray = 0; ray < RAYS; ++ray) {
      const float4 v = *reinterpret_cast<const float4*>(values + ray * row + column_of_part<LANES>(k, l));
#pragma unroll
      for (int gate = 0; gate < GATES; ++gate) {
        const float* w = weight[gate] + k;
        sum[ray][gate] += w[0] * v.x, sum[ray][gate] += w[1] * v.y, sum[ray][gate] += w[2] * v.z, sum[ray][gate] += w[3] * v.w;
      }
    }
}

// Adds up over the lanes of a unit. Lane l has the sums of ray l in sum[0], or of the only one.
template <int LANES, int RAYS, int GATES>
__device__ __forceinline__ void share_out(float (&sum)[RAYS][GATES], int l) {
  static_assert(RAYS == LANES || RAYS == 1);
#pragma unroll
  for (int apart = 1; RAYS == 1 && apart < LANES; apart *= 2)
#pragma unroll
    for (int gate = 0; gate < GATES; ++gate) sum[0][gate] += __shfl_xor_sync(ALL_LANES, sum[0][gate], apart);
#pragma unroll
  for (int half = RAYS / 2; half; half /= 2)
#pragma unroll
    for (int ray = 0; ray < half; ++ray)
#pragma unroll
      for (int gate = 0; gate < GATES; ++gate) {
        float &low = sum[ray][gate], high = sum[ray + half][gate];
        const float given = __shfl_xor_sync(ALL_LANES, l & half ? low : high, half);
        low = (l & half ? high : low) + given;
      }
}

template <int LANES>
__device__ __forceinline__ int longest_of_block(int length) {
#pragma unroll
  for (int apart = 1; apart < LANES; apart *= 2) length = max(length, __shfl_xor_sync(ALL_LANES, length, apart));
  return length;
}

// A thread's values of every step are copied some steps ahead; those of half types, which are too short for such copies, are
// read a step or two before they count, from L2: lines of the input are asked for ahead, and what the forward pass wrote for
// few rays is there.
template <class T>
constexpr bool FEW_COPIES = sizeof(T) == 4;
constexpr int FEW_LINES = 8;  // steps that a line is asked for ahead

template <class T, int H, int I, bool ALONE>
__global__ void __launch_bounds__(few_block(H, I), few_blocks<T>(few_block(H, I), I)) forward_few(const LltmArrays<T> a) {
  constexpr int BLOCK = few_block(H, I), LANES = BLOCK / H, RAYS = ALONE ? 1 : LANES, ROW = few_row(H, LANES);
  constexpr int COPIES = (RAYS * I + BLOCK - 1) / BLOCK;
  __shared__ __align__(16) float states[2][RAYS * ROW], inputs[FEW_INPUTS][RAYS * I];
  const int n_state = a.shape.n_state, n_input = a.shape.n_input;
  const int l = threadIdx.x % LANES, unit = threadIdx.x / LANES, own_ray = l % RAYS;
  const RowOfBlock own = row_at(a.shape, int64_t(blockIdx.x) * RAYS + own_ray);
  const bool real = unit < n_state, starts = real && own.ray >= 0, writes = l < RAYS;
  const int longest = longest_of_block<LANES>(own.length);

  const T* from[COPIES];
  int length_of[COPIES];  // 0 of a column that is not there
#pragma unroll
  for (int i = 0; i < COPIES; ++i) {
    const int place = threadIdx.x + i * BLOCK, column = place % I, ray = place / I % RAYS;
    const int64_t first = __shfl_sync(ALL_LANES, own.first, ray);
    const int length = __shfl_sync(ALL_LANES, own.length, ray);
    from[i] = a.input + first * n_input + column, length_of[i] = column < n_input && place < RAYS * I ? length : 0;
  }
  T read[COPIES];
  auto start_input = [&](int step) {  // one after the other
#pragma unroll
    for (int i = 0; i < COPIES; ++i) {
      const int place = threadIdx.x + i * BLOCK;
      if constexpr (FEW_COPIES<T>) {
        if (place < RAYS * I)
          copy_async_or_zeros<4>(inputs[unsigned(step) % FEW_INPUTS] + place, from[i], step < length_of[i]);
      } else {
        read[i] = step < length_of[i] ? *from[i] : T(0.f);
        if (step + FEW_LINES < length_of[i]) ask_for_line(from[i] + FEW_LINES * n_input);
      }
      from[i] += n_input;
    }
    if constexpr (FEW_COPIES<T>) end_copies();
  };
  auto end_input = [&](int step) {  // of what was started last
#pragma unroll
    for (int i = 0; i < COPIES; ++i) {
      const int place = threadIdx.x + i * BLOCK;
      if (!FEW_COPIES<T> && place < RAYS * I) inputs[unsigned(step) % FEW_INPUTS][place] = float(read[i]);
    }
  };
  constexpr int AHEAD = FEW_COPIES<T> ? FEW_INPUTS - 1 : 2;  // steps
#pragma unroll
  for (int i = 0; i < COPIES; ++i)
    for (int step = AHEAD; !FEW_COPIES<T> && step < min(FEW_LINES, length_of[i]); ++step)
      ask_for_line(from[i] + step * n_input);
#pragma unroll 1
  for (int step = 0; step < AHEAD; ++step) start_input(step), end_input(step);

  float of_h[3][H / LANES], of_x[3][I / LANES], bias[3];
#pragma unroll
  for (int gate = 0; gate < 3; ++gate) {
    const T* row = a.weight + int64_t(gate * n_state + unit) * (n_state + n_input);
#pragma unroll
    for (int k = 0; k < H / LANES; ++k) {
      const int column = column_of_part<LANES>(k, l);
      of_h[gate][k] = real && column < n_state ? float(row[column]) : 0.f;
    }
#pragma unroll
    for (int k = 0; k < I / LANES; ++k) {
      const int column = column_of_part<LANES>(k, l);
      of_x[gate][k] = real && column < n_input ? float(row[n_state + column]) : 0.f;
    }
    bias[gate] = real ? float(a.bias[gate * n_state + unit]) : 0.f;
  }
  float h = starts ? float(a.h0[own.ray * n_state + unit]) : 0.f, c = starts ? float(a.c0[own.ray * n_state + unit]) : 0.f;
  if (writes) states[0][own_ray * ROW + unit] = h;

  float ahead[RAYS][3];  // the next step's gates, as far as the input goes
  auto add_input = [&](int step) {
#pragma unroll
    for (int ray = 0; ray < RAYS; ++ray)
#pragma unroll
      for (int gate = 0; gate < 3; ++gate) ahead[ray][gate] = 0.f;
    add_part<LANES>(ahead, of_x, inputs[unsigned(step) % FEW_INPUTS], I, l);
  };
  if constexpr (FEW_COPIES<T>) await_copies<FEW_INPUTS - 2>();
  await_block<BLOCK>();
  add_input(0);
  int64_t at = own.first * n_state + unit, gates_at = 3 * own.first * n_state + unit;  // of the step's sample
#pragma unroll 1
  for (int step = 0; step < longest; ++step) {
    if constexpr (FEW_COPIES<T>) await_copies<FEW_INPUTS - 3>();  // of the next step
    await_block<BLOCK>();  // the state is there, and nothing is read any more of what is written below
    if constexpr (!FEW_COPIES<T>) start_input(step + AHEAD);
    float sum[RAYS][3];
#pragma unroll
    for (int ray = 0; ray < RAYS; ++ray)
#pragma unroll
      for (int gate = 0; gate < 3; ++gate) sum[ray][gate] = ahead[ray][gate];
    add_part<LANES>(sum, of_h, states[step % 2], ROW, l);
    if constexpr (FEW_COPIES<T>) start_input(step + AHEAD);
    add_input(step + 1);
    share_out<LANES>(sum, l);
    const Gates<float> gates = fast_activate<float>(sum[0][0] + bias[0], sum[0][1] + bias[1], sum[0][2] + bias[2]);
    const bool active = real && step < own.length;
    const float before = h;
    c += active ? gates.g * gates.i : 0.f;
    h = active ? fast_tanh<float>(c) * gates.o : h;
    if (writes) states[(step + 1) % 2][own_ray * ROW + unit] = h;
    if (active && writes) a.h[at] = T(h);
    if (active && writes && a.activated) {
      a.c[at] = T(c), a.before[at] = T(before);
      T* act = a.activated + gates_at;
      act[0] = T(gates.i), act[n_state] = T(gates.o), act[2 * n_state] = T(gates.g);
    }
    at += n_state, gates_at += 3 * n_state;
    end_input(step + AHEAD);
  }
  if (starts && writes) a.h_n[own.ray * n_state + unit] = T(h), a.c_n[own.ray * n_state + unit] = T(c);
}

template <class T, int H, bool ALONE>
__global__ void __launch_bounds__(few_block(H, 0), few_blocks<T>(few_block(H, 0), 0)) backward_few(const LltmGradients<T> a) {
  constexpr int BLOCK = few_block(H, 0), LANES = BLOCK / H, RAYS = ALONE ? 1 : LANES, ROW = few_row(3 * H, LANES);
  constexpr int CHAINS = RAYS == 4 ? 1 : 3;  // of sums: more than rays where these are too few to add at full speed
  __shared__ __align__(16) float grads[2][RAYS * ROW];                                      // of the gates
  __shared__ float samples[FEW_COPIES<T> ? FEW_SAMPLES : 1][5][FEW_COPIES<T> ? BLOCK : 1];  // a thread's own
  const int n_state = a.shape.n_state, columns = n_state + a.shape.n_input;
  const int l = threadIdx.x % LANES, unit = threadIdx.x / LANES, own_ray = l % RAYS;
  const RowOfBlock own = row_at(a.shape, int64_t(blockIdx.x) * RAYS + own_ray);
  const bool real = unit < n_state, starts = real && own.ray >= 0, writes = l < RAYS;
  const int longest = longest_of_block<LANES>(own.length);

  const int64_t last = own.first + longest - 1;
  int64_t at = last * n_state + unit, gates_at = 3 * last * n_state + unit;  // of the sample that is asked for
  T read[5];
  auto start_sample = [&](int step) {  // one after the other
    const bool active = real && step >= 0 && step < own.length;
    const T *act = a.activated + gates_at, *from[5] = {act, act + n_state, act + 2 * n_state, a.c + at, a.h + at};
    at -= n_state, gates_at -= 3 * n_state;
#pragma unroll
    for (int i = 0; i < 5; ++i)
      if constexpr (FEW_COPIES<T>) {
        copy_async_or_zeros<4>(&samples[unsigned(step) % FEW_SAMPLES][i][threadIdx.x], from[i], active);
      } else {
        read[i] = active ? *from[i] : T(0.f);
      }
    if constexpr (FEW_COPIES<T>) end_copies();
  };
  constexpr int AHEAD = FEW_COPIES<T> ? FEW_SAMPLES - 1 : 1;  // steps
#pragma unroll 1
  for (int i = 1; i <= AHEAD; ++i) start_sample(longest - i);

  float weight[3][1][H / LANES];  // from the gates to this unit
#pragma unroll
  for (int gate = 0; gate < 3; ++gate)
#pragma unroll
    for (int k = 0; k < H / LANES; ++k) {
      const int of = column_of_part<LANES>(k, l);
      weight[gate][0][k] = real && of < n_state ? float(a.weight[int64_t(gate * n_state + of) * columns + unit]) : 0.f;
    }
  float grad_h = starts ? float(a.h_n[own.ray * n_state + unit]) : 0.f;
  float grad_c = starts ? float(a.c_n[own.ray * n_state + unit]) : 0.f;
  float bias[3] = {};
#pragma unroll 1
  for (int step = longest - 1; step >= 0; --step) {
    float sample[5];
    if constexpr (FEW_COPIES<T>) await_copies<FEW_SAMPLES - 2>();
#pragma unroll
    for (int i = 0; i < 5; ++i)
      if constexpr (FEW_COPIES<T>)
        sample[i] = samples[unsigned(step) % FEW_SAMPLES][i][threadIdx.x];
      else
        sample[i] = float(read[i]);
    const Gates<float> gates{sample[0], sample[1], sample[2]};
    const float tanh_c = fast_tanh<float>(sample[3]), dh = grad_h + sample[4];
    start_sample(step - AHEAD);
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
    float before[CHAINS][RAYS][1] = {};  // gradient of the state before this step
#pragma unroll
    for (int gate = 0; gate < 3; ++gate) add_part<LANES>(before[gate % CHAINS], weight[gate], grads[step % 2] + gate * H, ROW, l);
#pragma unroll
    for (int i = 1; i < CHAINS; ++i)
#pragma unroll
      for (int ray = 0; ray < RAYS; ++ray) before[0][ray][0] += before[i][ray][0];
    share_out<LANES>(before[0], l);
    T* to = a.gates + gates_at + (AHEAD + 1) * 3 * n_state;  // so far ahead are samples asked for
    if (active && writes) to[0] = T(of[0]), to[n_state] = T(of[1]), to[2 * n_state] = T(of[2]);
    grad_h = active ? before[0][0][0] : grad_h;
  }
  if (starts && writes) a.h0[own.ray * n_state + unit] = T(grad_h), a.c0[own.ray * n_state + unit] = T(grad_c);
  float* bias_row = a.bias + int64_t(blockIdx.x) * 3 * n_state;
#pragma unroll
  for (int gate = 0; gate < 3; ++gate) {
    const float sum = sum_lanes(bias[gate], RAYS);
    if (l == 0 && real) bias_row[gate * n_state + unit] = sum;
  }
}

}  // namespace
}  // namespace nerfkit
