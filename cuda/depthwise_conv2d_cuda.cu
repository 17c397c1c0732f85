// SPDX-License-Identifier: Apache-2.0
// Kernels of 3, 5 and 7, square or of one row, with stride and dilation 1 that keep the picture's size: a thread computes
// a strip of V columns and R rows from a window that it slides down, so that a value is loaded once for all the taps of a
// column. The same walk over grad_out, with the kernel flipped, gives the gradients of x and of the weight.
// Anything else: a thread a value.

#include "depthwise_conv2d.h"
#include "partial_sums.cuh"

namespace nerfkit {
namespace {

constexpr int V = 4;           // columns of a strip
constexpr int THREADS_2D = 128;
constexpr int MAX_PARTS = 64;  // blocks of one channel that sum up the weight gradient

using Strides = Conv2dShape::Strides;

template <class T>
struct Walk {
  const T* in;      // x, or grad_out for the backward pass
  const T* weight;  // [C, KH * KW]
  const T* bias;
  T* out;           // null if only the weight's gradient is wanted
  const T* x;       // backward: to be multiplied with the window
  acc_t<T>* partials;  // [parts, C, KH * KW + 1]
  int channels, batch, height, width;
  Strides strides;
};

// Columns first .. first + N - 1 of a row, zero outside the picture. Vectors: V columns from `middle` on are inside and
// aligned, as are the V before and after them where the picture has them.
template <class T, int N, bool VECTOR>
__device__ __forceinline__ void load_row(const T* row, int first, int middle, int width, int64_t column, acc_t<T> (&to)[N]) {
  if constexpr (VECTOR) {
    constexpr int HALO = (N - V) / 2;
    acc_t<T> left[V] = {}, center[V], right[V] = {};
    load(row + middle, center);
    if (HALO && middle > 0) load(row + middle - V, left);
    if (HALO && middle + V < width) load(row + middle + V, right);
#pragma unroll
    for (int i = 0; i < N; ++i)
      to[i] = i < HALO ? left[V - HALO + i < 0 ? 0 : V - HALO + i] : i < HALO + V ? center[(i - HALO) & (V - 1)] : right[(i - HALO - V) & (V - 1)];
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const int at = first + i;
      to[i] = at >= 0 && at < width ? acc_t<T>(row[at * column]) : acc_t<T>(0);
    }
  }
}

template <class T, bool VECTOR>
__device__ __forceinline__ void store_row(T* row, int first, int width, int64_t column, const acc_t<T> (&from)[V]) {
  if constexpr (VECTOR) {
    store(row + first, from);
  } else {
#pragma unroll
    for (int i = 0; i < V; ++i)
      if (first + i < width) row[(first + i) * column] = T(from[i]);
  }
}

// Adds the block's sums of one channel, or of 32 neighbouring ones, in a fixed order.
template <class A, int SUMS, bool LANES_ARE_CHANNELS>
__device__ __forceinline__ void write_partials(const A (&sums)[SUMS], A* partials, int channel, int channels) {
  constexpr int WARPS = THREADS_2D / 32;
  __shared__ A of_warp[WARPS][LANES_ARE_CHANNELS ? 32 : 1];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  A* to = partials + (int64_t(blockIdx.y) * channels + channel) * SUMS;
#pragma unroll
  for (int k = 0; k < SUMS; ++k) {
    const A sum = LANES_ARE_CHANNELS ? sums[k] : sum_lanes(sums[k], 32);
    __syncthreads();
    if (LANES_ARE_CHANNELS || lane == 0) of_warp[warp][LANES_ARE_CHANNELS ? lane : 0] = sum;
    __syncthreads();
    if (warp == 0 && (LANES_ARE_CHANNELS || lane == 0) && channel < channels) {
      A total = 0;
      for (int w = 0; w < WARPS; ++w) total += of_warp[w][LANES_ARE_CHANNELS ? lane : 0];
      to[k] = total;
    }
  }
}

template <class T, int KH, int KW, int R, bool VECTOR, bool LANES_ARE_CHANNELS, bool BACKWARD>
__global__ void __launch_bounds__(THREADS_2D) walk(const Walk<T> a) {
  using A = acc_t<T>;
  constexpr int N = V + KW - 1, TAPS = KH * KW;
  const int lane = threadIdx.x % 32;
  const int c = LANES_ARE_CHANNELS ? blockIdx.x * 32 + lane : blockIdx.x;
  const bool real = c < a.channels;
  A w[TAPS], sums[TAPS + 1] = {};
#pragma unroll
  for (int k = 0; k < TAPS; ++k) w[BACKWARD ? TAPS - 1 - k : k] = real ? A(a.weight[c * TAPS + k]) : A(0);
  const A start = !BACKWARD && a.bias && real ? A(a.bias[c]) : A(0);

  const int tiles_x = (a.width + V - 1) / V, tiles_y = (a.height + R - 1) / R;
  const int workers = LANES_ARE_CHANNELS ? THREADS_2D / 32 : THREADS_2D;
  const int worker = LANES_ARE_CHANNELS ? threadIdx.x / 32 : threadIdx.x;
  const int64_t strips = int64_t(a.batch) * tiles_y * tiles_x;
  for (int64_t strip = int64_t(blockIdx.y) * workers + worker; real && strip < strips; strip += int64_t(gridDim.y) * workers) {
    const int x0 = int(strip % tiles_x) * V, y0 = int(strip / tiles_x % tiles_y) * R;
    const int64_t base = strip / tiles_x / tiles_y * a.strides.batch + c * a.strides.channel;
    A sum[R][V], center[R][V];
#pragma unroll
    for (int r = 0; r < R; ++r) {
#pragma unroll
      for (int i = 0; i < V; ++i) sum[r][i] = start, center[r][i] = A(0);
      if (BACKWARD && a.partials && y0 + r < a.height)
        load_row<T, V, VECTOR>(a.x + base + (y0 + r) * a.strides.row, x0, x0, a.width, a.strides.column, center[r]);
    }
#pragma unroll
    for (int i = 0; i < R + KH - 1; ++i) {
      const int y = y0 + i - KH / 2;
      A window[N];
      if (y >= 0 && y < a.height) {
        load_row<T, N, VECTOR>(a.in + base + y * a.strides.row, x0 - KW / 2, x0, a.width, a.strides.column, window);
      } else {
#pragma unroll
        for (int j = 0; j < N; ++j) window[j] = A(0);
      }
#pragma unroll
      for (int u = 0; u < KH; ++u) {
        const int r = i - u;
        if (r < 0 || r >= R) continue;
#pragma unroll
        for (int v = 0; v < KW; ++v)
#pragma unroll
          for (int j = 0; j < V; ++j) {
            sum[r][j] += w[u * KW + v] * window[v + j];
            if (BACKWARD) sums[u * KW + v] += center[r][j] * window[v + j];
          }
      }
      if (BACKWARD && i >= KH / 2 && i - KH / 2 < R) {
#pragma unroll
        for (int j = 0; j < V; ++j) sums[TAPS] += window[KW / 2 + j];  // outside the picture it is zero
      }
    }
    if (!a.out) continue;
#pragma unroll
    for (int r = 0; r < R; ++r)
      if (y0 + r < a.height)
        store_row<T, VECTOR>(a.out + base + (y0 + r) * a.strides.row, x0, a.width, a.strides.column, sum[r]);
  }
  if constexpr (BACKWARD) {
    if (!a.partials) return;
    A flipped[TAPS + 1];
#pragma unroll
    for (int k = 0; k < TAPS; ++k) flipped[k] = sums[TAPS - 1 - k];
    flipped[TAPS] = sums[TAPS];
    write_partials<A, TAPS + 1, LANES_ARE_CHANNELS>(flipped, a.partials, c, a.channels);
  }
}

template <class T>
__global__ void __launch_bounds__(THREADS) any_forward(const T* __restrict__ x, const T* __restrict__ weight,
                                                       const T* __restrict__ bias, T* __restrict__ out, Conv2dShape s, int64_t n) {
  const int64_t place = int64_t(blockIdx.x) * THREADS + threadIdx.x;
  if (place >= n) return;
  const Strides to = s.strides(s.y.out_size, s.x.out_size), from = s.strides(s.y.size, s.x.size);
  const int64_t b = place / to.batch;
  const int64_t c = place / to.channel % s.channels;
  const int i = int(place / to.row % s.y.out_size), j = int(place / to.column % s.x.out_size);
  const T *plane = x + b * from.batch + c * from.channel, *w = weight + c * s.y.kernel * s.x.kernel;
  acc_t<T> sum = bias ? acc_t<T>(bias[c]) : acc_t<T>(0);
  int u0, u1, v0, v1;
  taps_inside(s.y, i, u0, u1);
  taps_inside(s.x, j, v0, v1);
  for (int u = u0; u < u1; ++u)
    for (int v = v0; v < v1; ++v)
      sum += acc_t<T>(w[u * s.x.kernel + v]) *
             acc_t<T>(plane[(i * s.y.stride - s.y.padding + u * s.y.dilation) * from.row +
                            (j * s.x.stride - s.x.padding + v * s.x.dilation) * from.column]);
  out[place] = T(sum);
}

template <class T>
__global__ void __launch_bounds__(THREADS) any_to_x(const T* __restrict__ grad_out, const T* __restrict__ weight,
                                                    T* __restrict__ grad_x, Conv2dShape s, int64_t n) {
  const int64_t place = int64_t(blockIdx.x) * THREADS + threadIdx.x;
  if (place >= n) return;
  const Strides to = s.strides(s.y.size, s.x.size), from = s.strides(s.y.out_size, s.x.out_size);
  const int64_t b = place / to.batch;
  const int64_t c = place / to.channel % s.channels;
  const int y = int(place / to.row % s.y.size), x = int(place / to.column % s.x.size);
  const T *plane = grad_out + b * from.batch + c * from.channel, *w = weight + c * s.y.kernel * s.x.kernel;
  acc_t<T> sum = 0;
  for (int u = 0; u < s.y.kernel; ++u)
    for (int v = 0; v < s.x.kernel; ++v) {
      int i, j;
      if (output_of(s.y, y, u, i) && output_of(s.x, x, v, j))
        sum += acc_t<T>(w[u * s.x.kernel + v]) * acc_t<T>(plane[i * from.row + j * from.column]);
    }
  grad_x[place] = T(sum);
}

// A block for a tap of a channel, or for its bias.
template <class T>
__global__ void __launch_bounds__(THREADS) any_to_weight(const T* __restrict__ grad_out, const T* __restrict__ x,
                                                         acc_t<T>* __restrict__ partials, Conv2dShape s) {
  using A = acc_t<T>;
  __shared__ A of_warp[THREADS / 32];
  const int taps = s.y.kernel * s.x.kernel, tap = blockIdx.y;
  const int64_t c = blockIdx.x;
  const int u = tap < taps ? tap / s.x.kernel : 0, v = tap < taps ? tap % s.x.kernel : 0;
  const Strides from = s.strides(s.y.out_size, s.x.out_size), at = s.strides(s.y.size, s.x.size);
  const int64_t outputs = s.batch * s.y.out_size * s.x.out_size;
  A sum = 0;
  for (int64_t n = threadIdx.x; n < outputs; n += THREADS) {
    const int j = int(n % s.x.out_size), i = int(n / s.x.out_size % s.y.out_size);
    const int64_t b = n / s.x.out_size / s.y.out_size;
    const int p = i * s.y.stride - s.y.padding + u * s.y.dilation, q = j * s.x.stride - s.x.padding + v * s.x.dilation;
    const bool inside = p >= 0 && p < s.y.size && q >= 0 && q < s.x.size;
    if (tap < taps && !inside) continue;
    const A grad = A(grad_out[b * from.batch + c * from.channel + i * from.row + j * from.column]);
    sum += tap < taps ? grad * A(x[b * at.batch + c * at.channel + p * at.row + q * at.column]) : grad;
  }
  sum = sum_lanes(sum, 32);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x) return;
  for (int i = 1; i < THREADS / 32; ++i) sum += of_warp[i];
  partials[c * (taps + 1) + tap] = sum;
}

