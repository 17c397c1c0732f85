// SPDX-License-Identifier: Apache-2.0
// A thread takes points one after the other, and of a point one corner after the other.

#include "common/simd_cpu.h"
#include "trilinear/args.h"

namespace nerfkit {
namespace {

constexpr int64_t GRAIN = 256;  // points per task of a thread, at least

// From 32 features on a corner is read to its end before the next: the hardware prefetcher follows one stream better
// than eight. Up to 2048 the sums, 8 or 16 KB, stay in L1.
constexpr int64_t MIN_ROW = 32, MAX_ROW = 2048;

// to [n] = weight * from [n]
template <class From, class T>
HD void scale(const From* from, acc_t<T> weight, T* to, int64_t n, bool streaming) {
  int64_t i = 0;
  if constexpr (std::is_same_v<T, acc_t<T>>)
    for (; streaming && i + LANES <= n; i += LANES) store_streaming(to + i, weight * load(from + i));
  for (; i < n; ++i) to[i] = T(weight * acc_t<T>(from[i]));
}

// sum [n] += weight * from [n]. Not inlined: else the compiler fuses the loops over all corners into one.
template <class T>
__attribute__((noinline)) void add_scaled(const T* from, acc_t<T> weight, acc_t<T>* sum, int64_t n) {
  for (int64_t i = 0; i < n; ++i) sum[i] += weight * acc_t<T>(from[i]);
}

// out [f] from corners [8, f].
template <class T>
void interpolate_row(const T* corners, const acc_t<T> (&w)[8], T* out, int64_t f, bool streaming) {
  using A = acc_t<T>;
  A sum[MAX_ROW];
  std::fill(sum, sum + f, A(0));
  for (int k = 0; k < 8; ++k) add_scaled(corners + k * f, w[k], sum, f);
  scale(sum, A(1), out, f, streaming);
}

template <class T>
void forward(const T* feats, const acc_t<T>* points, T* out, int64_t f, bool streaming, int64_t begin, int64_t end) {
  using A = acc_t<T>;
  for (int64_t n = begin; n < end; ++n) {
    A u[3], w[8];
    unit_position(points + 3 * n, u);
    corner_weights(u, w);
    const T* corners = feats + 8 * n * f;
    if (f >= MIN_ROW && f <= MAX_ROW) {
      interpolate_row(corners, w, out + n * f, f, streaming);
      continue;
    }
    for (int64_t j = 0; j < f; ++j) {
      A sum = 0;
      for (int k = 0; k < 8; ++k) sum += w[k] * A(corners[k * f + j]);
      out[n * f + j] = T(sum);
    }
  }
  if (streaming) streaming_fence();
}

template <class T>
void backward(const T* grad_out, const T* feats, const acc_t<T>* points, T* grad_feats, acc_t<T>* grad_points,
              int64_t f, bool streaming, int64_t begin, int64_t end) {
  using A = acc_t<T>;
  for (int64_t n = begin; n < end; ++n) {
    A u[3], w[8];
    unit_position(points + 3 * n, u);
    corner_weights(u, w);
    const T* grad = grad_out + n * f;
    if (grad_feats)
      for (int k = 0; k < 8; ++k) scale(grad, w[k], grad_feats + (8 * n + k) * f, f, streaming);
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
  if (streaming) streaming_fence();
}

}  // namespace

Status trilinear(DType dtype, const void* feats, const void* points, void* out, TrilinearSize size, Stream) {
  dispatch(dtype, [&](auto element) {
    using T = decltype(element);
    const int64_t row = size.n_features * sizeof(T);
    // By the bytes of the results alone, a ninth of all that moves: smaller ones may still be in a cache when read.
    const bool streaming = row % 64 == 0 && use_streaming_stores(out, size.n_points * row);
    parallel(size.n_points, GRAIN, [&](int64_t begin, int64_t end) {
      forward((const T*)feats, (const acc_t<T>*)points, (T*)out, size.n_features, streaming, begin, end);
    });
  });
  return 0;
}

Status trilinear_bwd(DType dtype, const void* grad_out, const void* feats, const void* points, void* grad_feats,
                     void* grad_points, TrilinearSize size, Stream) {
  dispatch(dtype, [&](auto element) {
    using T = decltype(element);
    const int64_t row = size.n_features * sizeof(T);
    const bool streaming =
        row % 64 == 0 && use_streaming_stores(grad_feats, (grad_points ? 17 : 9) * size.n_points * row);
    parallel(size.n_points, GRAIN, [&](int64_t begin, int64_t end) {
      backward((const T*)grad_out, (const T*)feats, (const acc_t<T>*)points, (T*)grad_feats, (acc_t<T>*)grad_points,
               size.n_features, streaming, begin, end);
    });
  });
  return 0;
}

}  // namespace nerfkit
