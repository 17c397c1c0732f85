// SPDX-License-Identifier: Apache-2.0
// Shared memory, of a block and of a warp; features; networks, which take 16 rows at a time, as in mlp/layers.cuh.

#pragma once

#include "lltm/fast_cell.cuh"
#include "mlp/layers.cuh"
#include "render_rays/args.h"
#include "spherical_harmonics/args.h"

namespace nerfkit {
namespace {

constexpr int TILE = 16;          // samples of the queue that the color network takes at a time
constexpr int QUEUE = TILE + 32;  // samples that wait: less than a tile, and one more of each ray
constexpr int GATES = 3 * RAY_STATE;

// Widths, in half values. Rows of matrices are PAD longer than what they hold, so that neighbours are in other banks.
struct Sizes {
  int channels;   // C, padded with zeros to a multiple of 16
  int context;    // columns behind geometry and harmonics: encoded features, then the state
  int taps, lag;  // of the convolution, 1 without; samples by which it is behind
  bool lltm;
  int n_dense;  // levels that are not hashed, which come first

  HD int feature_stride() const { return channels + PAD; }
  HD int color_inputs() const { return GEOMETRY + HARMONICS + context; }
  HD int color_stride() const { return color_inputs() + PAD; }
  HD int gate_stride() const { return RAY_STATE + channels + PAD; }
  HD int queue_stride() const { return GEOMETRY + context + PAD; }
};
constexpr int HIDDEN_STRIDE = RENDER_WIDEST + PAD, SHORT_STRIDE = 16 + PAD;  // of rows of hidden units, of 16 values

HD Sizes sizes_of(const RenderArguments& a) {
  Sizes s{};
  s.channels = (a.levels.n_levels * a.levels.n_features + 15) / 16 * 16;
  s.taps = a.taps ? a.taps : 1;
  s.lag = s.taps / 2;
  s.lltm = a.lltm_weight != nullptr;
  while (s.n_dense < a.levels.n_levels && !level_of(a.levels, s.n_dense).hashed) ++s.n_dense;
  s.context = (a.taps || s.lltm ? s.channels : 0) + (s.lltm ? RAY_STATE : 0);
  return s;
}

// Of shared memory, one part behind the other; each is a multiple of 16 bytes.
struct Parts {
  int used = 0;  // bytes
  HD int take(int bytes) {
    const int at = used;
    used += (bytes + 15) / 16 * 16;
    return at;
  }
};

struct LayerPart {
  int weight, bias;  // [outputs, stride] half values, [outputs] float32

  __device__ __forceinline__ const __half* weight_in(const unsigned char* shared) const {
    return reinterpret_cast<const __half*>(shared + weight);
  }
  template <int N>  // sum [16, 8 N] = the bias in every row
  __device__ __forceinline__ void start(const unsigned char* shared, float (&sum)[N][4]) const {
    start_with(sum, reinterpret_cast<const float*>(shared + bias));
  }
};

// Of a block: offsets in bytes.
struct BlockParts : Parts {
  LayerPart density_in, density_out, color_in, color_middle, color_out, gates;
  int taps;  // [K, C] float32, and behind it the bias [C]

  HD explicit BlockParts(const Sizes& s) {
    const auto layer = [&](int outputs, int stride) {
      const int weight = take(outputs * stride * 2);
      return LayerPart{weight, take(outputs * 4)};
    };
    density_in = layer(RENDER_WIDEST, s.feature_stride());
    density_out = layer(OUT, HIDDEN_STRIDE);
    color_in = layer(RENDER_WIDEST, s.color_stride());
    color_middle = layer(RENDER_WIDEST, HIDDEN_STRIDE);
    color_out = layer(OUT, HIDDEN_STRIDE);
    gates = layer(s.lltm ? GATES : 0, s.gate_stride());
    taps = take(s.context ? (s.taps + 1) * s.channels * 4 : 0);
  }
};

// Of a warp: offsets in bytes from its part.
struct WarpParts : Parts {
  int features;   // [K, 32, feature_stride] of the last K samples of each ray that were kept, in turn
  int geometry;   // [lag + 1, 32, SHORT_STRIDE] in the same way
  int weights;    // [lag + 1, 32] float32
  int harmonics;  // [32, SHORT_STRIDE] of each ray's direction
  int queue;      // [QUEUE, queue_stride] of samples that wait for their color: geometry, encoded, state
  int waiting;    // [QUEUE] their weights, float32
  int owners;     // [QUEUE] their lanes

