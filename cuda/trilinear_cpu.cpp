// SPDX-License-Identifier: Apache-2.0

#include "cpu.h"
#include "trilinear.h"

namespace nerfkit {
namespace {

constexpr int64_t GRAIN = 256;  // points that are worth a thread

// Numbers of a corner that are read before those of the next: the processor foresees one row better than eight.
constexpr int RUN = 256;

// out [RUN], of corners that are f numbers apart.
HD void interpolate_run(const float* corners, const float (&w)[8], float* out, int64_t f) {
  constexpr int PACKS = RUN / LANES;
  Pack<float> sum[PACKS] = {};
  for (int k = 0; k < 8; ++k, corners += f)
#pragma GCC unroll 64
    for (int i = 0; i < PACKS; ++i) sum[i] += w[k] * load(corners + i * LANES);
#pragma GCC unroll 64
  for (int i = 0; i < PACKS; ++i) store(out + i * LANES, sum[i]);
}

template <class T>
void forward(const T* feats, const acc_t<T>* points, T* out, int64_t f, int64_t begin, int64_t end) {
  using A = acc_t<T>;
  for (int64_t n = begin; n < end; ++n) {
    A u[3], w[8];
    unit_position(points + 3 * n, u);
    corner_weights(u, w);
    const T* corner = feats + 8 * n * f;
    int64_t j = 0;
    if constexpr (std::is_same_v<T, float>)  // converted, or of two registers, packs take longer than they save
      for (; j + RUN <= f; j += RUN) interpolate_run(corner + j, w, out + n * f + j, f);
    for (; j < f; ++j) {
      A sum = 0;
      for (int k = 0; k < 8; ++k) sum += w[k] * A(corner[k * f + j]);
      out[n * f + j] = T(sum);
    }
  }
}

// to = weight * from
template <class T>
HD void scale(const T* from, acc_t<T> weight, T* to, int64_t n, bool past_caches) {
  int64_t i = 0;
  if constexpr (std::is_same_v<T, acc_t<T>>)
    for (; past_caches && i + LANES <= n; i += LANES) stream(to + i, weight * load(from + i));
  for (; i < n; ++i) to[i] = T(weight * acc_t<T>(from[i]));
}

template <class T>
void backward(const T* grad_out, const T* feats, const acc_t<T>* points, T* grad_feats, acc_t<T>* grad_points,
              int64_t f, bool past_caches, int64_t begin, int64_t end) {
  using A = acc_t<T>;
  for (int64_t n = begin; n < end; ++n) {
    A u[3], w[8];
    unit_position(points + 3 * n, u);
    corner_weights(u, w);
    const T* grad = grad_out + n * f;
    if (grad_feats)
      for (int k = 0; k < 8; ++k) scale(grad, w[k], grad_feats + (8 * n + k) * f, f, past_caches);
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
  if (past_caches) end_streams();
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
    const int64_t row = size.n_features * sizeof(T);
    const bool past_caches = row % 64 == 0 && goes_past_caches(grad_feats, (grad_points ? 17 : 9) * size.n_points * row);
    parallel(size.n_points, GRAIN, [&](int64_t begin, int64_t end) {
      backward((const T*)grad_out, (const T*)feats, (const acc_t<T>*)points, (T*)grad_feats, (acc_t<T>*)grad_points,
               size.n_features, past_caches, begin, end);
    });
  });
  return 0;
}

}  // namespace nerfkit
