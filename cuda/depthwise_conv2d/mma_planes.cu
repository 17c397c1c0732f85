// SPDX-License-Identifier: Apache-2.0
// Half types on tensor cores, for kernels of 5 x 5, 7 x 7 and 1 x 3 that leave height and width as they are. A warp
// goes down two strips of one plane, 64 columns each, one row of both per step: 16 blocks of 8 columns. A row of taps
// over them is a product: 16 x 16 values of the window, a block per row, times the 16 x 8 band matrix that has the taps
// on its diagonals. It goes to the accumulators of the result row that it belongs to; KH rows of results are incomplete
// at a time, and a row of the window is read once. Backward, the gradient of x is the same over grad_out with the
// kernel flipped. The weight's is one more product for each row of taps: window (transposed) times x, whose diagonals
// hold the taps' sums. A value that is not finite reaches all results that share its window of 16 columns, through
// products with zero.

#include "common/pdl.cuh"
#include "depthwise_conv2d/mma_planes_fragments.cuh"

namespace nerfkit {

constexpr int WARPS = 4;  // of a block

// Steps between two waits for memory: the indices of accumulators are then known when compiled.
constexpr int group_rows(int kh) { return kh == 1 ? 8 : kh; }

template <int KH, bool BACKWARD>
using PlaneRows = MmaRow<BACKWARD>[group_rows(KH)][2];

// The two strips of a warp, one below the other.
struct PlaneStrips {
  int64_t base;  // offset of the plane
  int part, x0, first, channel;

  template <class T>
  __device__ __forceinline__ PlaneStrips(const MmaPlanesArgs<T>& a, int64_t unit) {
    const int64_t line = unit / a.strips, piece = line / a.channels, image = piece / a.pieces;
    const int strip = int(unit - line * a.strips);
    channel = int(line - piece * a.channels);
    base = image * a.strides.batch + channel * a.strides.channel;
    part = int(piece * a.strips + strip);
    x0 = strip * STRIP, first = int(piece - image * a.pieces) * 2 * a.rows;
  }
};

// What a thread copies of some rows: from where, and which image rows there are; none if `column` is outside.
template <class T>
struct Copies {
  const T* from;  // [B, C, H, W], at the first row and column
  int column, y, end;

  // From step `step` on, of `steps`; `above`: rows that the window begins above the results.
  __device__ __forceinline__ Copies(const MmaPlanesArgs<T>& a, const PlaneStrips& at, const T* images, int strip,
                                    int step, int above, int steps, int column)
      : column(column) {
    const int start = at.first + strip * a.rows - above;
    y = start + step;
    end = unsigned(column) < unsigned(a.width) ? min(a.height, start + steps) : 0;
    from = images + at.base + y * a.strides.row + column;
  }