  HD explicit WarpParts(const Sizes& s) {
    features = take(s.taps * 32 * s.feature_stride() * 2);
    geometry = take((s.lag + 1) * 32 * SHORT_STRIDE * 2);
    weights = take((s.lag + 1) * 32 * 4);
    harmonics = take(32 * SHORT_STRIDE * 2);
    queue = take(QUEUE * s.queue_stride() * 2);
    waiting = take(QUEUE * 4);
    owners = take(QUEUE * 4);
  }
};

// A layer [rows, stride] of weight [out, in] and bias [out], which is behind it if not given: column k is column
// source(k) of the weight, or zeros if that is negative. Returns what is behind. All threads of the block call it.
template <class F>
__device__ __forceinline__ const __half* fill_layer(unsigned char* shared, LayerPart part, int rows, int stride,
                                                    const void* layer, int in, int out, const F& source,
                                                    const void* own_bias = nullptr) {
  const auto* weight = static_cast<const __half*>(layer);
  const auto* bias = own_bias ? static_cast<const __half*>(own_bias) : weight + in * out;
  for (int i = threadIdx.x; i < rows * stride; i += blockDim.x) {
    const int row = i / stride, column = source(i % stride);
    const bool real = row < out && column >= 0;
    reinterpret_cast<__half*>(shared + part.weight)[i] = real ? weight[row * in + column] : __half(0.f);
  }
  for (int i = threadIdx.x; i < rows; i += blockDim.x)
    reinterpret_cast<float*>(shared + part.bias)[i] = i < out ? float(bias[i]) : 0.f;
  return bias + out;
}

// All that a block shares. Hidden layers of fewer units are padded with zeros.
__device__ __forceinline__ void fill_block(unsigned char* shared, const RenderArguments& a, const Sizes& s,
                                           const BlockParts& at) {
  const int channels = a.levels.n_levels * a.levels.n_features, encoded = a.taps ? channels : 0;
  const int base = GEOMETRY + HARMONICS, state = base + s.channels, n_state = s.lltm ? RAY_STATE : 0;
  const auto below = [](int n) { return [n](int column) { return column < n ? column : -1; }; };
  const auto of_color = [&](int column) {
    if (column < base + encoded) return column;
    return column >= state && column < state + n_state ? column - state + base + encoded : -1;
  };
  const void* net = fill_layer(shared, at.density_in, RENDER_WIDEST, s.feature_stride(), a.density_net, channels,
                               a.hidden, below(channels));
  fill_layer(shared, at.density_out, OUT, HIDDEN_STRIDE, net, a.hidden, GEOMETRY, below(a.hidden));
  net = fill_layer(shared, at.color_in, RENDER_WIDEST, s.color_stride(), a.color_net, base + encoded + n_state,
                   a.hidden, of_color);
  net = fill_layer(shared, at.color_middle, RENDER_WIDEST, HIDDEN_STRIDE, net, a.hidden, a.hidden, below(a.hidden));
  fill_layer(shared, at.color_out, OUT, HIDDEN_STRIDE, net, a.hidden, 3, below(a.hidden));
  if (s.lltm)
    fill_layer(shared, at.gates, GATES, s.gate_stride(), a.lltm_weight, RAY_STATE + channels, GATES,
               below(RAY_STATE + channels), a.lltm_bias);
  float* taps = reinterpret_cast<float*>(shared + at.taps);
  for (int i = threadIdx.x; s.context && i < (s.taps + 1) * s.channels; i += blockDim.x) {
    const int tap = i / s.channels, c = i % s.channels;
    const __half* from = static_cast<const __half*>(tap < s.taps ? a.conv_weight : a.conv_bias);
    if (a.taps)
      taps[i] = c >= channels ? 0.f : float(from[tap < s.taps ? c * s.taps + tap : c]);
    else
      taps[i] = tap == 0 ? 1.f : 0.f;  // without a convolution features are handed on
  }
}

// The features of a point, 0 to 1 along each axis in the order of memory, on levels begin..end - 1, with the bits of
// grid_encode_forward_levels. Loops over levels are not unrolled: instructions have to fit their cache.
template <int V, bool HASHED>
__device__ __forceinline__ void encode_levels(const RenderArguments& a, float x, float y, float z, int begin, int end,
                                              __half* row) {
  using Row = std::conditional_t<V == 2, unsigned, uint2>;
  const float along[3] = {x, y, z};
#pragma unroll 1
  for (int l = begin; l < end; ++l) {
    const int resolution = a.levels.resolution[l];
    const uint32_t side = resolution + 1, mask = a.levels.max_entries - 1;
    const uint32_t factor[2] = {HASHED ? HASH_Y : side * side, HASHED ? HASH_Z : side};
    uint64_t level = reinterpret_cast<uint64_t>(a.table) + a.levels.first_row[l] * sizeof(Row);
    asm("" : "+l"(level));  // an address that rows are added to by one instruction each
    uint32_t at[3];
    float weight[3][2];
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) {
      const float scaled = along[axis] * float(resolution);
      const int cell = min(int(scaled), resolution - 1);
      const float u = scaled - float(cell);
      at[axis] = axis ? cell * factor[axis - 1] : cell, weight[axis][0] = 1 - u, weight[axis][1] = u;
    }
    Row rows[8];
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const uint32_t first = at[0] + (k >> 2), second = at[1] + (k >> 1 & 1) * factor[0],
                     third = at[2] + (k & 1) * factor[1],
                     entry = HASHED ? (first ^ second ^ third) & mask : first + second + third;
      rows[k] = __ldg(reinterpret_cast<const Row*>(level + uint64_t(entry) * sizeof(Row)));
    }
    float sum[2][V] = {};
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const auto& values = reinterpret_cast<const Vec<__half, V>&>(rows[k]);
      const float w = weight[0][k >> 2] * weight[1][k >> 1 & 1] * weight[2][k & 1];
#pragma unroll
      for (int v = 0; v < V; ++v) sum[k >> 2][v] += w * float(values.v[v]);
    }
    Vec<__half, V> out;
#pragma unroll
    for (int v = 0; v < V; ++v) out.v[v] = __half(sum[0][v] + sum[1][v]);
    reinterpret_cast<Vec<__half, V>*>(row)[l] = out;
  }
}

