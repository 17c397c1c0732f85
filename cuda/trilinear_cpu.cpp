// SPDX-License-Identifier: Apache-2.0

#include "cpu.h"
#include "trilinear.h"

namespace nerfkit {
namespace {

constexpr int64_t GRAIN = 256;  // points that are worth a thread

template <class T>
CLONES void forward(const T* feats, const acc_t<T>* points, T* out, int64_t f, int64_t begin, int64_t end) {
  using A = acc_t<T>;
  for (int64_t n = begin; n < end; ++n) {
    A u[3], w[8];
    unit_position(points + 3 * n, u);
    corner_weights(u, w);
    const T* corner = feats + 8 * n * f;
    for (int64_t j = 0; j < f; ++j) {
      A sum = 0;
      for (int k = 0; k < 8; ++k) sum += w[k] * A(corner[k * f + j]);
      out[n * f + j] = T(sum);
    }
  }
}

template <class T>
CLONES void backward(const T* grad_out, const T* feats, const acc_t<T>* points, T* grad_feats, acc_t<T>* grad_points,
                     int64_t f, int64_t begin, int64_t end) {
  using A = acc_t<T>;
  for (int64_t n = begin; n < end; ++n) {
    A u[3], w[8];
    unit_position(points + 3 * n, u);
    corner_weights(u, w);
    const T* grad = grad_out + n * f;
    if (grad_feats)
      for (int k = 0; k < 8; ++k)
        for (int64_t j = 0; j < f; ++j) grad_feats[(8 * n + k) * f + j] = T(w[k] * A(grad[j]));
    if (grad_points) {
      A d[8], grad_u[3];
      for (int k = 0; k < 8; ++k) {
        const T* corner = feats + (8 * n + k) * f;
        A sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t j = 0; j < f; ++j) sum += A(corner[j]) * A(grad[j]);
        d[k] = sum;
      }
      corner_weights_bwd(u, d, grad_u);
      for (int axis = 0; axis < 3; ++axis) grad_points[3 * n + axis] = A(0.5) * grad_u[axis];
    }
  }
}

}  // namespace

Status trilinear(DType dtype, const void* feats, const void* points, void* out, TrilinearSize size, Stream) {
  dispatch(dtype, [&](auto element) {
    using T = decltype(element);
    parallel(size.n_points, GRAIN, [&](int64_t begin, int64_t end) {
      forward((const T*)feats, (const acc_t<T>*)points, (T*)out, size.n_features, begin, end);
    });
  });
  return 0;
}

Status trilinear_bwd(DType dtype, const void* grad_out, const void* feats, const void* points, void* grad_feats,
                     void* grad_points, TrilinearSize size, Stream) {
  dispatch(dtype, [&](auto element) {
    using T = decltype(element);
    parallel(size.n_points, GRAIN, [&](int64_t begin, int64_t end) {
      backward((const T*)grad_out, (const T*)feats, (const acc_t<T>*)points, (T*)grad_feats, (acc_t<T>*)grad_points,
               size.n_features, begin, end);
    });
  });
  return 0;
}

}  // namespace nerfkit