  // N columns of the row `j` below, zero outside the image. VECTOR: all in or all out, and aligned.
  template <int N, bool VECTOR>
  __device__ __forceinline__ void copy(unsigned* to, int j, const MmaPlanesArgs<T>& a) const {
    const T* row = from + j * a.strides.row;
    const bool inside = unsigned(y + j) < unsigned(end);
    if constexpr (VECTOR) {
      cp_async_zfill<2 * N>(to, row, inside);
    } else {
      Vec<T, N> values;
#pragma unroll
      for (int i = 0; i < N; ++i) values.v[i] = inside && column + i < a.width ? row[i] : T(0.f);
      *reinterpret_cast<Vec<T, N>*>(to) = values;
    }
  }
};

// The rows of a group of steps, from global to shared memory: 64 columns of the window, the other 8, and x.
template <class T, int KH, bool VECTOR, bool BACKWARD>
__device__ __forceinline__ void prefetch_rows(PlaneRows<KH, BACKWARD>& to, const MmaPlanesArgs<T>& a,
                                              const PlaneStrips& at, int step0, bool with_x) {
  constexpr int ROWS = group_rows(KH), ABOVE = KH / 2;
  static_assert(4 * ROWS <= 32, "a lane copies once of what a group has beyond 64 columns");
  const int lane = threadIdx.x % 32, steps = a.rows + KH - 1;
  const Copies<T> window(a, at, a.in, lane / 16, step0, ABOVE, steps, at.x0 - MARGIN + lane % 16 * 4);
#pragma unroll
  for (int j = 0; j < ROWS; ++j) window.template copy<4, VECTOR>(to[j][lane / 16].window() + lane % 16 * 2, j, a);
  if (lane < 4 * ROWS) {
    const int j = lane / 4, strip = lane / 2 % 2, column = STRIP + lane % 2 * 4;
    const Copies<T> beyond(a, at, a.in, strip, step0 + j, ABOVE, steps, at.x0 - MARGIN + column);
    beyond.template copy<4, VECTOR>(to[j][strip].window() + column / 2, 0, a);
  }
  if (!BACKWARD || !with_x) return;
  const int strip = lane / 8 % 2, second = lane / 16;
  const Copies<T> x(a, at, a.x, strip, step0 + second, 0, a.rows, at.x0 + lane % 8 * 8);
#pragma unroll
  for (int j = 0; j < ROWS; j += 2)
    if (j + second < ROWS) x.template copy<8, VECTOR>(to[j + second][strip].center() + lane % 8 * 4, j, a);
}

// `second`: whether the second column is inside; a vector's is.
template <bool VECTOR, class T>
__device__ __forceinline__ void store_pair(T* to, unsigned both, bool second) {
  if constexpr (VECTOR) {
    *reinterpret_cast<unsigned*>(to) = both;
  } else {
    const auto& pair = reinterpret_cast<const Vec<T, 2>&>(both);
    to[0] = pair.v[0];
    if (second) to[1] = pair.v[1];
  }
}

// Blocks that a multiprocessor is to hold; measured: the fastest.
constexpr int resident_planes(int kh, bool vector, bool backward) {
  if (!vector) return backward ? 3 : 4;
  return !backward ? (kh == 1 ? 8 : 6) : kh == 1 ? 6 : 4;
}

template <class T, int KH, int KW, bool VECTOR, Pass PASS>
__global__ void __launch_bounds__(32 * WARPS, resident_planes(KH, VECTOR, PASS == Pass::backward))
    depthwise_conv2d_mma_planes(const MmaPlanesArgs<T> a) {
  constexpr bool BACKWARD = PASS == Pass::backward;
  constexpr int ROWS = group_rows(KH);
  if (BACKWARD) pdl_trigger();
  extern __shared__ __align__(16) unsigned char memory[];
  auto& ring = reinterpret_cast<PlaneRows<KH, BACKWARD>(*)[2]>(memory)[threadIdx.x / 32];
  const int64_t unit = int64_t(blockIdx.x) * WARPS + threadIdx.x / 32;
  if (unit >= a.units) return;
  const PlaneStrips at(a, unit);
  const int lane = threadIdx.x % 32, column = at.x0 + lane / 4 * 8 + lane % 4 * 2, steps = a.rows + KH - 1;
  const bool to_sums = BACKWARD && a.partials;
  // Of the two strips' results, those that this lane writes; a step completes row step - (KH - 1).
  const int written = a.out && column < a.width ? a.height - at.first : 0;
  const int above = min(max(written, 0), a.rows), below = min(max(written - a.rows, 0), a.rows);
  T* out = a.out + at.base + (at.first - (KH - 1)) * a.strides.row + column;
  T* out_below = out + a.rows * a.strides.row;
  pdl_wait();
  prefetch_rows<T, KH, VECTOR, BACKWARD>(ring[0], a, at, 0, to_sums);
  cp_async_commit();
  PlaneFragments<T, KH, KW, PASS> fragments(a, at.channel);
  for (int step0 = 0, turn = 0; step0 < steps; step0 += ROWS, turn ^= 1) {
    if (step0 + ROWS < steps) prefetch_rows<T, KH, VECTOR, BACKWARD>(ring[turn ^ 1], a, at, step0 + ROWS, to_sums);
    cp_async_commit();
    cp_async_wait<1>();
    __syncwarp();
#pragma unroll
    for (int j = 0; j < ROWS; ++j) {
      const int step = step0 + j, row = step - (KH - 1);  // from `steps` on, rows of zeros
      if (to_sums) fragments.add_to_taps(ring[turn][j], j, unsigned(step - KH / 2) < unsigned(a.rows));
      if (!a.out) continue;
      fragments.add_to_results(ring[turn][j], j);
      if (unsigned(row) < unsigned(above)) store_pair<VECTOR>(out, fragments.result(j, 0), column + 1 < a.width);
      if (unsigned(row) < unsigned(below)) store_pair<VECTOR>(out_below, fragments.result(j, 1), column + 1 < a.width);
      out += a.strides.row, out_below += a.strides.row;
    }
    __syncwarp();
  }
  cp_async_wait<0>();
  if constexpr (BACKWARD)
    if (to_sums)
      write_sums<KH, KW>(fragments.taps, fragments.bias_of_lane(), reinterpret_cast<float*>(&ring),
                         a.partials + (int64_t(at.part) * a.channels + at.channel) * (KH * KW + 1));
}

// Pieces of the height, so that the blocks come in full waves; a strip begins with waiting and with its neighbours'
// rows.
template <class T>
void divide_planes(MmaPlanesArgs<T>& a, int64_t batch, int kh, bool backward, int processors) {
  constexpr int MOST_PIECES = 256, START = 8;  // START: rows' worth of waiting
  const int64_t resident = int64_t(processors) * resident_planes(kh, true, backward);
  a.strips = int(blocks_for(a.width, STRIP));
  int64_t least = INT64_MAX;
  for (int pieces = 1; pieces == 1 || (pieces <= MOST_PIECES && pieces * 2 * kh <= a.height); ++pieces) {
    const int rows = int(blocks_for(a.height, 2 * pieces));
    const int64_t blocks = (batch * a.channels * a.strips * pieces + WARPS - 1) / WARPS;
    const int64_t cost = (blocks + resident - 1) / resident * (rows + kh - 1 + START);
    if (cost < least) least = cost, a.rows = rows;
  }
  a.pieces = int(blocks_for(a.height, 2 * a.rows));
  a.units = batch * a.channels * a.strips * a.pieces;
}

inline bool is_one_row(const Conv2dShape& s) {
  constexpr int64_t MOST = INT32_MAX / 2;
  const bool fits = std::max({s.batch, s.channels, int64_t(s.x.size)}) <= MOST;
  return fits && s.y.kernel == 1 && s.y.size == 1 && is_same_size(s.y) && is_same_size(s.x) && !s.channels_last;
}

// Sets all but the arrays and returns the partial sums of a channel; 0 if the kernels are not made for this.
template <class T>
int64_t fit_planes(MmaPlanesArgs<T>& a, const Conv2dShape& s, bool backward) {
  constexpr int NARROW = STRIP / 4;  // columns: with fewer, most of a strip would be idle
  const int k = same_size_side(s);
  const bool flat = is_one_row(s) && s.x.kernel == 3;  // the batch takes the place of the rows
  const bool made = flat || ((k == 5 || k == 7) && s.x.size >= NARROW);
  if (!made || is_empty(s) || s.channels_last) return 0;
  const Gpu gpu = current_gpu();
  if (gpu.major < TENSOR_CORES_MAJOR) return 0;
  a.strides = s.strides(s.y.size, s.x.size);
  if (flat) a.strides.row = a.strides.batch;
  a.channels = int(s.channels), a.height = flat ? int(s.batch) : s.y.size, a.width = s.x.size;
  const int64_t batch = flat ? 1 : s.batch;
  divide_planes(a, batch, flat ? 1 : k, backward, gpu.processors);
  return a.units <= INT32_MAX ? batch * a.strips * a.pieces : 0;
}

template <class T, int KH, int KW, Pass PASS>
void launch_mma_planes(const MmaPlanesArgs<T>& a, bool vector, cudaStream_t stream) {
  constexpr int SHARED = sizeof(PlaneRows<KH, PASS == Pass::backward>[2]) * WARPS;
  const auto kernel =
      vector ? depthwise_conv2d_mma_planes<T, KH, KW, true, PASS> : depthwise_conv2d_mma_planes<T, KH, KW, false, PASS>;
  if (SHARED > 48 * 1024) cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED);
  pdl_launch(kernel, blocks_for(a.units, WARPS), 32 * WARPS, SHARED, stream, a);
}

