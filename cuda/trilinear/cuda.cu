// SPDX-License-Identifier: Apache-2.0
// Streams: each corner feature is read or written once, 16 bytes an access.

#include "common/gpu.cuh"
#include "trilinear/args.h"

namespace nerfkit {
namespace {

// One thread for V features of one point.
template <class T, int V, class Index>
__global__ void __launch_bounds__(THREADS) forward(const T* __restrict__ feats, const acc_t<T>* __restrict__ points,
                                                   T* __restrict__ out, Index n_points, Index parts) {
  using A = acc_t<T>;
  const Index thread = Index(blockIdx.x) * THREADS + threadIdx.x;
  const Index n = thread / parts;
  if (n >= n_points) return;
  const Index f = parts * V, j = (thread - n * parts) * V;
  A u[3], w[8], sum[V] = {};
  unit_position(points + 3 * n, u);
  corner_weights(u, w);
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    A corner[V];
    load(feats + (8 * n + k) * f + j, corner);
#pragma unroll
    for (int i = 0; i < V; ++i) sum[i] += w[k] * corner[i];
  }
  store(out + n * f + j, sum);
}

// Writes what is not read again soon: it leaves the cache first.
template <class T, int V>
__device__ __forceinline__ void store_passing(T* to, const acc_t<T> (&from)[V]) {
  if constexpr (sizeof(T) * V == 16) {
    Vec<T, V> packed;
#pragma unroll
    for (int i = 0; i < V; ++i) packed.v[i] = static_cast<T>(from[i]);
    __stcs(reinterpret_cast<uint4*>(to), reinterpret_cast<const uint4&>(packed));
  } else {
    store(to, from);
  }
}

// A row of the block's threads for one point. It asks for what later blocks read, which then is not late among the
// writes.
template <class T, int V>
__global__ void __launch_bounds__(THREADS) to_feats(const T* __restrict__ grad_out, const acc_t<T>* __restrict__ points,
                                                    T* __restrict__ grad_feats, int64_t n_points, int f) {
  using A = acc_t<T>;
  constexpr int64_t AHEAD = (2 << 20) / sizeof(T), LINE = 128 / sizeof(T);
  const int64_t n = int64_t(blockIdx.x) * blockDim.y + threadIdx.y;
  if (n >= n_points) return;
  A u[3], w[8];
  unit_position(points + 3 * n, u);
  corner_weights(u, w);
  for (int j = threadIdx.x * V; j < f; j += blockDim.x * V) {
    const int64_t at = n * f + j;
    if (at % LINE == 0 && at + AHEAD < n_points * f)
      asm volatile("prefetch.global.L2 [%0];" ::"l"(grad_out + at + AHEAD));
    A grad[V];
    load(grad_out + at, grad);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      A corner[V];
#pragma unroll
      for (int i = 0; i < V; ++i) corner[i] = w[k] * grad[i];
      store_passing(grad_feats + (8 * n + k) * f + j, corner);
    }
  }
}

// `lanes` threads of one warp for one point.
template <class T, int V, bool TO_FEATS>
__global__ void __launch_bounds__(THREADS)
    to_points(const T* __restrict__ grad_out, const T* __restrict__ feats, const acc_t<T>* __restrict__ points,
              T* __restrict__ grad_feats, acc_t<T>* __restrict__ grad_points, int64_t n_points, int f, int lanes) {
  using A = acc_t<T>;
  const int64_t thread = int64_t(blockIdx.x) * THREADS + threadIdx.x;
  const int lane = int(thread % lanes);
  const int64_t n = thread / lanes;
  const bool real = n < n_points;  // the others stay for the shuffles
  A u[3] = {}, w[8], d[8] = {};
  if (real) unit_position(points + 3 * n, u);
  corner_weights(u, w);
  for (int j = lane * V; real && j < f; j += lanes * V) {
    A grad[V];
    load(grad_out + n * f + j, grad);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const int64_t place = (8 * n + k) * f + j;
      A corner[V];
      load(feats + place, corner);
#pragma unroll
      for (int i = 0; i < V; ++i) d[k] += grad[i] * corner[i];
      if (TO_FEATS) {
#pragma unroll
        for (int i = 0; i < V; ++i) corner[i] = w[k] * grad[i];
        store(grad_feats + place, corner);
      }
    }
  }
  A grad_u[3];
  corner_weights_bwd(u, d, grad_u);
#pragma unroll
  for (int axis = 0; axis < 3; ++axis) {
    const A sum = warp_sum(grad_u[axis], lanes);
    if (real && lane == 0) grad_points[3 * n + axis] = A(0.5) * sum;
  }
}

template <class T, int V>
void forward_of_width(const T* feats, const acc_t<T>* points, T* out, TrilinearSize size, cudaStream_t stream) {
  const int64_t parts = size.n_features / V, work = size.n_points * parts;
  if (8 * work * V < (int64_t(1) << 31))
    forward<T, V, uint32_t><<<blocks_for(work), THREADS, 0, stream>>>(feats, points, out, size.n_points, parts);
  else
    forward<T, V, int64_t><<<blocks_for(work), THREADS, 0, stream>>>(feats, points, out, size.n_points, parts);
}

template <class T, int V>
void backward_of_width(const T* grad_out, const T* feats, const acc_t<T>* points, T* grad_feats, acc_t<T>* grad_points,
                       TrilinearSize size, cudaStream_t stream) {
  const int f = int(size.n_features), most = grad_points ? 32 : THREADS;
  int lanes = 1;
  while (lanes < most && lanes * V < f) lanes *= 2;
  const unsigned blocks = blocks_for(size.n_points * lanes);
  if (!grad_points) {
    to_feats<T, V><<<blocks, dim3(lanes, THREADS / lanes), 0, stream>>>(grad_out, points, grad_feats, size.n_points, f);
    return;
  }
  const auto kernel = grad_feats ? to_points<T, V, true> : to_points<T, V, false>;
  kernel<<<blocks, THREADS, 0, stream>>>(grad_out, feats, points, grad_feats, grad_points, size.n_points, f, lanes);
}

}  // namespace

Status trilinear(DType dtype, const void* feats, const void* points, void* out, TrilinearSize size, Stream stream) {
  if (size.n_points * size.n_features == 0) return 0;
  dispatch(dtype, [&](auto element) {
    using T = decltype(element);
    const bool wide = size.n_features % VECTOR_WIDTH<T> == 0 && aligned(feats, 16) && aligned(out, 16);
    auto launch = wide ? forward_of_width<T, VECTOR_WIDTH<T>> : forward_of_width<T, 1>;
    launch((const T*)feats, (const acc_t<T>*)points, (T*)out, size, (cudaStream_t)stream);
  });
  return launched();
}

Status trilinear_bwd(DType dtype, const void* grad_out, const void* feats, const void* points, void* grad_feats,
                     void* grad_points, TrilinearSize size, Stream stream) {
  if (size.n_points == 0 || !(grad_feats || grad_points)) return 0;
  dispatch(dtype, [&](auto element) {
    using T = decltype(element);
    const bool wide = size.n_features % VECTOR_WIDTH<T> == 0 && aligned(grad_out, 16) && aligned(feats, 16) &&
                      aligned(grad_feats, 16);
    auto launch = wide ? backward_of_width<T, VECTOR_WIDTH<T>> : backward_of_width<T, 1>;
    launch((const T*)grad_out, (const T*)feats, (const acc_t<T>*)points, (T*)grad_feats, (acc_t<T>*)grad_points, size,
           (cudaStream_t)stream);
  });
  return launched();
}

}  // namespace nerfkit