bool keeps_size(const Axis& axis) {
  return axis.stride == 1 && axis.dilation == 1 && axis.kernel % 2 == 1 && axis.padding == axis.kernel / 2;
}

// Side of a kernel that the strips are made for, negative for one of a single row; 0 for any other.
int strip_kernel(const Conv2dShape& s) {
  if (!keeps_size(s.y) || !keeps_size(s.x) || s.x.kernel < 3 || s.x.kernel > 7) return 0;
  if (s.y.kernel == s.x.kernel) return s.x.kernel;
  return s.y.kernel == 1 && s.y.size == 1 && !s.channels_last ? -s.x.kernel : 0;
}

int64_t strips_of(const Conv2dShape& s, int rows) {
  const bool flat = s.y.kernel == 1;  // the batch takes the place of the rows
  return (flat ? 1 : s.batch) * (((flat ? s.batch : s.y.size) + rows - 1) / rows) * ((s.x.size + V - 1) / V);
}

int parts_of(const Conv2dShape& s) {
  if (!strip_kernel(s)) return 1;
  const int64_t workers = s.channels_last ? THREADS_2D / 32 : THREADS_2D;
  const int64_t enough = (strips_of(s, 4) + 2 * workers - 1) / (2 * workers);
  return int(std::max<int64_t>(1, std::min<int64_t>(enough, MAX_PARTS)));
}

