// SPDX-License-Identifier: Apache-2.0
// Memory bound: each corner feature is read or written once, with accesses of 16 bytes where the features allow it.

#include "common/gpu.cuh"
#include "trilinear/args.h"

namespace nerfkit {
namespace {

// The threads of a block are [points, lanes]: a lane takes V features of a point at a time.
template <class T, int V>
__global__ void __launch_bounds__(THREADS) trilinear_forward(const T* __restrict__ feats,          // [N, 8, F]
                                                             const acc_t<T>* __restrict__ points,  // [N, 3]
                                                             T* __restrict__ out,                  // [N, F]
                                                             int64_t n_points, int64_t f) {
  using A = acc_t<T>;
  const int64_t n = int64_t(blockIdx.x) * blockDim.y + threadIdx.y;
  if (n >= n_points) return;
  A u[3], w[8];
  unit_position(points + 3 * n, u);
  corner_weights(u, w);
  for (int64_t j = threadIdx.x * V; j < f; j += blockDim.x * V) {
    A sum[V] = {};
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      A corner[V];
      load(feats + (8 * n + k) * f + j, corner);
#pragma unroll
      for (int i = 0; i < V; ++i) sum[i] += w[k] * corner[i];
    }
    store(out + n * f + j, sum);
  }
}

// The same threads.
template <class T, int V>
__global__ void __launch_bounds__(THREADS) trilinear_grad_feats(const T* __restrict__ grad_out,       // [N, F]
                                                                const acc_t<T>* __restrict__ points,  // [N, 3]
                                                                T* __restrict__ grad_feats,           // [N, 8, F]
                                                                int64_t n_points, int f) {
  using A = acc_t<T>;
  const int64_t n = int64_t(blockIdx.x) * blockDim.y + threadIdx.y;
  if (n >= n_points) return;
  A u[3], w[8];
  unit_position(points + 3 * n, u);
  corner_weights(u, w);
  for (int j = threadIdx.x * V; j < f; j += blockDim.x * V) {
    A grad[V];
    load(grad_out + n * f + j, grad);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      A corner[V];
#pragma unroll
      for (int i = 0; i < V; ++i) corner[i] = w[k] * grad[i];
      store(grad_feats + (8 * n + k) * f + j, corner);
    }
  }
}

// `lanes` threads of one warp for one point, which sum over the features. TO_FEATS: also grad_feats, from the same
// grad_out.
template <class T, int V, bool TO_FEATS>
__global__ void __launch_bounds__(THREADS) trilinear_grad_points(const T* __restrict__ grad_out,       // [N, F]
                                                                 const T* __restrict__ feats,          // [N, 8, F]
                                                                 const acc_t<T>* __restrict__ points,  // [N, 3]
                                                                 T* __restrict__ grad_feats,  // [N, 8, F], if TO_FEATS
                                                                 acc_t<T>* __restrict__ grad_points,  // [N, 3]
                                                                 int64_t n_points, int f, int lanes) {
  using A = acc_t<T>;
  const int64_t thread = int64_t(blockIdx.x) * THREADS + threadIdx.x;
  const int lane = int(thread % lanes);
  const int64_t n = thread / lanes;
  const bool real = n < n_points;  // the other lanes take part in the shuffles
  A u[3] = {}, w[8], d[8] = {};    // d: gradients of the weights
  if (real) unit_position(points + 3 * n, u);
  corner_weights(u, w);
  for (int j = lane * V; real && j < f; j += lanes * V) {
    A grad[V];
    load(grad_out + n * f + j, grad);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const int64_t offset = (8 * n + k) * f + j;
      A corner[V];
      load(feats + offset, corner);
#pragma unroll
      for (int i = 0; i < V; ++i) d[k] += grad[i] * corner[i];
      if (TO_FEATS) {
#pragma unroll
        for (int i = 0; i < V; ++i) corner[i] = w[k] * grad[i];
        store(grad_feats + offset, corner);
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

// Threads of one point: a power of two that covers F features with V each, at most `max_lanes`.
int lanes_of_point(int64_t f, int v, int max_lanes) {
  int lanes = 1;
  while (lanes < max_lanes && lanes * v < f) lanes *= 2;
  return lanes;
}

template <class T, int V>
void launch_forward(const T* feats, const acc_t<T>* points, T* out, TrilinearSize size, cudaStream_t stream) {
  const int lanes = lanes_of_point(size.n_features, V, THREADS);
  trilinear_forward<T, V><<<blocks_for(size.n_points * lanes), dim3(lanes, THREADS / lanes), 0, stream>>>(
      feats, points, out, size.n_points, size.n_features);
}

template <class T, int V>
void launch_backward(const T* grad_out, const T* feats, const acc_t<T>* points, T* grad_feats, acc_t<T>* grad_points,
                     TrilinearSize size, cudaStream_t stream) {
  const int f = int(size.n_features);
  if (!grad_points) {
    const int lanes = lanes_of_point(f, V, THREADS);
    trilinear_grad_feats<T, V><<<blocks_for(size.n_points * lanes), dim3(lanes, THREADS / lanes), 0, stream>>>(
        grad_out, points, grad_feats, size.n_points, f);
    return;
  }
  const int lanes = lanes_of_point(f, V, 32);  // of one warp, which sums over the features
  const auto kernel = grad_feats ? trilinear_grad_points<T, V, true> : trilinear_grad_points<T, V, false>;
  kernel<<<blocks_for(size.n_points * lanes), THREADS, 0, stream>>>(grad_out, feats, points, grad_feats, grad_points,
                                                                    size.n_points, f, lanes);
}

}  // namespace

Status trilinear(DType dtype, const void* feats, const void* points, void* out, TrilinearSize size, Stream stream) {
  if (size.n_points * size.n_features == 0) return 0;
  dispatch(dtype, [&](auto element) {
    using T = decltype(element);
    const bool vectors = size.n_features % VECTOR_WIDTH<T> == 0 && aligned(feats, 16) && aligned(out, 16);
    auto launch = vectors ? launch_forward<T, VECTOR_WIDTH<T>> : launch_forward<T, 1>;
    launch((const T*)feats, (const acc_t<T>*)points, (T*)out, size, (cudaStream_t)stream);
  });
  return launched();
}

Status trilinear_bwd(DType dtype, const void* grad_out, const void* feats, const void* points, void* grad_feats,
                     void* grad_points, TrilinearSize size, Stream stream) {
  if (size.n_points == 0 || !(grad_feats || grad_points)) return 0;
  dispatch(dtype, [&](auto element) {
    using T = decltype(element);
    const bool vectors = size.n_features % VECTOR_WIDTH<T> == 0 && aligned(grad_out, 16) && aligned(feats, 16) &&
                         aligned(grad_feats, 16);
    auto launch = vectors ? launch_backward<T, VECTOR_WIDTH<T>> : launch_backward<T, 1>;
    launch((const T*)grad_out, (const T*)feats, (const acc_t<T>*)points, (T*)grad_feats, (acc_t<T>*)grad_points, size,
           (cudaStream_t)stream);
  });
  return launched();
}

}  // namespace nerfkit
