// SPDX-License-Identifier: Apache-2.0
// Kernels of 3, 5 and 7, square or of one row, with stride and dilation 1 that keep the picture's size, are computed from
// registers: a value is loaded once for all the taps of a column. Contiguous pictures: a thread takes V columns and R rows.
// Channels last: a lane takes two channels and walks down V columns with the sums of the rows that the kernel covers. The
// same over grad_out, with the kernel flipped, gives the gradients of x and of the weight in one pass.
// Anything else: a thread a value.

#include "depthwise_conv2d.h"
#include "partial_sums.cuh"

namespace nerfkit {
namespace {

constexpr int V = 4;  // columns of a strip
constexpr int THREADS_2D = 128;
constexpr int WARPS_2D = THREADS_2D / 32;

using Strides = Conv2dShape::Strides;

template <class T>
struct Walk {
  const T* in;      // x, or grad_out for the backward pass
  const T* weight;  // [C, KH * KW]
  const T* bias;
  T* out;           // null if only the weight's gradient is wanted
  const T* x;       // backward: to be multiplied with the window
  acc_t<T>* partials;  // [parts, C, KH * KW + 1], or null
  int channels, batch, height, width;
  Strides strides;
};

// N columns of a row from `first` on, zero outside the picture, CH neighbouring channels of each.
// VECTOR: the V columns from first + (N - V) / 2 on are inside and aligned, as are those before and after them.
template <class T, int N, int CH, bool VECTOR>
__device__ __forceinline__ void load_row(const T* row, int first, int width, int column, acc_t<T> (&to)[N][CH]) {
  using A = acc_t<T>;
  if constexpr (VECTOR) {
    constexpr int HALO = (N - V) / 2;
    const int middle = first + HALO;
    A left[V] = {}, center[V], right[V] = {};
    load(row + middle, center);
    if (HALO && middle > 0) load(row + middle - V, left);
    if (HALO && middle + V < width) load(row + middle + V, right);
#pragma unroll
    for (int i = 0; i < N; ++i)
      to[i][0] = i < HALO ? left[(i + V - HALO) % V] : i < HALO + V ? center[(i - HALO + V) % V] : right[(i - HALO) % V];
  } else if (first >= 0 && first + N <= width) {
    const T* from = row + first * column;
#pragma unroll
    for (int i = 0; i < N; ++i) load(from + i * column, to[i]);
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) {
#pragma unroll
      for (int ch = 0; ch < CH; ++ch) to[i][ch] = A(0);
      if (first + i >= 0 && first + i < width) load(row + (first + i) * column, to[i]);
    }
  }
}

template <class T, int CH, bool VECTOR>
__device__ __forceinline__ void store_row(T* row, int first, int width, int column, const acc_t<T> (&from)[V][CH]) {
  if constexpr (VECTOR) {
    const acc_t<T> together[V] = {from[0][0], from[1][0], from[2][0], from[3][0]};
    store(row + first, together);
  } else {
#pragma unroll
    for (int i = 0; i < V; ++i)
      if (first + i < width) store(row + (first + i) * column, from[i]);
  }
}

// The block's sums of one channel, or of CH neighbouring channels a lane, added in a fixed order.
template <class A, int SUMS, int CH>
__device__ __forceinline__ void write_partials(const A (&sums)[SUMS][CH], A* partials, int channel, int channels, bool lanes_are_channels) {
  __shared__ A of_warp[WARPS_2D][SUMS][32 * CH];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
  for (int k = 0; k < SUMS; ++k) {
    if (lanes_are_channels) {
#pragma unroll
      for (int ch = 0; ch < CH; ++ch) of_warp[warp][k][lane * CH + ch] = sums[k][ch];
    } else {
      const A sum = sum_lanes(sums[k][0], 32);
      if (lane == 0) of_warp[warp][k][0] = sum;
    }
  }
  __syncthreads();
  const int width = lanes_are_channels ? 32 * CH : 1, first = channel - (lanes_are_channels ? lane * CH : 0);
  for (int i = threadIdx.x; i < width * SUMS; i += THREADS_2D) {
    const int c = i / SUMS, k = i % SUMS;
    if (first + c >= channels) break;
    A total = 0;
    for (int w = 0; w < WARPS_2D; ++w) total += of_warp[w][k][c];
    partials[(int64_t(blockIdx.y) * channels + first + c) * SUMS + k] = total;
  }
}

// Contiguous: a block takes the planes of one channel, a thread V columns and R rows of one.
template <class T, int KH, int KW, int R, bool VECTOR, bool BACKWARD>
__global__ void __launch_bounds__(THREADS_2D) tile(const Walk<T> a) {
  using A = acc_t<T>;
  constexpr int N = V + KW - 1, TAPS = KH * KW;
  const int c = blockIdx.x;
  A w[TAPS], sums[TAPS + 1][1] = {};
#pragma unroll
  for (int k = 0; k < TAPS; ++k) w[BACKWARD ? TAPS - 1 - k : k] = A(a.weight[c * TAPS + k]);
  const A start = !BACKWARD && a.bias ? A(a.bias[c]) : A(0);
  const unsigned tiles_x = (a.width + V - 1) / V, tiles_y = (a.height + R - 1) / R, tiles = a.batch * tiles_y * tiles_x;
  for (unsigned at = blockIdx.y * THREADS_2D + threadIdx.x; at < tiles; at += gridDim.y * THREADS_2D) {
    const unsigned line = at / tiles_x, b = line / tiles_y;
    const int x0 = int(at - line * tiles_x) * V, y0 = int(line - b * tiles_y) * R;
    const int64_t base = b * a.strides.batch + c * a.strides.channel;
    A sum[R][V][1], center[R][V][1];
#pragma unroll
    for (int r = 0; r < R; ++r) {
#pragma unroll
      for (int i = 0; i < V; ++i) sum[r][i][0] = start, center[r][i][0] = A(0);
      if (BACKWARD && a.partials && y0 + r < a.height)
        load_row<T, V, 1, VECTOR>(a.x + base + (y0 + r) * a.strides.row, x0, a.width, 1, center[r]);
    }
#pragma unroll
    for (int i = 0; i < R + KH - 1; ++i) {
      const int y = y0 + i - KH / 2;
      A window[N][1] = {};
      if (y >= 0 && y < a.height) load_row<T, N, 1, VECTOR>(a.in + base + y * a.strides.row, x0 - KW / 2, a.width, 1, window);
#pragma unroll
      for (int u = 0; u < KH; ++u) {
        const int r = i - u;
        if (r < 0 || r >= R) continue;
#pragma unroll
        for (int v = 0; v < KW; ++v)
#pragma unroll
          for (int j = 0; j < V; ++j) {
            sum[r][j][0] += w[u * KW + v] * window[v + j][0];
            if (BACKWARD) sums[u * KW + v][0] += center[r][j][0] * window[v + j][0];
          }
      }
      if (BACKWARD && i >= KH / 2 && i - KH / 2 < R) {
#pragma unroll
        for (int j = 0; j < V; ++j) sums[TAPS][0] += window[KW / 2 + j][0];  // zero outside the picture
      }
    }
#pragma unroll
    for (int r = 0; r < R; ++r)
      if (a.out && y0 + r < a.height)
        store_row<T, 1, VECTOR>(a.out + base + (y0 + r) * a.strides.row, x0, a.width, 1, sum[r]);
    if (!BACKWARD) break;  // the grid has a thread for every tile
  }
  if constexpr (BACKWARD) {
    if (!a.partials) return;
    A flipped[TAPS + 1][1];
#pragma unroll
    for (int k = 0; k <= TAPS; ++k) flipped[k][0] = sums[k < TAPS ? TAPS - 1 - k : TAPS][0];
    write_partials<A, TAPS + 1, 1>(flipped, a.partials, c, a.channels, false);
  }
}

// Channels last: neighbouring lanes take neighbouring channels, CH of them each, and a warp takes a strip of the picture.
template <class T, int K, int CH, bool BACKARD>
__global__ void __launch_bounds__(THREADS_2D, K * K * CH * (BACKARD ? 2 : 1) < 49 ? 4 : 2) walk(const Walk<T> a, int strip_rows) {
  using A = acc_t<T>;
  constexpr int N = V + K - 1, TAPS = K * K, HALF = K / 2;
  const int c = (blockIdx.x * 32 + threadIdx.x % 32) * CH;
  const bool real = c < a.channels;
  A w[TAPS][CH], sums[TAPS + 1][CH] = {}, start[CH] = {};
#pragma unroll
  for (int ch = 0; ch < CH; ++ch) {
    const T* weight = a.weight + (real ? c + ch : 0) * TAPS;
#pragma unroll
    for (int k = 0; k < TAPS; ++k) w[BACKARD ? TAPS - 1 - k : k][ch] = A(weight[k]);
    if (!BACKARD && a.bias && real) start[ch] = A(a.bias[c + ch]);
  }
  const unsigned tiles_x = (a.width + V - 1) / V, tiles_y = (a.height + strip_rows - 1) / strip_rows;
  const unsigned strip = blockIdx.y * WARPS_2D + threadIdx.x / 32;
  const unsigned line = strip / tiles_x, b = line / tiles_y;
  const int x0 = int(strip - line * tiles_x) * V, first = int(line - b * tiles_y) * strip_rows;
  const int last = real && b < a.batch ? min(first + strip_rows, a.height) : first, column = int(a.strides.column);
  const int64_t base = b * a.strides.batch + c * a.strides.channel, row = a.strides.row;

  // Row y of the input adds to the outputs y + HALF - u; output row i keeps its sum in slot i % K, as seen from y.
  A sum[K][V][CH], center[K][V][CH] = {};
#pragma unroll
  for (int r = 0; r < K; ++r)
#pragma unroll
    for (int i = 0; i < V; ++i)
#pragma unroll
      for (int ch = 0; ch < CH; ++ch) sum[r][i][ch] = start[ch];
  for (int y0 = first - HALF; y0 < last + HALF; y0 += K) {
#pragma unroll
    for (int i = 0; i < K; ++i) {
      const int y = y0 + i, newest = y + HALF, done = y - HALF;
      A window[N][CH] = {};
      if (y >= 0 && y < a.height && y < last + HALF) load_row<T, N, CH, false>(a.in + base + y * row, x0 - K / 2, a.width, column, window);
      if (BACKARD && a.partials) {
#pragma unroll
        for (int j = 0; j < V; ++j)
#pragma unroll
          for (int ch = 0; ch < CH; ++ch) center[i % K][j][ch] = A(0);
        if (newest >= first && newest < last) load_row<T, V, CH, false>(a.x + base + newest * row, x0, a.width, column, center[i % K]);
        if (y >= first && y < last) {
#pragma unroll
          for (int j = 0; j < V; ++j)
#pragma unroll
            for (int ch = 0; ch < CH; ++ch) sums[TAPS][ch] += window[K / 2 + j][ch];  // zero outside the picture
        }
      }
#pragma unroll
      for (int u = 0; u < K; ++u)
#pragma unroll
        for (int v = 0; v < K; ++v)
#pragma unroll
          for (int j = 0; j < V; ++j)
#pragma unroll
            for (int ch = 0; ch < CH; ++ch) {
              const int slot = (i + K - u) % K;
              sum[slot][j][ch] += w[u * K + v][ch] * window[v + j][ch];
              if (BACKARD) sums[u * K + v][ch] += center[slot][j][ch] * window[v + j][ch];
            }
      A(&ready)[V][CH] = sum[(i + 1) % K];
      if (a.out && done >= first && done < last) store_row<T, CH, false>(a.out + base + done * row, x0, a.width, column, ready);
#pragma unroll
      for (int j = 0; j < V; ++j)
#pragma unroll
        for (int ch = 0; ch < CH; ++ch) ready[j][ch] = start[ch];
    }
  }
  if constexpr (BACKARD) {
    if (!a.partials) return;
    A flipped[TAPS + 1][CH];
#pragma unroll
    for (int k = 0; k <= TAPS; ++k)
#pragma unroll
      for (int ch = 0; ch < CH; ++ch) flipped[k][ch] = sums[k < TAPS ? TAPS - 1 - k : TAPS][ch];
    write_partials<A, TAPS + 1, CH>(flipped, a.partials, c, a.channels, true);
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
  if (s.channels_last && s.channels % 2) return 0;
  if (s.y.kernel == s.x.kernel) return s.x.kernel;
  return s.y.kernel == 1 && s.y.size == 1 && s.x.kernel < 7 && !s.channels_last ? -s.x.kernel : 0;
}

// Channels of a lane, channels last: a pair, unless the sums of the weight's gradient leave no registers for it.
int lane_channels(const Conv2dShape& s, bool backward) { return backward && s.x.kernel == 7 ? 1 : 2; }

int tile_rows(const Conv2dShape& s, bool backward) { return s.y.kernel == 1 || (backward && s.x.kernel != 5) ? 4 : 8; }

// How the work on a picture is shared out.
struct Shares {
  int rows;    // of a strip or tile
  dim3 grid;   // across channels, and blocks that share the strips of a channel
};

Shares shares_of(const Conv2dShape& s, bool backward) {
  constexpr int64_t ENOUGH_THREADS = 1 << 17, SHORTEST = 8, ENOUGH_BLOCKS = 2048;
  const int64_t columns = (s.x.size + V - 1) / V;
  if (s.channels_last) {  // strips as long as they can be while there are enough to fill a GPU
    const int64_t across = blocks_for(s.channels, 32 * lane_channels(s, backward));
    const int64_t threads_of_row = std::max<int64_t>(1, s.batch * columns * across * 32);
    const int64_t wanted = (ENOUGH_THREADS + threads_of_row - 1) / threads_of_row;
    const int64_t strips = std::max<int64_t>(1, std::min<int64_t>(wanted, s.y.size / SHORTEST));
    const int64_t rows = (s.y.size + strips - 1) / strips;
    return {int(rows), dim3(across, blocks_for(s.batch * columns * ((s.y.size + rows - 1) / rows), WARPS_2D))};
  }
  const bool flat = s.y.kernel == 1;  // the batch takes the place of the rows
  const int64_t R = tile_rows(s, backward), rows = flat ? s.batch : s.y.size;
  const int64_t tiles = (flat ? 1 : s.batch) * ((rows + R - 1) / R) * columns;
  const int64_t full = blocks_for(tiles, THREADS_2D);
  if (!backward) return {int(R), dim3(unsigned(s.channels), full)};
  // Several tiles a thread, for every block has to add up its threads' sums.
  const int64_t parts = std::max((full + 15) / 16, std::min((full + 1) / 2, (ENOUGH_BLOCKS + s.channels - 1) / s.channels));
  return {int(R), dim3(unsigned(s.channels), unsigned(parts))};
}

template <class T, int KH, int KW, bool BACKWARD>
void launch_walk(const Walk<T>& a, const Conv2dShape& s, const Shares& shares, bool vector, cudaStream_t stream) {
  constexpr int R = KH == 1 || (BACKWARD && KW != 5) ? 4 : 8;
  if constexpr (KH > 1)
    if (s.channels_last) {
      walk<T, KW, BACKWARD && KW == 7 ? 1 : 2, BACKWARD><<<shares.grid, THREADS_2D, 0, stream>>>(a, shares.rows);
      return;
    }
  auto kernel = vector ? tile<T, KH, KW, R, true, BACKWARD> : tile<T, KH, KW, R, false, BACKWARD>;
  kernel<<<shares.grid, THREADS_2D, 0, stream>>>(a);
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
    const size_t bytes = (s.channels_last ? 2 : V) * sizeof(T);
    const bool aligned_all = aligned(a.in, bytes) && aligned(a.out, bytes) && aligned(a.x, bytes);
    const Shares shares = shares_of(s, BACKWARD);
    if ((s.channels_last && !aligned_all) || shares.grid.y > 65535 || shares.grid.y == 0) return false;
    const bool vector = !s.channels_last && s.x.size % V == 0 && aligned_all;
    switch (strip_kernel(s)) {
      case 3: launch_walk<T, 3, 3, BACKWARD>(a, s, shares, vector, stream); return true;
      case 5: launch_walk<T, 5, 5, BACKWARD>(a, s, shares, vector, stream); return true;
      case 7: launch_walk<T, 7, 7, BACKWARD>(a, s, shares, vector, stream); return true;
      case -3: launch_walk<T, 1, 3, BACKWARD>(a, s, shares, vector, stream); return true;
      case -5: launch_walk<T, 1, 5, BACKWARD>(a, s, shares, vector, stream); return true;
      default: return false;
    }
  }
}

// Sums of the weight's gradient that a channel has; at least one.
int parts_of(const Conv2dShape& s) { return strip_kernel(s) ? int(std::max(1u, shares_of(s, true).grid.y)) : 1; }

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
    int parts = parts_of(s);
    if (!walk_strips<T, true>(a, s, on)) {
      parts = 1;
      if (grad_x && n) any_to_x<<<blocks_for(n), THREADS, 0, on>>>((const T*)grad_out, (const T*)weight, (T*)grad_x, s, n);
      if (partials)
        any_to_weight<<<dim3(s.channels, taps + 1), THREADS, 0, on>>>((const T*)grad_out, (const T*)x, partials, s);
    }
    if (partials) launch_add_partials<T>(partials, grad_weight, grad_bias, parts, s.channels, taps, stream);
  });
  return launched();
}

int64_t conv2d_scratch(const Conv2dShape& s) { return int64_t(parts_of(s)) * s.channels * (s.y.kernel * s.x.kernel + 1); }

}  // namespace nerfkit