template <class T, int KH, int KW, bool BACKWARD>
void launch_walk(Walk<T> a, const Conv2dShape& s, bool vector, cudaStream_t stream) {
  constexpr int R = KW == 7 && BACKWARD ? 4 : 8;
  const int64_t workers = s.channels_last ? THREADS_2D / 32 : THREADS_2D;
  const int64_t parts = BACKWARD && a.partials ? parts_of(s) : std::min<int64_t>((strips_of(s, R) + workers - 1) / workers, 65535);
  const dim3 grid(unsigned(s.channels_last ? (s.channels + 31) / 32 : s.channels), unsigned(parts));
  if (s.channels_last)
    walk<T, KH, KW, R, false, true, BACKWARD><<<grid, THREADS_2D, 0, stream>>>(a);
  else if (vector)
    walk<T, KH, KW, R, true, false, BACKWARD><<<grid, THREADS_2D, 0, stream>>>(a);
  else
    walk<T, KH, KW, R, false, false, BACKWARD><<<grid, THREADS_2D, 0, stream>>>(a);
}

// False if the strips are not made for this.
template <class T, bool BACKWARD>
bool walk_strips(const Walk<T>& start, const Conv2dShape& s, cudaStream_t stream) {
  if constexpr (sizeof(T) == 8) {
    return false;
  } else {
    Walk<T> a = start;
    a.channels = int(s.channels), a.batch = int(s.batch), a.height = s.y.size, a.width = s.x.size;
    a.strides = s.strides(s.y.size, s.x.size);
    if (s.y.kernel == 1) a.batch = 1, a.height = int(s.batch), a.strides.row = a.strides.batch;
    const size_t bytes = V * sizeof(T);
    const bool vector = !s.channels_last && s.x.size % V == 0 && aligned(a.in, bytes) && aligned(a.out, bytes) && aligned(a.x, bytes);
    switch (strip_kernel(s)) {
      case 3: launch_walk<T, 3, 3, BACKWARD>(a, s, vector, stream); return true;
      case 5: launch_walk<T, 5, 5, BACKWARD>(a, s, vector, stream); return true;
      case 7: launch_walk<T, 7, 7, BACKWARD>(a, s, vector, stream); return true;
      case -3: launch_walk<T, 1, 3, BACKWARD>(a, s, vector, stream); return true;
      case -5: launch_walk<T, 1, 5, BACKWARD>(a, s, vector, stream); return true;
      default: return false;
    }
  }
}

}  // namespace

