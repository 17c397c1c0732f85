// SPDX-License-Identifier: Apache-2.0
// Square kernels of 3, 5 and 7 and those of one row, with stride and dilation 1, that keep the picture's size: many
// small planes, where rows are not whole vectors, take the way of depthwise_conv2d_small_planes.cuh; half types of 5, 7
// and of one row those of depthwise_conv2d_half_planes.cuh and depthwise_conv2d_half_channels.cuh; float32 of 7 that of
// depthwise_conv2d_long_strips.cuh; other square ones that of depthwise_conv2d_walk.cuh. What these cannot take, or not
// well (widths or channels that are not whole vectors, float32 of one row, narrow planes of half types) goes to
// depthwise_conv2d_lane_tiles.cuh. Usual kernels a stride apart, channels last and forward, go to
// depthwise_conv2d_quads.cuh, any other kernel, stride, padding and dilation to depthwise_conv2d_any_forward.cuh and
// _any_backward.cuh, and sizes that are too large for all of these to depthwise_conv2d_values.cuh.

#include "common/reduce_partials.cuh"
#include "depthwise_conv2d/generic_backward.cuh"
#include "depthwise_conv2d/generic_forward.cuh"
#include "depthwise_conv2d/lane_tiles.cuh"
#include "depthwise_conv2d/long_strips.cuh"
#include "depthwise_conv2d/mma_channels.cuh"
#include "depthwise_conv2d/mma_planes.cuh"
#include "depthwise_conv2d/naive.cuh"
#include "depthwise_conv2d/quads.cuh"
#include "depthwise_conv2d/small_planes.cuh"
#include "depthwise_conv2d/strips.cuh"

