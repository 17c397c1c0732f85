// SPDX-License-Identifier: Apache-2.0
// Any kernel, stride, padding and dilation: the convolution. A thread has the accumulators of a column of outputs.

#include "depthwise_conv2d/generic_forms.cuh"

namespace nerfkit {

template <class T, class Form>
__global__ void __launch_bounds__(THREADS_2D) depthwise_conv2d_generic_forward(const GenericArgs<T> a) {
  using A = acc_t<T>;
  constexpr int KH = Form::KH, KW = Form::KW, STEP = Form::STEP, R = Form::rows(Pass::forward), AHEAD = Form::AHEAD;
  constexpr int ROWS = STEP ? (R - 1) * STEP + KH : R * KH;  // of inputs, one after the other
  const GenericBlock block(a);
  const GenericTile tile(a, block, block.part * block.threads);
  const int first = tile.row * R * a.rows.apart + tile.row_class;
  const T* in = a.in + tile.batch * a.from.batch + tile.channel * a.from.channel;
  __shared__ A shared[WEIGHTS_OF_BLOCK<Form::TAPS>];
  const A bias = a.bias && tile.real ? A(a.bias[tile.channel]) : A(0);
  A sum[R];
#pragma unroll
  for (int r = 0; r < R; ++r) sum[r] = bias;
  const int chunks = Form::EXACT ? 1 : a.rows.chunks * a.columns.chunks;
  for (int index = 0; index < chunks; ++index) {
    const Chunk chunk(a, index);
    A taps[Form::TAPS];
    read_taps<Form>(a, block, chunk, shared, taps);
    int offsets[KW];
#pragma unroll
    for (int v = 0; v < KW; ++v) {
      const int at = tile.column * a.columns.stride - a.columns.padding + (chunk.v + v) * a.columns.dilation;
      const bool inside = tile.real && unsigned(at) < unsigned(a.columns.size) && (Form::EXACT || v < chunk.width);
      offsets[v] = inside ? at * a.from_column : -1;
    }
    const int top = first * a.rows.stride - a.rows.padding + chunk.u * a.rows.dilation;
    const int last = STEP ? (R - 1) * STEP + chunk.height : ROWS;
    T values[AHEAD + 1][KW];
    const T* from = byte_offset(in, int64_t(top) * a.from_row);
    const int to_next = a.rows.dilation * a.from_row;
    const auto prefetch = [&](int i, T(&to)[KW]) {
      const int below = STEP ? i : i / KH * a.rows.step + i % KH;
      const bool inside = unsigned(top + below * a.rows.dilation) < unsigned(a.rows.size);
      const bool wanted = Form::EXACT || (STEP ? i < last : i % KH < chunk.height);
      load_taps(byte_offset(from, int64_t(below) * to_next), inside && wanted, offsets, to);
    };
#pragma unroll
    for (int i = 0; i < AHEAD && i < ROWS; ++i) prefetch(i, values[i]);
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
      if (i + AHEAD < ROWS) prefetch(i + AHEAD, values[(i + AHEAD) % (AHEAD + 1)]);
      A row[KW];
#pragma unroll
      for (int v = 0; v < KW; ++v) row[v] = A(values[i % (AHEAD + 1)][v]);
#pragma unroll
      for (int r = 0; r < R; ++r) {
        const int u = STEP ? i - r * STEP : i / KH == r ? i % KH : -1;
        if (u < 0 || u >= KH || (!Form::EXACT && u >= chunk.height)) continue;
#pragma unroll
        for (int v = 0; v < KW; ++v) sum[r] += taps[u * KW + v] * row[v];
      }
    }
  }
  T* out = a.out + tile.batch * a.to.batch + tile.channel * a.to.channel;
  out = byte_offset(out, int64_t(first) * a.to_row + int64_t(tile.column) * a.to_column);
  const int to_next = a.rows.apart * a.to_row;
#pragma unroll
  for (int r = 0; r < R; ++r)
    if (tile.real && first + r * a.rows.apart < a.rows.out_size) *byte_offset(out, int64_t(r) * to_next) = T(sum[r]);
}

template <class T>
int64_t try_launch_generic_forward(const Conv2dArrays<T>& arrays, const Conv2dShape& s, cudaStream_t stream) {
  return with_form<sizeof(T)>(s, [&](auto form) -> int64_t {
    using Form = decltype(form);
    GenericArgs<T> a{arrays};
    if (!divide_work<Form>(a, s, sizeof(T), Pass::forward)) return 0;
    depthwise_conv2d_generic_forward<T, Form><<<a.shared * a.across, THREADS_2D, 0, stream>>>(a);
    return 1;
  });
}

#define FOR_TYPE(T) \
  template int64_t try_launch_generic_forward(const Conv2dArrays<T>&, const Conv2dShape&, cudaStream_t);
FOR_TYPE(float)
FOR_TYPE(double)
FOR_TYPE(__half)
FOR_TYPE(__nv_bfloat16)
#undef FOR_TYPE

}  // namespace nerfkit