Status depthwise_conv2d(DType dtype, const void* x, const void* weight, const void* bias, void* out, const Conv2dShape& s,
                        Stream stream) {
  const int64_t n = s.batch * s.channels * s.y.out_size * s.x.out_size;
  if (n == 0) return 0;
  dispatch(dtype, [&](auto element) {
    using T = decltype(element);
    const Walk<T> a{(const T*)x, (const T*)weight, (const T*)bias, (T*)out};
    if (walk_strips<T, false>(a, s, (cudaStream_t)stream)) return;
    any_forward<<<blocks_for(n), THREADS, 0, (cudaStream_t)stream>>>((const T*)x, (const T*)weight, (const T*)bias, (T*)out, s, n);
  });
  return launched();
}

Status depthwise_conv2d_bwd(DType dtype, const void* grad_out, const void* x, const void* weight, void* grad_x,
                            void* grad_weight, void* grad_bias, void* scratch, const Conv2dShape& s, Stream stream) {
  const int64_t n = s.batch * s.channels * s.y.size * s.x.size;
  const int taps = s.y.kernel * s.x.kernel;
  const auto on = (cudaStream_t)stream;
  if (s.channels == 0 || (n == 0 && !grad_weight)) return 0;
  dispatch(dtype, [&](auto element) {
    using T = decltype(element);
    auto* partials = grad_weight ? (acc_t<T>*)scratch : nullptr;
    const Walk<T> a{(const T*)grad_out, (const T*)weight, nullptr, (T*)grad_x, (const T*)x, partials};
    if (!walk_strips<T, true>(a, s, on)) {
      if (grad_x && n) any_to_x<<<blocks_for(n), THREADS, 0, on>>>((const T*)grad_out, (const T*)weight, (T*)grad_x, s, n);
      if (partials)
        any_to_weight<<<dim3(s.channels, taps + 1), THREADS, 0, on>>>((const T*)grad_out, (const T*)x, partials, s);
    }
    if (partials) launch_add_partials<T>(partials, grad_weight, grad_bias, parts_of(s), s.channels, taps, stream);
  });
  return launched();
}

int64_t conv2d_scratch(const Conv2dShape& s) { return parts_of(s) * s.channels * (s.y.kernel * s.x.kernel + 1); }

}  // namespace nerfkit