namespace nerfkit {
namespace {

bool is_empty(const Conv2dShape& s) { return s.batch * s.channels * s.y.size * s.x.size == 0; }

bool keeps_size(const Axis& axis) {
  return axis.stride == 1 && axis.dilation == 1 && axis.kernel % 2 == 1 && axis.padding == axis.kernel / 2;
}

// Side of a kernel that the tiles are made for, negative for one of a single row; 0 for any other.
int tiled_kernel(const Conv2dShape& s) {
  constexpr int64_t MOST = INT32_MAX / 2;  // so that places somewhat outside the picture are int too
  if (std::max({s.batch, s.channels, int64_t(s.y.size), int64_t(s.x.size)}) > MOST) return 0;
  if (!keeps_size(s.y) || !keeps_size(s.x) || s.x.kernel < 3 || s.x.kernel > 7) return 0;
  if (s.y.kernel == s.x.kernel) return s.x.kernel;
  return s.y.kernel == 1 && s.y.size == 1 && s.x.kernel < 7 && !s.channels_last ? -s.x.kernel : 0;
}

constexpr int MOST_TILES = 16;  // of a thread, backward

// Rows of a tile.
constexpr int tile_rows(int kh, int kw, bool backward) { return kh == 1 || (backward && kw != 5) ? 4 : 8; }

// Neighbouring channels that a block takes.
int lanes_of(const Conv2dShape& s) {
  int lanes = s.channels_last ? 32 : 1;
  while (lanes > 1 && lanes / 2 >= s.channels) lanes /= 2;
  return lanes;
}

int64_t blocks_across(const Conv2dShape& s) { return blocks_for(s.channels, lanes_of(s)); }

// Blocks that share the tiles of a channel, of R rows each.
int64_t blocks_sharing(const Conv2dShape& s, bool backward, int64_t R) {
  constexpr int64_t ENOUGH_BLOCKS = 2048;
  const int64_t columns = blocks_for(s.x.size, V);
  const bool flat = s.y.kernel == 1;  // the batch takes the place of the rows
  const int64_t rows = flat ? s.batch : s.y.size;
  const int64_t tiles = (flat ? 1 : s.batch) * ((rows + R - 1) / R) * columns;
  const int64_t full = std::max<int64_t>(1, blocks_for(tiles, THREADS_2D / lanes_of(s)));
  if (!backward) return full;
  // Several tiles a thread, for every block has to add up its threads' sums.
  const int64_t enough = (ENOUGH_BLOCKS + blocks_across(s) - 1) / blocks_across(s);
  return std::max((full + MOST_TILES - 1) / MOST_TILES, std::min((full + 1) / 2, enough));
}

template <class T, int KH, int KW, int R, bool BACKWARD>
bool launch_tiles(Walk<T> a, const Conv2dShape& s, bool vectors, cudaStream_t stream) {
  const int64_t across = blocks_across(s), shared = blocks_sharing(s, BACKWARD, R), blocks = across * shared;
  if (blocks > INT32_MAX || shared > INT32_MAX / THREADS_2D / (BACKWARD ? MOST_TILES : 1)) return false;
  // Where blocks are few, what counts is the way from a thread's first load to its last store.
  if constexpr (KH > 1 && !BACKWARD && R != FEW_ROWS)
    if (blocks < 4 * current_gpu().processors)
      return launch_tiles<T, KH, KW, FEW_ROWS, BACKWARD>(a, s, vectors, stream);
  a.across = int(across), a.shared = int(shared), a.lanes = lanes_of(s);
  auto kernel = tile<T, KH, KW, R, Order::columns, BACKWARD>;
  if constexpr (KH == 1 || sizeof(T) == 2)  // what float32 could take as vectors walks
    if (vectors) kernel = tile<T, KH, KW, R, Order::vectors, BACKWARD>;
  if constexpr (KH > 1)
    if (s.channels_last) kernel = tile<T, KH, KW, R, Order::channels, BACKWARD>;
  kernel<<<unsigned(blocks), THREADS_2D, 0, stream>>>(a);
  return true;
}

template <int N>
using Side = std::integral_constant<int, N>;

// False if the tiles are not made for this.
template <class T, bool BACKWARD>
bool walk_tiles(const Walk<T>& start, const Conv2dShape& s, cudaStream_t stream) {
  if constexpr (sizeof(T) == 8) {
    return false;
  } else {
    if (is_empty(s) || !tiled_kernel(s)) return false;
    Walk<T> a = start;
    a.channels = int(s.channels), a.batch = int(s.batch), a.height = s.y.size, a.width = s.x.size;
    a.strides = s.strides(s.y.size, s.x.size);
    if (s.y.kernel == 1) a.batch = 1, a.height = int(s.batch), a.strides.row = a.strides.batch;
    const size_t bytes = V * sizeof(T);
    const bool together = aligned(a.in, bytes) && aligned(a.out, bytes) && aligned(a.x, bytes);
    const bool vectors = !s.channels_last && s.x.size % V == 0 && together;
    const auto launch = [&](auto height, auto width) {
      constexpr int KH = decltype(height)::value, KW = decltype(width)::value;
      return launch_tiles<T, KH, KW, tile_rows(KH, KW, BACKWARD), BACKWARD>(a, s, vectors, stream);
    };
    switch (tiled_kernel(s)) {
      case 3:
        return launch(Side<3>(), Side<3>());
      case 5:
        return launch(Side<5>(), Side<5>());
      case 7:
        return launch(Side<7>(), Side<7>());
      case -3:
        return launch(Side<1>(), Side<3>());
      case -5:
        return launch(Side<1>(), Side<5>());
      default:
        return false;
    }
  }
}

// Whether lanes that walk down strips are for this.
bool can_walk(const Conv2dShape& s, int bytes, bool backward) {
  const int k = tiled_kernel(s);
  if ((k != 3 && k != 5) || bytes > 4 || is_empty(s)) return false;
  if (!s.channels_last) return s.x.size % walk_shape(k, bytes, false, backward).columns == 0;
  constexpr int OUTSIDE = 16;  // columns; distances along a row are int
  return s.channels * bytes % 16 == 0 && (s.x.size + OUTSIDE) * s.channels <= INT32_MAX;
}

// False if a block of this GPU has too little shared memory.
template <class T, int K, bool CHANNELS_LAST, bool BACKWARD>
bool launch_walk(const Walk<T>& a, const WalkGrid& grid, const Gpu& gpu, cudaStream_t stream) {
  using Slot = typename WalkStrip<T, K, CHANNELS_LAST, BACKWARD>::Slot;
  constexpr size_t SLOTS = sizeof(Slot) * walk_depth(K, sizeof(T), CHANNELS_LAST) * WARPS_2D;
  constexpr size_t SUMS = BACKWARD ? sizeof(WarpSums<acc_t<T>, K * K + 1>) : 0, SHARED = std::max(SLOTS, SUMS);
  if (SHARED > size_t(gpu.shared_bytes)) return false;
  const auto kernel = walk<T, K, CHANNELS_LAST, BACKWARD>;
  if (SHARED > 48 * 1024) cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(SHARED));
  const unsigned blocks = unsigned(grid.across * grid.shared);
  if (BACKWARD && K == 3)  // early, it took up to a tenth longer
    kernel<<<blocks, THREADS_2D, SHARED, stream>>>(a);
  else
    pdl_launch(kernel, blocks, THREADS_2D, SHARED, stream, a);
  return true;
}

// The number of parts, none if walking is not for this.
template <class T, bool BACKWARD>
int64_t walk_strips(const Walk<T>& start, const Conv2dShape& s, cudaStream_t stream) {
  if constexpr (sizeof(T) == 8) {
    return 0;
  } else {
    if (!can_walk(s, sizeof(T), BACKWARD)) return 0;
    Walk<T> a = start;
    if (!aligned(a.in, 16) || !aligned(a.out, 16) || !aligned(a.x, 16)) return 0;
    const Gpu gpu = current_gpu();
    const WalkGrid grid = walk_grid(s, sizeof(T), BACKWARD, gpu.processors);
    if (grid.across * grid.shared > INT32_MAX || grid.shared > INT32_MAX / THREADS_2D) return 0;
    a.channels = int(s.channels), a.batch = int(s.batch), a.height = s.y.size, a.width = s.x.size;
    a.strides = s.strides(s.y.size, s.x.size), a.across = int(grid.across), a.rows = grid.rows;
    const auto launch = [&](auto k) {
      constexpr int K = decltype(k)::value;
      if (s.channels_last) return launch_walk<T, K, true, BACKWARD>(a, grid, gpu, stream);
      return launch_walk<T, K, false, BACKWARD>(a, grid, gpu, stream);
    };
    const bool launched = s.x.kernel == 3 ? launch(Side<3>()) : launch(Side<5>());
    return launched ? grid.shared : 0;
  }
}

// Sums of the weight's gradient that a channel has; none if long strips are not for this.
int64_t long_parts(LongConv& a, const Conv2dShape& s, bool backward) {
  const int64_t together = s.channels_last ? s.channels : s.x.size;
  if (tiled_kernel(s) != 7 || is_empty(s) || together % 4) return 0;
  const Gpu gpu = current_gpu();
  return s.channels_last ? share_out_long_strips<true>(a, s, backward, gpu)
                         : share_out_long_strips<false>(a, s, backward, gpu);
}

// The number of parts, none if long strips are not for this.
template <class T, bool BACKWARD>
int64_t walk_long_strips(const Walk<T>& from, const Conv2dShape& s, cudaStream_t stream) {
  if constexpr (std::is_same_v<T, float>) {
    LongConv a{from.in, from.weight, from.bias, from.out, from.x, from.partials};
    if (!aligned(a.in, 16) || !aligned(a.out, 16) || !aligned(a.x, 16)) return 0;
    const int64_t parts = long_parts(a, s, BACKWARD);
    if (!parts) return 0;
    s.channels_last ? launch_long_strips<7, true, BACKWARD>(a, parts, stream)
                    : launch_long_strips<7, false, BACKWARD>(a, parts, stream);
    return parts;
  }
  return 0;
}

constexpr int NARROW = STRIP / 4;  // columns: with fewer, most of a strip on tensor cores would be idle

// Sums of the weight's gradient that a channel has; none if the tensor cores are not for this.
template <class T>
int64_t half_parts(HalfConv<T>& a, const Conv2dShape& s, bool backward) {
  const int k = tiled_kernel(s);
  const bool narrow = k > 0 && !s.channels_last && s.x.size < NARROW;
  const bool taken = !narrow && (k == 7 || k == 5 || k < 0);
  if (sizeof(T) != 2 || is_empty(s) || !taken) return 0;
  if (s.channels_last && (s.channels % 8 || s.channels > MOST_HALF_CHANNELS)) return 0;
  const Gpu gpu = current_gpu();
  if (gpu.major < TENSOR_CORES_MAJOR) return 0;
  const bool flat = s.y.kernel == 1;  // the batch takes the place of the rows
  a.strides = s.strides(s.y.size, s.x.size);
  if (flat) a.strides.row = a.strides.batch;
  a.channels = int(s.channels), a.height = flat ? int(s.batch) : s.y.size, a.width = s.x.size;
  const int64_t batch = flat ? 1 : s.batch;
  if (s.channels_last) {
    if (2 * s.batch * (int64_t(a.height) + k) > INT32_MAX)
      return 0;  // rows of all pictures, and of a piece that ends later
    share_out_channels(a, k, batch, backward, gpu);
    return a.units <= INT32_MAX ? int64_t(a.strips) * a.pieces + a.paired_pieces : 0;
  }
  share_out_planes(a, batch, flat ? 1 : k, backward, gpu.processors);
  return a.units <= INT32_MAX ? batch * a.strips * a.pieces : 0;
}

// The number of parts, none if the tensor cores are not for this.
template <class T, bool BACKWARD>
int64_t walk_with_tensor_cores(const Walk<T>& from, const Conv2dShape& s, cudaStream_t stream) {
  if constexpr (sizeof(T) == 2) {
    HalfConv<T> a{from.in, from.weight, from.bias, from.out, from.x, from.partials};
    const int64_t parts = half_parts(a, s, BACKWARD);
    const bool sixteen = aligned(a.in, 16) && aligned(a.out, 16) && aligned(a.x, 16);
    if (!parts || (s.channels_last && !sixteen)) return 0;
    const bool vector = sixteen && s.x.size % 8 == 0;
    if (s.channels_last) {
      s.x.kernel == 5 ? launch_half_channels<T, 5, BACKWARD>(a, stream)
                      : launch_half_channels<T, 7, BACKWARD>(a, stream);
      return parts;
    }
    switch (tiled_kernel(s)) {
      case 5:
        launch_half_planes<T, 5, 5, BACKWARD>(a, vector, stream);
        break;
      case 7:
        launch_half_planes<T, 7, 7, BACKWARD>(a, vector, stream);
        break;
      case -3:
        launch_half_planes<T, 1, 3, BACKWARD>(a, vector, stream);
        break;
      case -5:
        launch_half_planes<T, 1, 5, BACKWARD>(a, vector, stream);
        break;
    }
    return parts;
  }
  return 0;
}

// Sums of the weight's gradient that a channel has; none if blocks that keep whole planes are not for this: they were
// faster where rows are not whole vectors and planes are many; backward with 3 x 3 only where they are small too, with
// 7 x 7 never.
template <class T>
int64_t small_parts(SmallPlanes<T>& a, const Conv2dShape& s, bool backward, const Gpu& gpu) {
  const int k = tiled_kernel(s);
  const bool vectors = s.x.size % (sizeof(T) == 2 ? 8 : 4) == 0;
  if (sizeof(T) == 8 || is_empty(s) || k < 3 || s.channels_last || vectors || (k == 7 && backward)) return 0;
  if (!share_out_small(a, s, backward, gpu) || (k == 3 && backward && a.tiles > 2)) return 0;
  return 2 * int64_t(a.groups) * a.batch >= 5 * int64_t(gpu.processors) ? a.parts : 0;
}

// The number of parts, none if blocks that keep whole planes are not for this.
template <class T, bool BACKWARD>
int64_t keep_planes(const Walk<T>& from, const Conv2dShape& s, cudaStream_t stream) {
  if constexpr (sizeof(T) == 8) {
    return 0;
  } else {
    SmallPlanes<T> a{from.in, from.weight, from.bias, from.out, from.x, from.partials};
    const Gpu gpu = current_gpu();
    const int64_t parts = small_parts(a, s, BACKWARD, gpu);
    if (parts && s.x.kernel == 3) launch_small_planes<T, 3, BACKWARD>(a, gpu, stream);
    if (parts && s.x.kernel == 5) launch_small_planes<T, 5, BACKWARD>(a, gpu, stream);
    if constexpr (!BACKWARD)
      if (parts && s.x.kernel == 7) launch_small_planes<T, 7, BACKWARD>(a, gpu, stream);
    return parts;
  }
}

// False if threads of 4 channels are not for this.
template <class T>
bool convolve_quads(const Walk<T>& from, const Conv2dShape& s, cudaStream_t stream) {
  if constexpr (sizeof(T) <= 4) {
    QuadConv<T> a{from.in, from.weight, from.bias, from.out};
    const size_t bytes = QUAD * sizeof(T);
    if (!takes_quads(s, sizeof(T)) || !aligned(a.in, bytes) || !aligned(a.out, bytes)) return false;
    switch (s.x.kernel) {
      case 2:
        return launch_quads<T, 2, 0>(a, s, stream);
      case 3:
        return by_two(s) ? launch_quads<T, 3, 2>(a, s, stream) : launch_quads<T, 3, 0>(a, s, stream);
      case 5:
        return launch_quads<T, 5, 2>(a, s, stream);
      case 7:
        return launch_quads<T, 7, 2>(a, s, stream);
    }
  }
  return false;
}

// Calls f with the form of a thread's work, for elements of BYTES.
template <int BYTES, class F>
auto with_any_form(const Conv2dShape& s, const F& f) {
  if (s.y.kernel == 1) return f(AnyForm<1, 8, 0, false>());
  const int step = s.y.stride / std::gcd(s.y.stride, s.y.dilation),
            step_x = s.x.stride / std::gcd(s.x.stride, s.x.dilation);
  const int side = s.y.kernel == s.x.kernel && (step == 1 || step == step_x) ? s.x.kernel : 0;
  if (step == 2 && side == 2) return f(AnyForm<2, 2, 2, true>());
  if (step == 2 && side == 3) return f(AnyForm<3, 3, 2, true>());
  if (step == 2 && side == 4) return f(AnyForm<4, 4, 2, true>());
  if (step == 2 && side == 5) return f(AnyForm<5, 5, 2, true>());
  if (step == 1 && side == 3) return f(AnyForm<3, 3, 1, true>());
  if (step > 2 && side == 3) return f(AnyForm<3, 3, 0, true>());
  if constexpr (BYTES < 8) {  // with 8 there are too few registers
    if (step == 2 && side == 6) return f(AnyForm<6, 6, 2, true>());
    if (step == 2 && side == 7) return f(AnyForm<7, 7, 2, true>());
    if (step == 1 && side == 7 && current_gpu().major >= 8) return f(AnyForm<7, 7, 1, true>());
  }
  if (step == 1) return f(AnyForm<5, 5, 1, false>());
  if (step == 2) return f(AnyForm<5, 5, 2, false>());
  return f(AnyForm<5, 5, 0, false>());
}

template <class T>
bool convolve_any(const Walk<T>& from, const Conv2dShape& s, cudaStream_t stream) {
  const AnyConv<T> a{from.in, from.weight, from.bias, from.out};
  return with_any_form<sizeof(T)>(s, [&](auto form) { return launch_any_forward<T, decltype(form)>(a, s, stream); });
}

// The number of parts, none if this is too large.
template <class T>
int64_t convolve_any_bwd(const Walk<T>& from, const Conv2dShape& s, cudaStream_t stream) {
  const AnyConv<T> a{from.in, from.weight, nullptr, from.out, from.x, from.partials};
  return with_any_form<sizeof(T)>(s, [&](auto form) { return launch_any_backward<T, decltype(form)>(a, s, stream); });
}

// Sums of the weight's gradient that a channel has.
int64_t any_parts(const Conv2dShape& s, int bytes) {
  const auto parts = [&](auto form) {
    AnyConv<float> a{};
    return share_out<decltype(form)>(a, s, bytes, true) ? int64_t(any_parts(a)) : 0;
  };
  return bytes < 8 ? with_any_form<4>(s, parts) : with_any_form<8>(s, parts);
}

// Sums of the weight's gradient that a channel has; at least one.
int64_t tile_parts(const Conv2dShape& s) {
  return tiled_kernel(s) && !is_empty(s) ? blocks_sharing(s, true, tile_rows(s.y.kernel, s.x.kernel, true)) : 1;
}

}  // namespace

