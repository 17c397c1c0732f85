// SPDX-License-Identifier: Apache-2.0
// Products of small matrices (GEMM), for ops that have a few rows at a time.

#pragma once

#include <vector>

#include "common/simd_cpu.h"

namespace nerfkit {
namespace {

// n rounded up to a multiple.
inline int round_up(int n, int to = LANES) { return (n + to - 1) / to * to; }

// A matrix [depth, columns] as panels [columns / LANES, depth, LANES]; columns is a multiple of LANES. at(k, j) is its
// element.
template <class A, class F>
PackVector<A> pack_panels(int depth, int columns, const F& at) {
  PackVector<A> panels(int64_t(depth) * columns);
  for (int j = 0; j < columns; ++j)
    for (int k = 0; k < depth; ++k) panels[(int64_t(j / LANES) * depth + k) * LANES + j % LANES] = at(k, j);
  return panels;
}

// out [rows, packs * LANES] = start + left [rows, depth] times right [depth, packs * LANES], with strides in elements.
template <class A>
struct GemmArguments {
  struct {
    const A* values;  // [rows, depth]
    int64_t row, column;
  } left;
  struct {
    const A* values;  // [depth, packs, LANES]
    int64_t row, pack;
  } right;
  int depth;
  struct {
    const A* values;  // [rows, packs * LANES], or null for zeros
    int64_t row;
  } start;
  struct {
    A* values;  // [rows, packs * LANES]
    int64_t row;
  } out;
};

template <int ROWS, int PACKS, class A>
HD void gemm_tile(const GemmArguments<A>& p, int r, int q) {  // out rows r .. + ROWS - 1, packs q .. + PACKS - 1
  const A *left = p.left.values + r * p.left.row, *right = p.right.values + q * p.right.pack;
  const A* start = p.start.values + r * p.start.row + q * LANES;
  SimdVec<A> sum[ROWS][PACKS];
#pragma GCC unroll 8
  for (int i = 0; i < ROWS; ++i)
#pragma GCC unroll 3
    for (int j = 0; j < PACKS; ++j)
      sum[i][j] = p.start.values ? load(start + i * p.start.row + j * LANES) : SimdVec<A>{};
  for (int k = 0; k < p.depth; ++k) {
    SimdVec<A> row[PACKS];
#pragma GCC unroll 3
    for (int j = 0; j < PACKS; ++j) row[j] = load(right + k * p.right.row + j * p.right.pack);
#pragma GCC unroll 8
    for (int i = 0; i < ROWS; ++i)
#pragma GCC unroll 3
      for (int j = 0; j < PACKS; ++j) sum[i][j] += left[i * p.left.row + k * p.left.column] * row[j];
  }
#pragma GCC unroll 8
  for (int i = 0; i < ROWS; ++i)
#pragma GCC unroll 3
    for (int j = 0; j < PACKS; ++j) store(p.out.values + (r + i) * p.out.row + (q + j) * LANES, sum[i][j]);
}

template <int ROWS, class A>
HD void gemm_tiles(const GemmArguments<A>& p, int rows, int packs) {
  for (int q = 0; q < packs;) {
    const int left = packs - q, n = left == 4 || left == 2 ? 2 : left == 1 ? 1 : 3;
    for (int r = 0; r < rows; r += ROWS)
      if (n == 3)
        gemm_tile<ROWS, 3>(p, r, q);
      else if (n == 2)
        gemm_tile<ROWS, 2>(p, r, q);
      else
        gemm_tile<ROWS, 1>(p, r, q);
    q += n;
  }
}

constexpr int FEW = 2, GEMM_ROWS = 8;

// A register tile of ROWS x 3 packs: 3 / 4 of the registers hold accumulators. Rows up to a multiple of ROWS, which
// divides GEMM_ROWS, are read and written. Not inlined, so that it shares no registers with the code around it.
template <class A>
__attribute__((noinline)) void gemm(const GemmArguments<A>& p, int rows, int packs) {
  constexpr int ROWS = MAX_PACKS<A> / 4;
  static_assert(GEMM_ROWS % ROWS == 0 && GEMM_ROWS % FEW == 0);
  if (rows > FEW)
    gemm_tiles<ROWS>(p, rows, packs);
  else
    gemm_tiles<FEW>(p, rows, packs);
}

}  // namespace
}  // namespace nerfkit
