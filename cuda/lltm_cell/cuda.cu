// SPDX-License-Identifier: Apache-2.0

#include "common/gpu.cuh"
#include "lltm_cell/args.h"

namespace nerfkit {
namespace {

template <class T>
__global__ void __launch_bounds__(THREADS)
    forward(const T* __restrict__ gates, const T* __restrict__ c, T* __restrict__ h, T* __restrict__ c_new,
            T* __restrict__ activated, int64_t n, int n_state) {
  using A = acc_t<T>;
  const int64_t place = int64_t(blockIdx.x) * THREADS + threadIdx.x;
  if (place >= n) return;
  const int64_t i = place / n_state * 3 * n_state + place % n_state, o = i + n_state, g = o + n_state;
  const Gates<A> gate = activate(A(gates[i]), A(gates[o]), A(gates[g]));
  const A value = A(c[place]) + gate.g * gate.i;
  activated[i] = T(gate.i), activated[o] = T(gate.o), activated[g] = T(gate.g);
  c_new[place] = T(value);
  h[place] = T(hyperbolic_tangent(value) * gate.o);
}

template <class T>
__global__ void __launch_bounds__(THREADS)
    backward(const T* __restrict__ grad_h, const T* __restrict__ grad_c_new, const T* __restrict__ activated,
             const T* __restrict__ c_new, T* __restrict__ grad_gates, T* __restrict__ grad_c, int64_t n, int n_state) {
  using A = acc_t<T>;
  const int64_t place = int64_t(blockIdx.x) * THREADS + threadIdx.x;
  if (place >= n) return;
  const int64_t i = place / n_state * 3 * n_state + place % n_state, o = i + n_state, g = o + n_state;
  const Gates<A> gate{A(activated[i]), A(activated[o]), A(activated[g])};
  Gates<A> grad;
  grad_c[place] = T(activate_bwd(gate, A(c_new[place]), A(grad_h[place]), A(grad_c_new[place]), grad));
  grad_gates[i] = T(grad.i), grad_gates[o] = T(grad.o), grad_gates[g] = T(grad.g);
}

// ---- a small batch: launches take longer than the work, so one kernel does it all ----

constexpr int BATCH = 8;             // rows that a warp multiplies together
constexpr int SMALL_THREADS = 1024;  // of the backward kernel

// A warp a unit of BATCH rows: the lanes share the depth of the product.
template <class T>
__global__ void __launch_bounds__(THREADS)
    small_forward(const T* __restrict__ input, const T* __restrict__ h, const T* __restrict__ c,
                  const T* __restrict__ weight, const T* __restrict__ bias, T* __restrict__ h_new,
                  T* __restrict__ c_new, T* __restrict__ activated, SmallCellSize size) {
  using A = acc_t<T>;
  const int H = size.state, I = size.input, warp = (blockIdx.x * THREADS + threadIdx.x) / 32, lane = threadIdx.x % 32;
  const int j = warp % H, first = warp / H * BATCH;
  if (first >= size.batch) return;
  A sum[3][BATCH] = {};
  for (int k = lane; k < H + I; k += 32) {
    A w[3], x[BATCH];
#pragma unroll
    for (int gate = 0; gate < 3; ++gate) w[gate] = A(weight[(gate * H + j) * (H + I) + k]);
#pragma unroll
    for (int i = 0; i < BATCH; ++i) {
      const int b = min(first + i, size.batch - 1);
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
  if (lane >= BATCH || b >= size.batch) return;
  const Gates<A> gate = activate(mine[0], mine[1], mine[2]);
  const A value = A(c[b * H + j]) + gate.g * gate.i;
  T* to = activated + 3 * b * H + j;
  to[0] = T(gate.i), to[H] = T(gate.o), to[2 * H] = T(gate.g);
  c_new[b * H + j] = T(value);
  h_new[b * H + j] = T(hyperbolic_tangent(value) * gate.o);
}

template <class T>
struct SmallGradients {
  const T *grad_h_new, *grad_c_new, *input, *h, *weight, *activated, *c_new;
  T *grad_input, *grad_h, *grad_c, *grad_weight, *grad_bias;
  SmallCellSize size;
};

// Gradients of the gates of row b, unit j; gives that of c back.
template <class T>
__device__ __forceinline__ acc_t<T> gate_gradients(const SmallGradients<T>& a, int b, int j, Gates<acc_t<T>>& grad) {
  using A = acc_t<T>;
  const int H = a.size.state;
  const T* act = a.activated + 3 * b * H + j;
  const Gates<A> gate{A(act[0]), A(act[H]), A(act[2 * H])};
  return activate_bwd(gate, A(a.c_new[b * H + j]), A(a.grad_h_new[b * H + j]), A(a.grad_c_new[b * H + j]), grad);
}

// The first blocks take a row each, for the gradients of h and input; the others, for the parameters', a warp a unit
// and 32 of its weights in each gate.
template <class T>
__global__ void __launch_bounds__(SMALL_THREADS) small_backward(const SmallGradients<T> a) {
  using A = acc_t<T>;
  extern __shared__ __align__(16) unsigned char shared[];
  const int H = a.size.state, I = a.size.input, K = H + I;
  if (int(blockIdx.x) < a.size.batch) {
    A *grads = reinterpret_cast<A*>(shared), *parts = grads + 3 * H;  // [3H], [SMALL_THREADS]
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
      parts[threadIdx.x] = sum;
      __syncthreads();
      if (group == 0) {
        for (int i = 1; i < groups; ++i) sum += parts[i * width + threadIdx.x];
        if (k < H)
          a.grad_h[b * H + k] = T(sum);
        else
          a.grad_input[b * I + k - H] = T(sum);
      }
      __syncthreads();
    }
    return;
  }
  const int warp = ((blockIdx.x - a.size.batch) * SMALL_THREADS + threadIdx.x) / 32, lane = threadIdx.x % 32;
  const int j = warp % H, k = warp / H * 32 + lane;
  if (k - lane >= K) return;
  A sum[3] = {}, bias[3] = {};
  for (int base = 0; base < a.size.batch; base += 32) {
    Gates<A> grad{};
    if (base + lane < a.size.batch) gate_gradients(a, base + lane, j, grad);
    bias[0] += grad.i, bias[1] += grad.o, bias[2] += grad.g;
    for (int i = 0; i < min(32, a.size.batch - base); ++i) {
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

Status lltm_cell_small(DType dtype, const void* input, const void* h, const void* c, const void* weight,
                       const void* bias, void* h_new, void* c_new, void* activated, SmallCellSize size, Stream stream) {
  if (size.batch == 0 || size.state == 0) return 0;
  dispatch(dtype, [&](auto element) {
    using T = decltype(element);
    const int64_t warps = int64_t(size.state) * blocks_for(size.batch, BATCH);
    small_forward<<<blocks_for(warps * 32), THREADS, 0, (cudaStream_t)stream>>>(
        (const T*)input, (const T*)h, (const T*)c, (const T*)weight, (const T*)bias, (T*)h_new, (T*)c_new,
        (T*)activated, size);
  });
  return launched();
}

Status lltm_cell_small_bwd(DType dtype, const void* grad_h_new, const void* grad_c_new, const void* input,
                           const void* h, const void* weight, const void* activated, const void* c_new,
                           void* grad_input, void* grad_h, void* grad_c, void* grad_weight, void* grad_bias,
                           SmallCellSize size, Stream stream) {
  if (size.batch == 0 || size.state == 0) return 0;
  dispatch(dtype, [&](auto element) {
    using T = decltype(element);
    const SmallGradients<T> a{(const T*)grad_h_new,
                              (const T*)grad_c_new,
                              (const T*)input,
                              (const T*)h,
                              (const T*)weight,
                              (const T*)activated,
                              (const T*)c_new,
                              (T*)grad_input,
                              (T*)grad_h,
                              (T*)grad_c,
                              (T*)grad_weight,
                              (T*)grad_bias,
                              size};
    const int64_t warps =
        int64_t(size.state) * blocks_for(size.state + size.input, 32);  // of the parameters' gradients
    const unsigned blocks = size.batch + blocks_for(warps * 32, SMALL_THREADS);
    const size_t shared = (3 * size.state + SMALL_THREADS) * sizeof(acc_t<T>);
    small_backward<<<blocks, SMALL_THREADS, shared, (cudaStream_t)stream>>>(a);
  });
  return launched();
}

Status lltm_cell(DType dtype, const void* gates, const void* c, void* h, void* c_new, void* activated, CellSize size,
                 Stream stream) {
  const int64_t n = size.batch * size.state;
  if (n == 0) return 0;
  dispatch(dtype, [&](auto element) {
    using T = decltype(element);
    forward<<<blocks_for(n), THREADS, 0, (cudaStream_t)stream>>>((const T*)gates, (const T*)c, (T*)h, (T*)c_new,
                                                                 (T*)activated, n, int(size.state));
  });
  return launched();
}

Status lltm_cell_bwd(DType dtype, const void* grad_h, const void* grad_c_new, const void* activated, const void* c_new,
                     void* grad_gates, void* grad_c, CellSize size, Stream stream) {
  const int64_t n = size.batch * size.state;
  if (n == 0) return 0;
  dispatch(dtype, [&](auto element) {
    using T = decltype(element);
    backward<<<blocks_for(n), THREADS, 0, (cudaStream_t)stream>>>((const T*)grad_h, (const T*)grad_c_new,
                                                                  (const T*)activated, (const T*)c_new, (T*)grad_gates,
                                                                  (T*)grad_c, n, int(size.state));
  });
  return launched();
}

}  // namespace nerfkit
