// SPDX-License-Identifier: Apache-2.0
// Any kernel, stride, padding and dilation: the gradients. A thread takes a column of inputs: the gradients of the
// outputs that they reach give theirs and, times the inputs, those of the weight, in one pass if the kernel is a single
// chunk. Else one pass gives the gradient of x, and another, with blocks of their own for each chunk, those of the
// weight.

#pragma once

#include "depthwise_conv2d/generic.cuh"

namespace nerfkit {

constexpr int64_t ANY_BLOCKS = 2048;  // that add up the weight's gradient
constexpr int ANY_TILES = 16;         // of a thread, at most

// The inputs of a thread along an axis, `apart` from each other, and the output that the first reaches by tap 0; far
// below zero if they reach none. Places are counted from the first of the padding.
struct AnySpan {
  int first, apart, output;
};

// `tile`: its place among those of its class, each of N inputs.
template <int STEP, int N>
__device__ __forceinline__ AnySpan span_of(const AnyAxis& axis, int tile, int row_class) {
  const int low = axis.low + axis.padding;
  if (STEP == 0) return {low + tile * N, 1, 0};
  // Input start + n * dilation is reached from output + n / step * apart by tap n % step; n may be negative.
  const int of_common = int(axis.by_common(row_class));
  const bool met = of_common * axis.common == row_class;
  const int output = axis.apart == 1 ? 0 : of_common * axis.inverse % axis.apart;
  const int start = met ? output * axis.stride : row_class, distance = low - start;
  int n = distance;
  if (axis.dilation > 1)  // the classes of the tiles are those of the dilation
    n = distance > 0 ? int(axis.by_classes(distance + axis.dilation - 1)) : -int(axis.by_classes(-distance));
  n = (STEP == 2 ? n & ~1 : n) + tile * N;
  constexpr int NONE = -(1 << 30);
  return {start + n * axis.dilation, axis.dilation, met ? output + (STEP == 2 ? n >> 1 : n) * axis.apart : NONE};
}

// Adds the block's sums of a chunk in a fixed order; the last sum, the bias's, if the chunk has the anchor.
template <class Form, class T>
__device__ __forceinline__ void write_chunk(const AnyConv<T>& a, const AnyBlock& block, const Chunk& chunk,
                                            acc_t<T> (&sums)[Form::TAPS + 1],
                                            WarpSums<acc_t<T>, Form::TAPS + 1>& of_warp) {
  constexpr int KW = Form::KW, TAPS = Form::TAPS;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, lanes = a.lanes;
  const bool anchor = unsigned(a.rows.anchor - chunk.u) < unsigned(chunk.height) &&
                      unsigned(a.columns.anchor - chunk.v) < unsigned(chunk.width);
  __syncthreads();  // the memory may still be read
#pragma unroll
  for (int k = 0; k <= TAPS; ++k) {
    for (int offset = 16; offset >= lanes; offset /= 2) sums[k] += __shfl_xor_sync(FULL_MASK, sums[k], offset);
    if (lane < lanes) of_warp[warp][k][lane] = sums[k];
  }
  __syncthreads();
  const int taps = a.rows.kernel * a.columns.kernel;
  for (int i = threadIdx.x; i < lanes * (TAPS + 1); i += THREADS_2D) {
    const int k = i % (TAPS + 1), of = i / (TAPS + 1), u = k / KW, v = k % KW;
    const bool wanted = k < TAPS ? u < chunk.height && v < chunk.width : anchor;
    if (!wanted || block.group + of >= a.channels) continue;
    acc_t<T> total = 0;
    for (int w = 0; w < WARPS_2D; ++w) total += of_warp[w][k][of];
    const int place = k < TAPS ? (chunk.u + u) * a.columns.kernel + chunk.v + v : taps;
    a.partials[(int64_t(block.part) * a.channels + block.group + of) * (taps + 1) + place] = total;
  }
}

// With sums a block has the chunk blockIdx.y, else all of them.
template <class T, class Form>
__global__ void __launch_bounds__(THREADS_2D) any_backward(const AnyConv<T> a) {
  using A = acc_t<T>;
  constexpr int KH = Form::KH, KW = Form::KW, STEP = Form::STEP, AHEAD = Form::AHEAD;
  constexpr int R = Form::rows(true, sizeof(T)), Q = Form::COLUMNS;
  constexpr int BEFORE = STEP ? (KH - 1) / std::max(STEP, 1) : 0, LEFT = (KW - 1) / Q;  // outputs of smaller places
  constexpr int ROWS = STEP ? BEFORE + R / std::max(STEP, 1) : R * KH, N = LEFT + 1;    // of gradients; of a row
#if __CUDA_ARCH__ < 800
  if constexpr (KH == 7 && STEP == 1) return;  // registers would spill: it is not launched there
#endif
  pdl_trigger();
  __shared__ WarpSums<A, Form::TAPS + 1> of_warp;
  A* shared = &of_warp[0][0][0];
  static_assert(sizeof(of_warp) >= WEIGHTS_OF_BLOCK<Form::TAPS> * sizeof(A));
  const bool to_sums = a.partials != nullptr;
  const int chunks = Form::EXACT || to_sums ? 1 : a.rows.chunks * a.columns.chunks;
  const AnyBlock block(a);
  A taps[Form::TAPS], sums[Form::TAPS + 1] = {};
  for (unsigned start = block.part * block.threads; start < a.tiles; start += a.shared * block.threads) {
    const AnyTile tile(a, block, start);
    const AnySpan rows = span_of<STEP, R>(a.rows, tile.row, tile.row_class);
    const AnySpan columns = span_of<Q == 1 ? 0 : STEP, Q>(a.columns, tile.column, tile.column_class);
    const int top = rows.first - a.rows.padding;
    const int64_t plane = tile.batch * a.to.batch + tile.channel * a.to.channel, base = int64_t(top) * a.to_row;
    const int to_next = rows.apart * a.to_row;
    int places[Q];  // in a row of x; negative outside
#pragma unroll
    for (int q = 0; q < Q; ++q) {
      const int at = columns.first - a.columns.padding + q * columns.apart;
      places[q] = tile.real && unsigned(at) < unsigned(a.columns.size) ? at * a.to_column : -1;
    }
    const auto has = [&](int r) { return unsigned(top + r * rows.apart) < unsigned(a.rows.size); };
    A sum[R][Q] = {};
    T center[R][Q] = {};
    if (to_sums) {
      const T* x = moved(a.x + plane, base);
#pragma unroll
      for (int r = 0; r < R; ++r) load_taps(moved(x, int64_t(r) * to_next), has(r), places, center[r]);
    }
    for (int index = 0; index < chunks; ++index) {
      const Chunk chunk(a, to_sums ? blockIdx.y : index);
      if (chunks > 1 || start < a.shared * block.threads) read_taps<Form>(a, block, chunk, shared, taps);
      const int anchor_u = a.rows.anchor - chunk.u, anchor_v = a.columns.anchor - chunk.v;
      int offsets[N];
#pragma unroll
      for (int j = 0; j < N; ++j) {
        int at = columns.output + (j - LEFT) * a.columns.apart;
        if (Q == 1) {  // tap by tap, as one of several lanes may have an output
          const int shifted = columns.first - (chunk.v + LEFT - j) * a.columns.dilation;
          at = int(a.columns.by_stride(max(shifted, 0)));
          if (shifted < 0 || at * a.columns.stride != shifted || (!Form::EXACT && LEFT - j >= chunk.width)) at = -1;
        }
        offsets[j] = tile.real && unsigned(at) < unsigned(a.columns.out_size) ? at * a.from_column : -1;
      }
      const auto output = [&](int i) {  // row of gradients; negative if there is none
        if (STEP) return rows.output + (i - BEFORE - chunk.u / std::max(STEP, 1)) * a.rows.apart;
        const int shifted = rows.first + i / KH - (chunk.u + i % KH) * a.rows.dilation;
        const int at = int(a.rows.by_stride(max(shifted, 0)));
        return shifted >= 0 && at * a.rows.stride == shifted && i % KH < chunk.height ? at : -1;
      };
      const T* in = a.in + tile.batch * a.from.batch + tile.channel * a.from.channel;
      const T* from = moved(in, STEP ? int64_t(output(0)) * a.from_row : 0);
      const int next = a.rows.apart * a.from_row;
      T values[AHEAD + 1][N];
      const auto fetch = [&](int i, T(&to)[N]) {
        const int at = output(i);
        const int64_t distance = STEP ? int64_t(i) * next : int64_t(at) * a.from_row;
        load_taps(moved(from, distance), unsigned(at) < unsigned(a.rows.out_size), offsets, to);
      };
#pragma unroll
      for (int i = 0; i < AHEAD && i < ROWS; ++i) fetch(i, values[i]);
      A wide[R][Q];
#pragma unroll
      for (int r = 0; r < R; ++r)
#pragma unroll
        for (int q = 0; q < Q; ++q) wide[r][q] = A(center[r][q]);
#pragma unroll
      for (int i = 0; i < ROWS; ++i) {
        if (i + AHEAD < ROWS) fetch(i + AHEAD, values[(i + AHEAD) % (AHEAD + 1)]);
        A row[N];  // zero where there is no output
#pragma unroll
        for (int j = 0; j < N; ++j) row[j] = A(values[i % (AHEAD + 1)][j]);
        const int anchor = STEP ? (i - BEFORE) * STEP + anchor_u : i % KH == anchor_u ? 0 : -1;
        const bool has_anchor = unsigned(anchor_u) < unsigned(chunk.height) && unsigned(anchor) < unsigned(R);
#pragma unroll
        for (int j = 0; j < N; ++j)
          if (has_anchor && unsigned((j - LEFT) * Q + anchor_v) < unsigned(Q)) sums[Form::TAPS] += row[j];
#pragma unroll
        for (int r = 0; r < R; ++r) {
          const int u = STEP ? r - (i - BEFORE) * STEP : i / KH == r ? i % KH : -1;
          if (u < 0 || u >= KH || (!Form::EXACT && u >= chunk.height)) continue;
#pragma unroll
          for (int j = 0; j < N; ++j)
#pragma unroll
            for (int q = 0; q < Q; ++q) {
              const int v = q - (j - LEFT) * Q;
              if (v >= KW) continue;
              sum[r][q] += taps[u * KW + v] * row[j];
              sums[u * KW + v] += wide[r][q] * row[j];
            }
        }
      }
    }
    if (!a.out) continue;
    T* out = moved(a.out + plane, base);
#pragma unroll
    for (int r = 0; r < R; ++r)
#pragma unroll
      for (int q = 0; q < Q; ++q)
        if (has(r) && places[q] >= 0) *moved(moved(out, int64_t(r) * to_next), places[q]) = T(sum[r][q]);
  }
  if (!to_sums) return;
  write_chunk<Form>(a, block, Chunk(a, blockIdx.y), sums, of_warp);
}

// Blocks that share the tiles of a channel where each leaves a part of the weight's gradient.
template <class T>
unsigned any_parts(const AnyConv<T>& a) {
  const int64_t chunks = int64_t(a.rows.chunks) * a.columns.chunks, full = a.shared;
  const int64_t enough = (ANY_BLOCKS + a.across * chunks - 1) / (a.across * chunks);
  return unsigned(std::max((full + ANY_TILES - 1) / ANY_TILES, std::min((full + 1) / 2, enough)));
}

// The number of parts; none if it is too large.
template <class T, class Form>
int64_t launch_any_backward(AnyConv<T> a, const Conv2dShape& s, cudaStream_t stream) {
  constexpr int MOST_CHUNKS = 65535;
  if (!share_out<Form>(a, s, sizeof(T), true)) return 0;
  const int64_t chunks = int64_t(a.rows.chunks) * a.columns.chunks;
  if (chunks > MOST_CHUNKS) return 0;
  if (a.out && (chunks > 1 || !a.partials)) {
    AnyConv<T> to_x = a;
    to_x.partials = nullptr;
    any_backward<T, Form><<<a.shared * a.across, THREADS_2D, 0, stream>>>(to_x);
    a.out = nullptr;
  }
  a.shared = any_parts(a);
  if (a.partials) any_backward<T, Form><<<dim3(a.shared * a.across, unsigned(chunks)), THREADS_2D, 0, stream>>>(a);
  return a.shared;
}

}  // namespace nerfkit
