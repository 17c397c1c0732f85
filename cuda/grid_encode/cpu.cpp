// SPDX-License-Identifier: Apache-2.0
// BLOCK points at a time: rows and weights of their corners in vectors, then their features one after the other.

#include "common/simd_cpu.h"
#include "grid_encode/args.h"

namespace nerfkit {
namespace {

constexpr int64_t BLOCK = 256;  // points whose corners are found together, in vectors; 8 x 256 rows and weights: 16 KB
constexpr int64_t AHEAD = 32;   // points between the prefetch of a row and its use
constexpr int64_t SPAN = 2048;  // points that one level is evaluated for before the next: its rows stay in L2

template <class P>
struct Corners {
  uint32_t row[8][BLOCK];  // [corner, point], counted from the level's first row
  P weight[8][BLOCK];
};

template <class P>
HD void find_corners(const GridLevel& level, const P* points /* [n, 3] */, int64_t n, Corners<P>& to) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    int cell[3];
    P u[3], w[8];
    uint32_t row[8];
    cell_of(level, points + 3 * i, cell, u);
    corner_weights(u, w);
    rows_of(level, cell, row);
    for (int k = 0; k < 8; ++k) to.row[k][i] = row[k], to.weight[k][i] = w[k];
  }
}

// The hardware prefetcher cannot predict the rows of a hash. level_table [rows of the level, f].
template <class P, class T>
HD void prefetch_rows(const Corners<P>& corners, int64_t i, const T* level_table, int f) {
  for (int k = 0; k < 8; ++k) __builtin_prefetch(level_table + int64_t(corners.row[k][i]) * f);
}

// out [f] = features of point i; F is their number where it is known at compile time, else 0.
template <int F, class P, class T>
HD void interpolate(const Corners<P>& corners, int64_t i, const T* level_table, int f, T* out) {
  using A = acc_t<T>;
  if constexpr (F != 0) {
    A sum[F] = {};
    for (int k = 0; k < 8; ++k)
      for (int j = 0; j < F; ++j)
        sum[j] += A(corners.weight[k][i]) * A(level_table[int64_t(corners.row[k][i]) * F + j]);
    for (int j = 0; j < F; ++j) out[j] = T(sum[j]);
  } else {
    for (int j = 0; j < f; ++j) {
      A sum = 0;
      for (int k = 0; k < 8; ++k) sum += A(corners.weight[k][i]) * A(level_table[int64_t(corners.row[k][i]) * f + j]);
      out[j] = T(sum);
    }
  }
}

template <class P, class T, int F>
void forward(const P* points, const T* table, T* out, const GridLevels& levels, int64_t begin, int64_t end) {
  const int f = F ? F : levels.n_features;
  const int64_t row_out = int64_t(levels.n_levels) * f;
  Corners<P> corners;
  for (int64_t span = begin; span < end; span += SPAN)
    for (int l = 0; l < levels.n_levels; ++l) {
      const T* level_table = table + levels.first_row[l] * f;
      for (int64_t block = span; block < std::min(span + SPAN, end); block += BLOCK) {
        const int64_t n = std::min(BLOCK, end - block);
        find_corners(level_of(levels, l), points + 3 * block, n, corners);
        for (int64_t i = 0; i < n; ++i) {
          if (i + AHEAD < n) prefetch_rows(corners, i + AHEAD, level_table, f);
          interpolate<F>(corners, i, level_table, f, out + (block + i) * row_out + l * f);
        }
      }
    }
}

template <class P, class T, int F>
void grad_points_of(const T* grad_out, const P* points, const T* table, P* grad_points, const GridLevels& levels,
                    int64_t begin, int64_t end) {
  using A = acc_t<T>;
  const int f = F ? F : levels.n_features;
  for (int64_t n = begin; n < end; ++n) {
    P sum[3] = {};
    for (int l = 0; l < levels.n_levels; ++l) {
      const GridLevel level = level_of(levels, l);
      const T* level_table = table + levels.first_row[l] * f;
      const T* grad = grad_out + (n * levels.n_levels + l) * f;
      int cell[3];
      P u[3], d[8], grad_u[3];
      uint32_t row[8];
      cell_of(level, points + 3 * n, cell, u);
      rows_of(level, cell, row);
      for (int k = 0; k < 8; ++k) {
        A dot = 0;
        for (int j = 0; j < f; ++j) dot += A(grad[j]) * A(level_table[int64_t(row[k]) * f + j]);
        d[k] = P(dot);
      }
      corner_weights_bwd(u, d, grad_u);
      for (int axis = 0; axis < 3; ++axis) sum[axis] += grad_u[axis] * P(level.resolution);
    }
    for (int axis = 0; axis < 3; ++axis) grad_points[3 * n + axis] = in_box(points[3 * n + axis]) ? sum[axis] : P(0);
  }
}

