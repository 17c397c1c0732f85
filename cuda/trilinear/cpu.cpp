// SPDX-License-Identifier: Apache-2.0

#include "common/simd_cpu.h"
#include "trilinear/args.h"

namespace nerfkit {
namespace {

constexpr int64_t GRAIN = 256;  // points that are worth a thread

// Features of which a corner is read to its end before the next: the processor foresees one row better than eight. Of
// fewer there is little to foresee, of more the sums would leave the first cache.
constexpr int64_t LEAST_ROW = 32, MOST_ROW = 2048;

// to = weight * from
template <class From, class T>
HD void scale(const From* from, acc_t<T> weight, T* to, int64_t n, bool past_caches) {
  int64_t i = 0;
  if constexpr (std::is_same_v<T, acc_t<T>>)
    for (; past_caches && i + LANES <= n; i += LANES) store_streaming(to + i, weight * load(from + i));
  for (; i < n; ++i) to[i] = T(weight * acc_t<T>(from[i]));
}

// sum += weight * from. A call: else the compiler makes one loop of those of all corners.
template <class T>
__attribute__((noinline)) void add_scaled(const T* from, acc_t<T> weight, acc_t<T>* sum, int64_t n) {
  for (int64_t i = 0; i < n; ++i) sum[i] += weight * acc_t<T>(from[i]);
}

// corners [8, f], out [f]
template <class T>
void interpolate_row(const T* corners, const acc_t<T> (&w)[8], T* out, int64_t f, bool past_caches) {
  using A = acc_t<T>;
  A sum[MOST_ROW];
  std::fill(sum, sum + f, A(0));
  for (int k = 0; k < 8; ++k) add_scaled(corners + k * f, w[k], sum, f);
  scale(sum, A(1), out, f, past_caches);
}

template <class T>
void forward(const T* feats, const acc_t<T>* points, T* out, int64_t f, bool past_caches, int64_t begin, int64_t end) {
  using A = acc_t<T>;
  for (int64_t n = begin; n < end; ++n) {
    A u[3], w[8];
    unit_position(points + 3 * n, u);
    corner_weights(u, w);
    const T* corners = feats + 8 * n * f;
    if (f >= LEAST_ROW && f <= MOST_ROW) {
      interpolate_row(corners, w, out + n * f, f, past_caches);
      continue;
    }
    for (int64_t j = 0; j < f; ++j) {
      A sum = 0;
      for (int k = 0; k < 8; ++k) sum += w[k] * A(corners[k * f + j]);
      out[n * f + j] = T(sum);
    }
  }
  if (past_caches) streaming_fence();
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
  if (past_caches) streaming_fence();
}

}  // namespace

Status trilinear(DType dtype, const void* feats, const void* points, void* out, TrilinearSize size, Stream) {
  dispatch(dtype, [&](auto element) {
    using T = decltype(element);
    const int64_t row = size.n_features * sizeof(T);
    // The results alone: of all that moves they are a ninth, and may be kept until they are read.
    const bool past_caches = row % 64 == 0 && use_streaming_stores(out, size.n_points * row);
    parallel(size.n_points, GRAIN, [&](int64_t begin, int64_t end) {
      forward((const T*)feats, (const acc_t<T>*)points, (T*)out, size.n_features, past_caches, begin, end);
    });
  });
  return 0;
}

Status trilinear_bwd(DType dtype, const void* grad_out, const void* feats, const void* points, void* grad_feats,
                     void* grad_points, TrilinearSize size, Stream) {
  dispatch(dtype, [&](auto element) {
    using T = decltype(element);
    const int64_t row = size.n_features * sizeof(T);
    const bool past_caches =
        row % 64 == 0 && use_streaming_stores(grad_feats, (grad_points ? 17 : 9) * size.n_points * row);
    parallel(size.n_points, GRAIN, [&](int64_t begin, int64_t end) {
      backward((const T*)grad_out, (const T*)feats, (const acc_t<T>*)points, (T*)grad_feats, (acc_t<T>*)grad_points,
               size.n_features, past_caches, begin, end);
    });
  });
  return 0;
}

}  // namespace nerfkit