Status depthwise_conv2d(DType dtype, const void* x, const void* weight, const void* bias, void* out,
                        const Conv2dShape& s, Stream stream) {
  const int64_t n = s.batch * s.channels * s.y.out_size * s.x.out_size;
  const auto on = (cudaStream_t)stream;
  if (n == 0) return 0;
  dispatch(dtype, [&](auto element) {
    using T = decltype(element);
    const Walk<T> a{(const T*)x, (const T*)weight, (const T*)bias, (T*)out};
    if (keep_planes<T, false>(a, s, on) || walk_with_tensor_cores<T, false>(a, s, on)) return;
    if (walk_long_strips<T, false>(a, s, on) || walk_strips<T, false>(a, s, on)) return;
    if (walk_tiles<T, false>(a, s, on) || convolve_quads(a, s, on) || convolve_any(a, s, on)) return;
    value_forward<<<blocks_for(n), THREADS, 0, on>>>((const T*)x, (const T*)weight, (const T*)bias, (T*)out, s, n);
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
    int64_t parts = keep_planes<T, true>(a, s, on);
    if (!parts) parts = walk_with_tensor_cores<T, true>(a, s, on);
    if (!parts) parts = walk_long_strips<T, true>(a, s, on);
    if (!parts) parts = walk_strips<T, true>(a, s, on);
    if (!parts && walk_tiles<T, true>(a, s, on)) parts = tile_parts(s);
    if (!parts) parts = convolve_any_bwd(a, s, on);
    if (!parts) {
      parts = 1;
      if (grad_x && n)
        value_to_x<<<blocks_for(n), THREADS, 0, on>>>((const T*)grad_out, (const T*)weight, (T*)grad_x, s, n);
      constexpr int MOST_Y = 65535;
      for (int tap = 0; partials && tap <= taps; tap += MOST_Y) {
        const dim3 grid(unsigned(s.channels), std::min(MOST_Y, taps + 1 - tap));
        value_to_weight<<<grid, THREADS, 0, on>>>((const T*)grad_out, (const T*)x, partials, s, tap);
      }
    }
    if (partials) launch_reduce_partials<T>(partials, grad_weight, grad_bias, int(parts), s.channels, taps, stream);
  });
  return launched();
}

int64_t conv2d_scratch(DType dtype, const Conv2dShape& s) {
  HalfConv<__half> a{};
  const bool half = dtype == DType::f16 || dtype == DType::bf16;
  const int bytes = half ? 2 : dtype == DType::f32 ? 4 : 8;
  int64_t parts = std::max({tile_parts(s), any_parts(s, bytes), half ? half_parts(a, s, true) : 0});
  const Gpu gpu = current_gpu();
  SmallPlanes<__half> small_half{};
  SmallPlanes<float> small{};
  if (half) parts = std::max(parts, small_parts(small_half, s, true, gpu));
  if (bytes == 4) parts = std::max(parts, small_parts(small, s, true, gpu));
  LongConv strips{};
  if (bytes == 4) parts = std::max(parts, long_parts(strips, s, true));
  if (can_walk(s, bytes, true)) parts = std::max(parts, walk_grid(s, bytes, true, gpu.processors).shared);
  return parts * s.channels * (s.y.kernel * s.x.kernel + 1);
}

}  // namespace nerfkit
