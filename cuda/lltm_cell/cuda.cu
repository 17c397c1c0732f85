// SPDX-License-Identifier: Apache-2.0

#include "common/gpu.cuh"
#include "lltm_cell/args.h"

namespace nerfkit {
namespace {

template <class T>
__global__ void __launch_bounds__(THREADS) lltm_cell_forward(const T* __restrict__ gates,  // [B, 3H], before activation
                                                             const T* __restrict__ c,      // [B, H]
                                                             T* __restrict__ h,            // [B, H]
                                                             T* __restrict__ c_new,        // [B, H]
                                                             T* __restrict__ activated,    // [B, 3H]
                                                             int64_t n, int n_state) {     // n = B H
  using A = acc_t<T>;
  const int64_t at = int64_t(blockIdx.x) * THREADS + threadIdx.x;
  if (at >= n) return;
  const int64_t i = at / n_state * 3 * n_state + at % n_state, o = i + n_state, g = o + n_state;
  const Gates<A> gate = activate(A(gates[i]), A(gates[o]), A(gates[g]));
  const A value = A(c[at]) + gate.g * gate.i;
  activated[i] = T(gate.i), activated[o] = T(gate.o), activated[g] = T(gate.g);
  c_new[at] = T(value);
  h[at] = T(hyperbolic_tangent(value) * gate.o);
}

template <class T>
__global__ void __launch_bounds__(THREADS) lltm_cell_backward(const T* __restrict__ grad_h,      // [B, H]
                                                              const T* __restrict__ grad_c_new,  // [B, H]
                                                              const T* __restrict__ activated,   // [B, 3H]
                                                              const T* __restrict__ c_new,       // [B, H]
                                                              T* __restrict__ grad_gates,  // [B, 3H], before activation
                                                              T* __restrict__ grad_c,      // [B, H]
                                                              int64_t n, int n_state) {    // n = B H
  using A = acc_t<T>;
  const int64_t at = int64_t(blockIdx.x) * THREADS + threadIdx.x;
  if (at >= n) return;
  const int64_t i = at / n_state * 3 * n_state + at % n_state, o = i + n_state, g = o + n_state;
  const Gates<A> gate{A(activated[i]), A(activated[o]), A(activated[g])};
  Gates<A> grad;
  grad_c[at] = T(activate_bwd(gate, A(c_new[at]), A(grad_h[at]), A(grad_c_new[at]), grad));
  grad_gates[i] = T(grad.i), grad_gates[o] = T(grad.o), grad_gates[g] = T(grad.g);
}

// ---- a small batch: launches take longer than the work, so one kernel does it all ----

constexpr int BATCH = 8;             // rows that a warp multiplies together
constexpr int SMALL_THREADS = 1024;  // of the backward kernel

// One warp per unit and BATCH rows; its lanes share the depth of the product.
template <class T>
__global__ void __launch_bounds__(THREADS) lltm_cell_small_forward(const T* __restrict__ input,   // [B, I]
                                                                   const T* __restrict__ h,       // [B, H]
                                                                   const T* __restrict__ c,       // [B, H]
                                                                   const T* __restrict__ weight,  // [3H, H + I]
                                                                   const T* __restrict__ bias,    // [3H]
                                                                   T* __restrict__ h_new,         // [B, H]
                                                                   T* __restrict__ c_new,         // [B, H]
                                                                   T* __restrict__ activated,     // [B, 3H]
                                                                   int batch, int H, int I) {
  using A = acc_t<T>;
  const int warp = (blockIdx.x * THREADS + threadIdx.x) / 32, lane = threadIdx.x % 32;
  const int j = warp % H, first = warp / H * BATCH;
  if (first >= batch) return;
  A sum[3][BATCH] = {};
  for (int k = lane; k < H + I; k += 32) {
    A w[3], x[BATCH];
#pragma unroll
    for (int gate = 0; gate < 3; ++gate) w[gate] = A(weight[(gate * H + j) * (H + I) + k]);
#pragma unroll
    for (int i = 0; i < BATCH; ++i) {
      const int b = min(first + i, batch - 1);
      x[i] = A(k < H ? h[b * H + k] : input[b * I + k - H]);
    }
#pragma unroll
    for (int i = 0; i < BATCH; ++i)
#pragma unroll
      for (int gate = 0; gate < 3; ++gate) sum[gate][i] += w[gate] * x[i];
  }
  A mine[3] = {};
#pragma unroll
  for (int i = 0; i < BATCH; ++i)
#pragma unroll
    for (int gate = 0; gate < 3; ++gate) {
      const A total = warp_sum(sum[gate][i], 32);
      if (lane == i) mine[gate] = total + A(bias[gate * H + j]);
    }
  const int b = first + lane;
  if (lane >= BATCH || b >= batch) return;
  const Gates<A> gate = activate(mine[0], mine[1], mine[2]);
  const A value = A(c[b * H + j]) + gate.g * gate.i;
  T* to = activated + 3 * b * H + j;
  to[0] = T(gate.i), to[H] = T(gate.o), to[2 * H] = T(gate.g);
  c_new[b * H + j] = T(value);
  h_new[b * H + j] = T(hyperbolic_tangent(value) * gate.o);
}

// Gradients of the gates of row b, unit j; gives that of c back.
template <class T>
__device__ __forceinline__ acc_t<T> gate_gradients(const CellSmallBackward<T>& a, int b, int j, Gates<acc_t<T>>& grad) {
  using A = acc_t<T>;
  const int H = a.n_state;
  const T* act = a.activated + 3 * b * H + j;
  const Gates<A> gate{A(act[0]), A(act[H]), A(act[2 * H])};
  return activate_bwd(gate, A(a.c_new[b * H + j]), A(a.grad_h_new[b * H + j]), A(a.grad_c_new[b * H + j]), grad);
}

// The first B blocks take a row each, for the gradients of h and input. The others take the parameters': one warp per
// unit and 32 of its weights in each gate.
template <class T>
__global__ void __launch_bounds__(SMALL_THREADS) lltm_cell_small_backward(const CellSmallBackward<T> a) {
  using A = acc_t<T>;
  extern __shared__ __align__(16) unsigned char shared[];
  const int H = a.n_state, I = a.n_input, K = H + I;
  if (int(blockIdx.x) < a.batch) {
    A *grads = reinterpret_cast<A*>(shared), *partials = grads + 3 * H;  // [3H], [SMALL_THREADS]
    const int b = blockIdx.x, groups = max(1, SMALL_THREADS / K);
    for (int j = threadIdx.x; j < H; j += SMALL_THREADS) {
      Gates<A> grad;
      a.grad_c[b * H + j] = T(gate_gradients(a, b, j, grad));
      grads[j] = grad.i, grads[H + j] = grad.o, grads[2 * H + j] = grad.g;
    }
    __syncthreads();
    for (int first = 0; first < K; first += SMALL_THREADS) {
      const int width = min(K - first, SMALL_THREADS), group = threadIdx.x / width, k = first + threadIdx.x % width;
      A sum = 0;
      if (group < groups) {
#pragma unroll 8
        for (int row = group; row < 3 * H; row += groups) sum += grads[row] * A(a.weight[int64_t(row) * K + k]);
      }
      partials[threadIdx.x] = sum;
      __syncthreads();
      if (group == 0) {
        for (int i = 1; i < groups; ++i) sum += partials[i * width + threadIdx.x];
        if (k < H)
          a.grad_h[b * H + k] = T(sum);
        else
          a.grad_input[b * I + k - H] = T(sum);
      }
      __syncthreads();
    }
    return;
  }
  const int warp = ((blockIdx.x - a.batch) * SMALL_THREADS + threadIdx.x) / 32, lane = threadIdx.x % 32;
  const int j = warp % H, k = warp / H * 32 + lane;
  if (k - lane >= K) return;
  A sum[3] = {}, bias[3] = {};
  for (int base = 0; base < a.batch; base += 32) {
    Gates<A> grad{};
    if (base + lane < a.batch) gate_gradients(a, base + lane, j, grad);
    bias[0] += grad.i, bias[1] += grad.o, bias[2] += grad.g;
    for (int i = 0; i < min(32, a.batch - base); ++i) {
      const int b = base + i;
      const A x = k < H ? A(a.h[b * H + k]) : k < K ? A(a.input[b * I + k - H]) : A(0);
      sum[0] += __shfl_sync(FULL_MASK, grad.i, i) * x;
      sum[1] += __shfl_sync(FULL_MASK, grad.o, i) * x;
      sum[2] += __shfl_sync(FULL_MASK, grad.g, i) * x;
    }
  }
  for (int gate = 0; gate < 3; ++gate) {
    if (k < K) a.grad_weight[int64_t(gate * H + j) * K + k] = T(sum[gate]);
    const A total = warp_sum(bias[gate], 32);
    if (k == 0) a.grad_bias[gate * H + j] = T(total);
  }
}

}  // namespace

Status lltm_cell_small(DType dtype, const CellSmallForward<void>& arguments, Stream stream) {
  const int batch = arguments.batch, n_state = arguments.n_state;
  if (batch == 0 || n_state == 0) return 0;
  dispatch(dtype, [&](auto element) {
    const auto a = arguments.as<decltype(element)>();
    const int64_t warps = int64_t(n_state) * blocks_for(batch, BATCH);
    lltm_cell_small_forward<<<blocks_for(warps * 32), THREADS, 0, (cudaStream_t)stream>>>(
        a.input, a.h, a.c, a.weight, a.bias, a.h_new, a.c_new, a.activated, batch, n_state, a.n_input);
  });
  return launched();
}

Status lltm_cell_small_bwd(DType dtype, const CellSmallBackward<void>& arguments, Stream stream) {
  const int batch = arguments.batch, n_state = arguments.n_state;
  if (batch == 0 || n_state == 0) return 0;
  dispatch(dtype, [&](auto element) {
    using T = decltype(element);
    const int64_t warps =
        int64_t(n_state) * blocks_for(n_state + arguments.n_input, 32);  // of the parameters' gradients
    const unsigned blocks = batch + blocks_for(warps * 32, SMALL_THREADS);
    const size_t shared = (3 * n_state + SMALL_THREADS) * sizeof(acc_t<T>);
    lltm_cell_small_backward<<<blocks, SMALL_THREADS, shared, (cudaStream_t)stream>>>(arguments.as<T>());
  });
  return launched();
}

Status lltm_cell(DType dtype, const CellForward<void>& arguments, Stream stream) {
  const int64_t n = arguments.batch * arguments.n_state;
  if (n == 0) return 0;
  dispatch(dtype, [&](auto element) {
    const auto a = arguments.as<decltype(element)>();
    lltm_cell_forward<<<blocks_for(n), THREADS, 0, (cudaStream_t)stream>>>(a.gates, a.c, a.h_new, a.c_new, a.activated,
                                                                           n, int(a.n_state));
  });
  return launched();
}

Status lltm_cell_bwd(DType dtype, const CellBackward<void>& arguments, Stream stream) {
  const int64_t n = arguments.batch * arguments.n_state;
  if (n == 0) return 0;
  dispatch(dtype, [&](auto element) {
    const auto a = arguments.as<decltype(element)>();
    lltm_cell_backward<<<blocks_for(n), THREADS, 0, (cudaStream_t)stream>>>(
        a.grad_h_new, a.grad_c_new, a.activated, a.c_new, a.grad_gates, a.grad_c, n, int(a.n_state));
  });
  return launched();
}

}  // namespace nerfkit