// The features of this lane's point on all levels, to its row. The first axis of memory is that of which neighbours
// are neighbouring rows: z of dense levels, x of hashed ones.
template <int V>
__device__ __forceinline__ void encode(const RenderArguments& a, const float (&at)[3], int n_dense, __half* row) {
  encode_levels<V, false>(a, at[2], at[0], at[1], 0, n_dense, row);
  encode_levels<V, true>(a, at[0], at[1], at[2], n_dense, a.levels.n_levels, row);
}

__device__ __forceinline__ void copy_row(const __half* from, __half* to, int width) {  // a multiple of 8
  for (int i = 0; i < width; i += 8) *reinterpret_cast<uint4*>(to + i) = *reinterpret_cast<const uint4*>(from + i);
}

__device__ __forceinline__ void store_harmonics(const float* direction, __half* row) {
  float values[HARMONICS];
  harmonics_of(direction, values);
#pragma unroll
  for (int i = 0; i < HARMONICS; i += 8) store(row + i, reinterpret_cast<const float (&)[8]>(values[i]));
}

// to [C] = the convolution at sample n of a ray, of which `count` samples are known; those beyond either end are zeros.
// features: this lane's rows, sample i in row i % K, `rows` apart; taps [K, C], then the bias [C].
__device__ __forceinline__ void convolve(const __half* features, int rows, const Sizes& s, const float* taps, int n,
                                         int count, __half* to) {
  const int begin = max(s.lag - n, 0), end = min(s.lag + count - n, s.taps);  // taps within the ray
  const int first = (n - s.lag + begin) % s.taps;                             // row of the first of them
#pragma unroll 1
  for (int c = 0; c < s.channels; c += 8) {
    float sum[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) sum[i] = taps[s.taps * s.channels + c + i];
#pragma unroll 1
    for (int tap = begin, row = first; tap < end; ++tap, row = row + 1 < s.taps ? row + 1 : 0) {
      float value[8];
      load(features + row * rows + c, value);
#pragma unroll
      for (int i = 0; i < 8; ++i) sum[i] += value[i] * taps[tap * s.channels + c + i];
    }
    store(to + c, sum);
  }
}

// sum [16, 8 N] += 16 rows times the transposed columns of weight [8 N, stride] from `column` on. Each lane gives the
// address in shared memory of row lane % 16, of `width` values.
template <int N>
__device__ __forceinline__ void add_rows(float (&sum)[N][4], unsigned row, int width, const __half* weight, int stride,
                                         int column) {
#pragma unroll 1
  for (int k = 0; k < width; k += 16) {
    unsigned left[4];
    ldmatrix<false>(row + (k + threadIdx.x % 32 / 16 * 8) * 2, left);
#pragma unroll
    for (int n = 0; n < N; n += 2) {
      unsigned right[4];
      load_right_transposed(weight, stride, 8 * n, column + k, right);
      add_products<__half>(sum[n], sum[n + 1], left, right);
    }
  }
}

