// SPDX-License-Identifier: Apache-2.0
// Any kernel, stride, padding and dilation: the gradients. A thread takes a column of inputs: the gradients of the
// outputs that they reach give theirs and, times the inputs, those of the weight, in one pass if the kernel is a single
// chunk. Else one pass gives the gradient of x, and another, with blocks of their own for each chunk, those of the
// weight.

#include "common/pdl.cuh"
#include "depthwise_conv2d/generic_forms.cuh"

namespace nerfkit {

constexpr int64_t ENOUGH_BLOCKS = 2048;  // that add up the weight's gradient
constexpr int MOST_TILES = 16;           // of a thread, at most

// The inputs of a thread along an axis, `apart` from each other, and the output that the first reaches by tap 0; far
// below zero if they reach none. Positions are counted from the first of the padding.
struct InputSpan {
  int first, apart, output;
};

// `tile`: its index among those of its class, each of N inputs.
template <int STEP, int N>
__device__ __forceinline__ InputSpan span_of(const GenericAxis& axis, int tile, int row_class) {
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
__device__ __forceinline__ void write_chunk(const GenericArgs<T>& a, const GenericBlock& block, const Chunk& chunk,
                                            acc_t<T> (&sums)[Form::TAPS + 1],
                                            WarpSums<acc_t<T>, Form::TAPS + 1>& warp_sums) {
  constexpr int KW = Form::KW, TAPS = Form::TAPS;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, lanes = a.lanes;
  const bool anchor = unsigned(a.rows.anchor - chunk.u) < unsigned(chunk.height) &&
                      unsigned(a.columns.anchor - chunk.v) < unsigned(chunk.width);
  __syncthreads();  // the memory may still be read
#pragma unroll
  for (int k = 0; k <= TAPS; ++k) {
    for (int offset = 16; offset >= lanes; offset /= 2) sums[k] += __shfl_xor_sync(FULL_MASK, sums[k], offset);
    if (lane < lanes) warp_sums[warp][k][lane] = sums[k];
  }
  __syncthreads();
  const int taps = a.rows.kernel * a.columns.kernel;
  for (int i = threadIdx.x; i < lanes * (TAPS + 1); i += THREADS_2D) {
    const int k = i % (TAPS + 1), of = i / (TAPS + 1), u = k / KW, v = k % KW;
    const bool wanted = k < TAPS ? u < chunk.height && v < chunk.width : anchor;
    if (!wanted || block.group + of >= a.channels) continue;
    acc_t<T> total = 0;
    for (int w = 0; w < WARPS_2D; ++w) total += warp_sums[w][k][of];
    const int index = k < TAPS ? (chunk.u + u) * a.columns.kernel + chunk.v + v : taps;
    a.partials[(int64_t(block.part) * a.channels + block.group + of) * (taps + 1) + index] = total;
  }
}

// Offsets in bytes, in a row of grad_out, of the N outputs that a thread's inputs reach; negative where there is none.
template <class Form, class T, int N>
__device__ __forceinline__ void column_offsets(const GenericArgs<T>& a, const GenericTile& tile,
                                               const InputSpan& columns, const Chunk& chunk, int (&offsets)[N]) {
  constexpr int LEFT = N - 1;
#pragma unroll
  for (int j = 0; j < N; ++j) {
    int at = columns.output + (j - LEFT) * a.columns.apart;
    if (Form::COLUMNS == 1) {  // tap by tap, as one of several lanes may have an output
      const int shifted = columns.first - (chunk.v + LEFT - j) * a.columns.dilation;
      at = int(a.columns.by_stride(max(shifted, 0)));
      if (shifted < 0 || at * a.columns.stride != shifted || (!Form::EXACT && LEFT - j >= chunk.width)) at = -1;
    }
    offsets[j] = tile.real && unsigned(at) < unsigned(a.columns.out_size) ? at * a.from_column : -1;
  }
}

// Sizes of what a thread has.
template <class Form>
struct BackwardTile {
  static constexpr int KH = Form::KH, STEP = Form::STEP, R = Form::rows(Pass::backward), Q = Form::COLUMNS;
  static constexpr int BEFORE = STEP ? (KH - 1) / std::max(STEP, 1) : 0;  // rows of grad_out above the first input's
  static constexpr int LEFT = (Form::KW - 1) / Q, N = LEFT + 1;           // columns to the left; all
  static constexpr int ROWS = STEP ? BEFORE + R / std::max(STEP, 1) : R * KH;  // of grad_out
};

// Adds row i of grad_out, zero where there is no output, to the sums of x's gradient and, times x, to those of the
// taps, the last of which is the bias's. anchor_u, anchor_v: the anchor, from the chunk's first tap.
template <class Form, class A, class B = BackwardTile<Form>>
__device__ __forceinline__ void add_row(int i, const A (&row)[B::N], const A (&x)[B::R][B::Q],
                                        const A (&taps)[Form::TAPS], const Chunk& chunk, int anchor_u, int anchor_v,
                                        A (&sum)[B::R][B::Q], A (&tap_sums)[Form::TAPS + 1]) {
  constexpr int KH = Form::KH, KW = Form::KW, STEP = Form::STEP, Q = B::Q;
  const int anchor = STEP ? (i - B::BEFORE) * STEP + anchor_u : i % KH == anchor_u ? 0 : -1;
  const bool has_anchor = unsigned(anchor_u) < unsigned(chunk.height) && unsigned(anchor) < unsigned(B::R);
#pragma unroll
  for (int j = 0; j < B::N; ++j)
    if (has_anchor && unsigned((j - B::LEFT) * Q + anchor_v) < unsigned(Q)) tap_sums[Form::TAPS] += row[j];
#pragma unroll
  for (int r = 0; r < B::R; ++r) {
    const int u = STEP ? r - (i - B::BEFORE) * STEP : i / KH == r ? i % KH : -1;
    if (u < 0 || u >= KH || (!Form::EXACT && u >= chunk.height)) continue;
#pragma unroll
    for (int j = 0; j < B::N; ++j)
#pragma unroll
      for (int q = 0; q < Q; ++q) {
        const int v = q - (j - B::LEFT) * Q;
        if (v >= KW) continue;
        sum[r][q] += taps[u * KW + v] * row[j];
        tap_sums[u * KW + v] += x[r][q] * row[j];
      }
  }
}

// With sums a block has the chunk blockIdx.y, else all of them.
template <class T, class Form>
__global__ void __launch_bounds__(THREADS_2D) depthwise_conv2d_generic_backward(const GenericArgs<T> a) {
  using A = acc_t<T>;
  using B = BackwardTile<Form>;
  constexpr int KH = Form::KH, STEP = Form::STEP, AHEAD = Form::AHEAD;
  constexpr int R = B::R, Q = B::Q, ROWS = B::ROWS, N = B::N;
#if __CUDA_ARCH__ < 800
  if constexpr (KH == 7 && STEP == 1) return;  // registers would spill: it is not launched there
#endif
  pdl_trigger();
  __shared__ WarpSums<A, Form::TAPS + 1> warp_sums;
  A* shared = &warp_sums[0][0][0];
  static_assert(sizeof(warp_sums) >= WEIGHTS_OF_BLOCK<Form::TAPS> * sizeof(A));
  const bool to_sums = a.partials != nullptr;
  const int chunks = Form::EXACT || to_sums ? 1 : a.rows.chunks * a.columns.chunks;
  const GenericBlock block(a);
  A taps[Form::TAPS], tap_sums[Form::TAPS + 1] = {};
  for (unsigned start = block.part * block.threads; start < a.tiles; start += a.shared * block.threads) {
    const GenericTile tile(a, block, start);
    const InputSpan rows = span_of<STEP, R>(a.rows, tile.row, tile.row_class);
    const InputSpan columns = span_of<Q == 1 ? 0 : STEP, Q>(a.columns, tile.column, tile.column_class);
    const int top = rows.first - a.rows.padding;
    const int64_t plane = tile.batch * a.to.batch + tile.channel * a.to.channel, base = int64_t(top) * a.to_row;
    const int to_next = rows.apart * a.to_row;
    int own[Q];  // offsets in a row of x; negative outside
#pragma unroll
    for (int q = 0; q < Q; ++q) {
      const int at = columns.first - a.columns.padding + q * columns.apart;
      own[q] = tile.real && unsigned(at) < unsigned(a.columns.size) ? at * a.to_column : -1;
    }
    const auto has = [&](int r) { return unsigned(top + r * rows.apart) < unsigned(a.rows.size); };
    A sum[R][Q] = {};
    T center[R][Q] = {};
    if (to_sums) {
      const T* x = byte_offset(a.x + plane, base);
#pragma unroll
      for (int r = 0; r < R; ++r) load_taps(byte_offset(x, int64_t(r) * to_next), has(r), own, center[r]);
    }
    for (int index = 0; index < chunks; ++index) {
      const Chunk chunk(a, to_sums ? blockIdx.y : index);
      if (chunks > 1 || start < a.shared * block.threads) read_taps<Form>(a, block, chunk, shared, taps);
      const int anchor_u = a.rows.anchor - chunk.u, anchor_v = a.columns.anchor - chunk.v;
      int offsets[N];
      column_offsets<Form>(a, tile, columns, chunk, offsets);
      const auto output = [&](int i) {  // row of grad_out; negative if there is none
        if (STEP) return rows.output + (i - B::BEFORE - chunk.u / std::max(STEP, 1)) * a.rows.apart;
        const int shifted = rows.first + i / KH - (chunk.u + i % KH) * a.rows.dilation;
        const int at = int(a.rows.by_stride(max(shifted, 0)));
        return shifted >= 0 && at * a.rows.stride == shifted && i % KH < chunk.height ? at : -1;
      };
      const T* in = a.in + tile.batch * a.from.batch + tile.channel * a.from.channel;
      const T* from = byte_offset(in, STEP ? int64_t(output(0)) * a.from_row : 0);
      const int next = a.rows.apart * a.from_row;
      T values[AHEAD + 1][N];
      const auto prefetch = [&](int i, T(&to)[N]) {
        const int at = output(i);
        const int64_t distance = STEP ? int64_t(i) * next : int64_t(at) * a.from_row;
        load_taps(byte_offset(from, distance), unsigned(at) < unsigned(a.rows.out_size), offsets, to);
      };
#pragma unroll
      for (int i = 0; i < AHEAD && i < ROWS; ++i) prefetch(i, values[i]);
      A wide[R][Q];
#pragma unroll
      for (int r = 0; r < R; ++r)
#pragma unroll
        for (int q = 0; q < Q; ++q) wide[r][q] = A(center[r][q]);
#pragma unroll
      for (int i = 0; i < ROWS; ++i) {
        if (i + AHEAD < ROWS) prefetch(i + AHEAD, values[(i + AHEAD) % (AHEAD + 1)]);
        A row[N];
#pragma unroll
        for (int j = 0; j < N; ++j) row[j] = A(values[i % (AHEAD + 1)][j]);
        add_row<Form>(i, row, wide, taps, chunk, anchor_u, anchor_v, sum, tap_sums);
      }
    }
    if (!a.out) continue;
    T* out = byte_offset(a.out + plane, base);
#pragma unroll
    for (int r = 0; r < R; ++r)
#pragma unroll
      for (int q = 0; q < Q; ++q)
        if (has(r) && own[q] >= 0) *byte_offset(byte_offset(out, int64_t(r) * to_next), own[q]) = T(sum[r][q]);
  }
  if (to_sums) write_chunk<Form>(a, block, Chunk(a, blockIdx.y), tap_sums, warp_sums);
}

// Blocks that share the tiles of a channel, each with a partial sum: several tiles per thread, for every block has to
// add up its threads' sums.
template <class T>
unsigned partial_sums(const GenericArgs<T>& a) {
  const int64_t chunks = int64_t(a.rows.chunks) * a.columns.chunks, full = a.shared;
  const int64_t enough = (ENOUGH_BLOCKS + a.across * chunks - 1) / (a.across * chunks);
  return unsigned(std::max((full + MOST_TILES - 1) / MOST_TILES, std::min((full + 1) / 2, enough)));
}

template <class T>
int64_t try_launch_generic_backward(const Conv2dArrays<T>& arrays, const Conv2dShape& s, cudaStream_t stream) {
  return with_form<sizeof(T)>(s, [&](auto form) -> int64_t {
    using Form = decltype(form);
    constexpr int MOST_CHUNKS = 65535;  // blocks along y that CUDA takes
    const auto kernel = depthwise_conv2d_generic_backward<T, Form>;
    GenericArgs<T> a{arrays};
    if (!divide_work<Form>(a, s, sizeof(T), Pass::backward)) return 0;
    const int64_t chunks = int64_t(a.rows.chunks) * a.columns.chunks;
    if (chunks > MOST_CHUNKS) return 0;
    if (a.out && (chunks > 1 || !a.partials)) {
      GenericArgs<T> to_x = a;
      to_x.partials = nullptr;
      kernel<<<a.shared * a.across, THREADS_2D, 0, stream>>>(to_x);
      a.out = nullptr;
    }
    a.shared = partial_sums(a);
    if (a.partials) kernel<<<dim3(a.shared * a.across, unsigned(chunks)), THREADS_2D, 0, stream>>>(a);
    return a.shared;
  });
}

int64_t generic_parts(const Conv2dShape& s, int bytes) {
  const auto parts = [&](auto form) -> int64_t {
    GenericArgs<float> a{};
    return divide_work<decltype(form)>(a, s, bytes, Pass::backward) ? partial_sums(a) : 0;
  };
  return bytes == 8 ? with_form<8>(s, parts) : bytes == 4 ? with_form<4>(s, parts) : with_form<2>(s, parts);
}

#define FOR_TYPE(T) \
  template int64_t try_launch_generic_backward(const Conv2dArrays<T>&, const Conv2dShape&, cudaStream_t);
FOR_TYPE(float)
FOR_TYPE(double)
FOR_TYPE(__half)
FOR_TYPE(__nv_bfloat16)
#undef FOR_TYPE

}  // namespace nerfkit