// Adds to the rows first .. last - 1 of level l. One thread owns a row, and adds to it in the order of the points: the
// sum does not depend on the number of threads.
template <class P, class T, int F>
void add_to_rows(const T* grad_out, const P* points, acc_t<T>* grad_table, const GridLevels& levels, int l,
                 uint32_t first, uint32_t last, int64_t n_points) {
  using A = acc_t<T>;
  const int f = F ? F : levels.n_features;
  A* level_grad = grad_table + levels.first_row[l] * f;
  Corners<P> corners;
  for (int64_t block = 0; block < n_points; block += BLOCK) {
    const int64_t n = std::min(BLOCK, n_points - block);
    find_corners(level_of(levels, l), points + 3 * block, n, corners);
    for (int64_t i = 0; i < n; ++i) {
      if (i + AHEAD < n) prefetch_rows(corners, i + AHEAD, level_grad, f);
      const T* grad = grad_out + ((block + i) * levels.n_levels + l) * f;
      for (int k = 0; k < 8; ++k) {
        const uint32_t row = corners.row[k][i];
        if (row < first || row >= last) continue;
        A* to = level_grad + int64_t(row) * f;
        const A weight = A(corners.weight[k][i]);
#pragma omp simd
        for (int j = 0; j < f; ++j) to[j] += weight * A(grad[j]);
      }
    }
  }
}

template <class P, class T, int F>
void grad_table_of(const T* grad_out, const P* points, acc_t<T>* grad_table, const GridLevels& levels, int64_t n_rows,
                   int64_t n_points) {
  uint32_t threads = 1;
  torch_get_num_threads(&threads);
  const int64_t slices = (int64_t(threads) + levels.n_levels - 1) / levels.n_levels;  // of the rows of each level
  parallel(levels.n_levels * slices, 1, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int l = int(task / slices);
      const int64_t rows = (l + 1 < levels.n_levels ? levels.first_row[l + 1] : n_rows) - levels.first_row[l];
      const int64_t slice = task % slices;
      add_to_rows<P, T, F>(grad_out, points, grad_table, levels, l, uint32_t(rows * slice / slices),
                           uint32_t(rows * (slice + 1) / slices), n_points);
    }
  });
}

// Calls f with a point, a table element and the number of features, 0 for one that is not listed.
template <class F>
void dispatch_grid(DType point_type, DType table_type, int n_features, const F& f) {
  dispatch(table_type, [&](auto t) {
    if (point_type == DType::f64) return f(double(), t, std::integral_constant<int, 0>());
    if (n_features == 2) return f(float(), t, std::integral_constant<int, 2>());
    if (n_features == 4) return f(float(), t, std::integral_constant<int, 4>());
    return f(float(), t, std::integral_constant<int, 0>());
  });
}

}  // namespace

Status grid_encode(DType point_type, DType table_type, const void* points, const void* table, void* out,
                   int64_t n_points, const GridLevels& levels, Stream) {
  dispatch_grid(point_type, table_type, levels.n_features, [&](auto p, auto t, auto features) {
    using P = decltype(p);
    using T = decltype(t);
    parallel(n_points, BLOCK, [&](int64_t begin, int64_t end) {
      forward<P, T, features.value>((const P*)points, (const T*)table, (T*)out, levels, begin, end);
    });
  });
  return 0;
}

Status grid_encode_bwd(DType point_type, DType table_type, const void* grad_out, const void* points, const void* table,
                       void* grad_points, void* grad_table, int64_t*, void*, int64_t n_rows, int64_t n_points,
                       const GridLevels& levels, Stream) {
  dispatch_grid(point_type, table_type, levels.n_features, [&](auto p, auto t, auto features) {
    using P = decltype(p);
    using T = decltype(t);
    constexpr int F = features.value;
    if (grad_table)
      grad_table_of<P, T, F>((const T*)grad_out, (const P*)points, (acc_t<T>*)grad_table, levels, n_rows, n_points);
    if (grad_points)
      parallel(n_points, BLOCK, [&](int64_t begin, int64_t end) {
        grad_points_of<P, T, F>((const T*)grad_out, (const P*)points, (const T*)table, (P*)grad_points, levels, begin,
                                end);
      });
  });
  return 0;
}

}  // namespace nerfkit