// result [16, OUT] of the hidden units whose sums in front of the ReLU are given.
__device__ __forceinline__ void last_layer(const unsigned char* shared, const LayerPart& layer,
                                           const float (&sum)[RENDER_WIDEST / 8][4], float (&result)[OUT / 8][4]) {
  RowFragments<__half, RENDER_WIDEST> hidden;
  hidden.from_sums(sum, relu);
  layer.start(shared, result);
  apply(result, hidden, layer.weight_in(shared), HIDDEN_STRIDE);
}

// Geometry features [16, GEOMETRY], in front of the rounding to half, of 16 rows of features, as in add_rows.
__device__ __forceinline__ void density_net(const unsigned char* shared, const Sizes& s, const BlockParts& at,
                                            unsigned row, float (&result)[OUT / 8][4]) {
  float sum[RENDER_WIDEST / 8][4];
  at.density_in.start(shared, sum);
  add_rows(sum, row, s.channels, at.density_in.weight_in(shared), s.feature_stride(), 0);
  last_layer(shared, at.density_out, sum, result);
}

// Colors [16, 3 of OUT] in front of the sigmoid of 16 rows of the queue and of their rays' harmonics.
__device__ __forceinline__ void color_net(const unsigned char* shared, const Sizes& s, const BlockParts& at,
                                          unsigned row, unsigned harmonics, float (&result)[OUT / 8][4]) {
  const __half* in = at.color_in.weight_in(shared);
  float sum[RENDER_WIDEST / 8][4];
  at.color_in.start(shared, sum);
  add_rows(sum, row, GEOMETRY, in, s.color_stride(), 0);
  add_rows(sum, harmonics, HARMONICS, in, s.color_stride(), GEOMETRY);
  add_rows(sum, row + GEOMETRY * 2, s.context, in, s.color_stride(), GEOMETRY + HARMONICS);
  RowFragments<__half, RENDER_WIDEST> hidden;
  hidden.from_sums(sum, relu);
  at.color_middle.start(shared, sum);
  apply(sum, hidden, at.color_middle.weight_in(shared), HIDDEN_STRIDE);
  last_layer(shared, at.color_out, sum, result);
}

// The LLTM's state of the 32 rays of a warp.
struct RayStates {
  RowFragments<__half, RAY_STATE> h[2];  // rays 0 to 15, 16 to 31
  float c[2][RAY_STATE / 8][4];

  // Those of the rays in the mask begin with zeros.
  __device__ __forceinline__ void begin(unsigned rays) {
    const int g = threadIdx.x % 32 / 4;
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int i = 0; i < 4; ++i) {  // h: rows in turn; c: rows after two columns
        if (rays >> (16 * m + g + i % 2 * 8) & 1) h[m].value[0][i] = 0;
        if (rays >> (16 * m + g + i / 2 * 8) & 1) c[m][0][i] = c[m][1][i] = 0;
      }
  }

  // A step of rays 16 m .. 16 m + 15 that are in the mask; encoded features in rows, as in add_rows.
  __device__ __forceinline__ void step(int m, unsigned rays, const unsigned char* shared, const Sizes& s,
                                       const BlockParts& at, unsigned row) {
    const int g = threadIdx.x % 32 / 4;
    const __half* weight = at.gates.weight_in(shared);
    float sum[GATES / 8][4], out[RAY_STATE / 8][4];
    at.gates.start(shared, sum);
    apply(sum, h[m], weight, s.gate_stride());
    add_rows(sum, row, s.channels, weight, s.gate_stride(), RAY_STATE);
#pragma unroll
    for (int p = 0; p < RAY_STATE / 8; ++p)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const Gates<float> gates = fast_activate<__half>(sum[p][i], sum[2 + p][i], sum[4 + p][i]);
        const float next = c[m][p][i] + gates.g * gates.i;
        out[p][i] = fast_tanh<__half>(next) * gates.o;
        if (rays >> (16 * m + g + i / 2 * 8) & 1) c[m][p][i] = next;
      }
    RowFragments<__half, RAY_STATE> next;
    next.from_sums(out, [](float x) { return x; });
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (rays >> (16 * m + g + i % 2 * 8) & 1) h[m].value[0][i] = next.value[0][i];
  }
};

}  // namespace
}  // namespace nerfkit