template <class T, Pass PASS>
int64_t try_launch_mma_planes(const Conv2dArrays<T>& arrays, const Conv2dShape& s, cudaStream_t stream) {
  MmaPlanesArgs<T> a{arrays};
  const int64_t parts = fit_planes(a, s, PASS == Pass::backward);
  if (!parts) return 0;
  const bool vector = all_aligned(arrays, 16) && s.x.size % 8 == 0;
  if (s.y.kernel == 1) launch_mma_planes<T, 1, 3, PASS>(a, vector, stream);
  if (s.y.kernel == 5) launch_mma_planes<T, 5, 5, PASS>(a, vector, stream);
  if (s.y.kernel == 7) launch_mma_planes<T, 7, 7, PASS>(a, vector, stream);
  return parts;
}

int64_t mma_planes_parts(const Conv2dShape& s) {
  MmaPlanesArgs<__half> a{};
  return fit_planes(a, s, true);
}

#define FOR_TYPE(T)                                                                                                   \
  template int64_t try_launch_mma_planes<T, Pass::forward>(const Conv2dArrays<T>&, const Conv2dShape&, cudaStream_t); \
  template int64_t try_launch_mma_planes<T, Pass::backward>(const Conv2dArrays<T>&, const Conv2dShape&, cudaStream_t);
FOR_TYPE(__half)
FOR_TYPE(__nv_bfloat16)
#undef FOR_TYPE

}  // namespace nerfkit
