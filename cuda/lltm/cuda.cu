// SPDX-License-Identifier: Apache-2.0
// Sixteen rays together on tensor cores (lltm_tiles_forward.cuh, lltm_tiles_backward.cuh), or eight in the registers of
// a warp where the state is small (lltm_narrow_forward.cuh, lltm_narrow_backward.cuh), or 16 or 32 with a weight that
// is read again at every step where state or input are wide (lltm_wide_forward.cuh, lltm_wide_backward.cuh), or 16 of
// few such rays by several blocks that share out the units (lltm_cluster_forward.cuh, lltm_cluster_backward.cuh). In
// plain arithmetic: few rays, one, two or four a block (lltm_few.cuh), and a warp a ray where there are no such cores,
// or sizes they do not fit (lltm_rays.cuh).

#include "common/reduce_partials.cuh"
#include "lltm/cluster_backward.cuh"
#include "lltm/cluster_forward.cuh"
#include "lltm/generic.cuh"
#include "lltm/large_state_backward.cuh"
#include "lltm/large_state_forward.cuh"
#include "lltm/mma16_backward.cuh"
#include "lltm/mma16_forward.cuh"
#include "lltm/small_batch.cuh"
#include "lltm/state16_backward.cuh"
#include "lltm/state16_forward.cuh"

namespace nerfkit {
namespace {

int padded(int n) { return n <= 16 ? 16 : n <= 32 ? 32 : 64; }

// Calls f with a constant.
template <class F>
void with_size(int n, const F& f) {
  switch (padded(n)) {
    case 16:
      return f(std::integral_constant<int, 16>());
    case 32:
      return f(std::integral_constant<int, 32>());
    default:
      return f(std::integral_constant<int, 64>());
  }
}

// ---- few rays ----

// Whether all rays run at once, or nearly, a thread for every unit of each.
template <class T>
bool are_few(const LltmShape& s, const Gpu& gpu) {
  constexpr int LEAST_RAYS = few_block(16, 0) / 16;  // of a block, which has a row of sums for the bias
  return s.n_rays * padded(s.n_state) <= int64_t(FEW_THREADS<T>) * gpu.processors &&
         s.n_rays <= LEAST_RAYS * BIAS_PARTS;
}

// Calls f(whether a block has a single ray, its rays): one if that leaves no processor idle, else as many as a unit has
// lanes.
template <class F>
void with_rays(const LltmShape& s, const Gpu& gpu, int lanes, const F& f) {
  s.n_rays <= gpu.processors ? f(std::true_type(), 1) : f(std::false_type(), lanes);
}

// False if there are too many.
template <class T>
bool forward_of_few(const LltmArrays<T>& a, const Gpu& gpu, cudaStream_t stream) {
  if constexpr (sizeof(T) <= 4) {
    if (!are_few<T>(a.shape, gpu)) return false;
    with_size(a.shape.n_state, [&](auto state) {
      with_size(a.shape.n_input, [&](auto input) {
        constexpr int H = state.value, I = input.value, BLOCK = few_block(H, I);
        with_rays(a.shape, gpu, BLOCK / H, [&](auto alone, int rays) {
          forward_few<T, H, I, alone.value><<<blocks_for(a.shape.n_rays, rays), BLOCK, 0, stream>>>(a);
        });
      });
    });
    return true;
  } else {
    return false;
  }
}

template <class T>
bool backward_of_few(const LltmGradients<T>& a, const Gpu& gpu, cudaStream_t stream) {
  if constexpr (sizeof(T) <= 4) {
    if (!are_few<T>(a.shape, gpu)) return false;
    with_size(a.shape.n_state, [&](auto state) {
      constexpr int H = state.value, BLOCK = few_block(H, 0);
      with_rays(a.shape, gpu, BLOCK / H, [&](auto alone, int rays) {
        backward_few<T, H, alone.value><<<blocks_for(a.shape.n_rays, rays), BLOCK, 0, stream>>>(a);
      });
    });
    return true;
  } else {
    return false;
  }
}

// ---- sixteen rays ----

// of_block, of_group: bytes of shared memory. False if the kernel needs more than there is.
template <class Size, class Kernel, class Arrays>
bool launch_tiles(Kernel kernel, const Arrays& arrays, size_t of_block, size_t of_group, const Gpu& gpu,
                  cudaStream_t stream) {
  const int64_t tiles = (arrays.shape.n_rays + RAYS - 1) / RAYS;
  const int64_t fit = (int64_t(gpu.shared_bytes) - int64_t(of_block)) / int64_t(of_group);
  if (fit < 1) return false;
  const int64_t most = std::min<int64_t>(fit, Size::MOST);
  const int64_t groups = std::clamp<int64_t>((tiles + gpu.processors - 1) / gpu.processors, 1, most);
  const size_t shared = of_block + groups * of_group;
  const int threads = int(groups) * Size::THREADS;
  allow_shared(kernel, gpu);
  int blocks = 0;
  cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads, shared);
  if (blocks == 0) return false;
  const int64_t resident = std::min<int64_t>(int64_t(blocks) * gpu.processors, BIAS_PARTS / groups);
  const int64_t grid = std::min<int64_t>((tiles + groups - 1) / groups, resident);
  kernel<<<unsigned(grid), threads, shared, stream>>>(arrays, int(tiles));
  return true;
}

template <class T>
bool forward_with_tiles(const LltmArrays<T>& a, const Gpu& gpu, cudaStream_t stream) {
  bool done = false;
  if constexpr (sizeof(T) < 8) {
    using Op = Tile<T>;
    with_size(a.shape.n_state, [&](auto state) {
      with_size(a.shape.n_input, [&](auto input) {
        constexpr int H = state.value, I = input.value;
        using Size = Group<T, H>;
        size_t of_block = 3 * H * sizeof(float);
        if (!Op::IN_REGISTERS)
          of_block += size_t(Size::WARPS) * 2 * 3 * ((H + I) / Op::DEPTH) * 32 * sizeof(typename Op::Weight);
        const bool full = a.shape.n_state == H && a.shape.n_input == I && a.shape.n_samples > 0;
        const auto kernel = full ? forward_tiles<T, H, I, true> : forward_tiles<T, H, I, false>;
        done = launch_tiles<Size>(kernel, a, of_block, 2 * RAYS * (H + PADDING) * sizeof(T), gpu, stream);
      });
    });
  }
  return done;
}

template <class T>
bool backward_with_tiles(const LltmGradients<T>& a, const Gpu& gpu, cudaStream_t stream) {
  bool done = false;
  if constexpr (sizeof(T) < 8) {
    using Op = Tile<T>;
    with_size(a.shape.n_state, [&](auto state) {
      constexpr int H = state.value;
      using Size = Group<T, H>;
      size_t of_block = 0;
      if (!Op::IN_REGISTERS)
        of_block = size_t(Size::WARPS) * 2 * (3 * H / Op::DEPTH) * 32 * sizeof(typename Op::Weight);
      const auto kernel =
          a.shape.n_state == H && a.shape.n_samples > 0 ? backward_tiles<T, H, true> : backward_tiles<T, H, false>;
      done = launch_tiles<Size>(kernel, a, of_block, 2 * RAYS * (3 * H + PADDING) * sizeof(T), gpu, stream);
    });
  }
  return done;
}

// ---- many units or inputs ----

constexpr int WARPS_AT_ONCE = 8;         // of a processor, that blocks of few warps should come to
constexpr int RESERVED_BYTES = 1 << 10;  // of shared memory, of every block

// More rays than run at once if a block takes 16.
bool rays_wait(const LltmShape& s, const Gpu& gpu) {
  return s.n_rays > int64_t(RAYS) * gpu.processors * std::max(1, WARPS_AT_ONCE / sixteens(s.n_state));
}

// The weight in order, in `room`.
template <class T, int PAIRS, class Arrays>
WideWeight order(const Arrays& a, void* room, int depths, int kept, cudaStream_t stream) {
  const LltmShape& s = a.shape;
  const int64_t quads =
      int64_t(sixteens(s.n_state)) * depths * Operands<T, PAIRS>::SIZE * 16 / int64_t(sizeof(Quad<T>));
  order_weight<T, PAIRS>
      <<<blocks_for(quads), THREADS, 0, stream>>>(a.weight, (Quad<T>*)room, quads, s.n_state, s.n_input);
  return {(const uint4*)room, depths, kept};
}

// Blocks that take `rays`; `bytes`: of shared memory, besides the weight. False if the kernel needs more than there is.
template <class T, int PAIRS, class Kernel, class Arrays>
bool launch_wide(Kernel kernel, const Arrays& a, void* room, int rays, int warps, size_t bytes, const Gpu& gpu,
                 cudaStream_t stream) {
  using Own = Operands<T, PAIRS>;
  const LltmShape& s = a.shape;
  const int groups = sixteens(s.n_state), depths = PAIRS == 3 ? groups + sixteens(s.n_input) : 3 * groups;
  const int64_t tiles = (s.n_rays + rays - 1) / rays;
  if (bytes > size_t(gpu.shared_bytes)) return false;
  const int64_t most = std::max(1, WARPS_AT_ONCE / warps);  // blocks of a processor
  const int64_t together = std::clamp<int64_t>((tiles + gpu.processors - 1) / gpu.processors, 1, most);
  const int64_t left = (gpu.shared_bytes + RESERVED_BYTES) / together - RESERVED_BYTES - int64_t(bytes);
  const int64_t of_depth = int64_t(groups) * Own::SIZE * 16, kept = std::clamp<int64_t>(left / of_depth, 0, depths);
  const size_t shared = bytes + size_t(kept * of_depth);
  allow_shared(kernel, gpu);
  int blocks = 0;
  cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, 32 * warps, shared);
  if (blocks == 0) return false;
  const WideWeight weight = order<T, PAIRS>(a, room, depths, int(kept), stream);
  const int64_t grid = std::min(std::min(tiles, int64_t(blocks) * gpu.processors), int64_t(BIAS_PARTS));
  kernel<<<unsigned(grid), 32 * warps, shared, stream>>>(a, weight, int(tiles));
  return true;
}

template <int N>
using Constant = std::integral_constant<int, N>;

// Clusters of 16 rays each, of as many blocks as let all run at once; false if two are too many, or there are no
// clusters. kernel_of(warps, buffers of sums), and bytes_of(warps, groups, buffers of sums) of shared memory besides
// the weight.
template <class T, int PAIRS, class Arrays, class KernelOf, class BytesOf>
bool launch_clusters(const Arrays& a, void* room, const Gpu& gpu, cudaStream_t stream, const KernelOf& kernel_of,
                     const BytesOf& bytes_of) {
  const LltmShape& s = a.shape;
  const int groups = sixteens(s.n_state), depths = PAIRS == 3 ? groups + sixteens(s.n_input) : 3 * groups;
  const int64_t clusters = (s.n_rays + RAYS - 1) / RAYS;
  if (2 * clusters > gpu.processors || !has_clusters(kernel_of(Constant<2>(), Constant<1>()), gpu)) return false;
  // Blocks that share out the groups, each of which gets so many warps.
  auto launched = [&](int blocks, auto warps) {
    constexpr Constant<1> ONE;
    constexpr Constant<(warps > 1 ? 2 : 1)> MORE;  // buffers; a warp by itself waits for no other
    const int most = (groups + blocks - 1) / blocks;
    const int64_t least = bytes_of(warps, most, ONE), of_depth = int64_t(most) * Operands<T, PAIRS>::SIZE * 16;
    if (least > gpu.shared_bytes) return false;
    const int64_t kept = std::min<int64_t>((gpu.shared_bytes - least) / of_depth, depths);
    const bool has_room =
        bytes_of(warps, most, MORE) + kept * of_depth <= gpu.shared_bytes;  // that the weight does not take
    const auto kernel = has_room ? kernel_of(warps, MORE) : kernel_of(warps, ONE);
    const int64_t shared = bytes_of(warps, most, has_room ? int(MORE) : int(ONE)) + kept * of_depth;
    allow_shared(kernel, gpu);
    ClusterLaunch launch(blocks, 32 * most * warps, size_t(shared), stream);
    if (launch.at_once(kernel) < clusters) return false;
    const WideWeight weight = order<T, PAIRS>(a, room, depths, int(kept), stream);
    launch.run(kernel, clusters, a, weight, most);
    return true;
  };
  for (int blocks = std::min(groups, MOST_OF_CLUSTER); blocks > 1; --blocks) {
    const int most = (groups + blocks - 1) / blocks;
    const bool some_empty = (groups + most - 1) / most < blocks;  // but every block has to await what it is sent
    if (some_empty || blocks * clusters > gpu.processors) continue;
    const auto fits = [&](auto warps) { return most * warps <= CLUSTER_WARPS<warps.value>; };
    const bool done = fits(Constant<8>())   ? launched(blocks, Constant<8>())
                      : fits(Constant<4>()) ? launched(blocks, Constant<4>())
                      : fits(Constant<2>()) ? launched(blocks, Constant<2>())
                                            : fits(Constant<1>()) && launched(blocks, Constant<1>());
    if (done) return true;
  }
  return false;
}

template <class T>
bool forward_with_blocks(const LltmArrays<T>& a, void* room, const Gpu& gpu, cudaStream_t stream) {
  if constexpr (sizeof(T) == 8) {
    return false;
  } else {
    auto run = [&](auto tiles) {
      const int rays = RAYS * tiles, warps = std::min(sixteens(a.shape.n_state), FORWARD_WARPS<T, tiles.value>);
      const size_t bytes = forward_wide_bytes<T>(a.shape, rays);
      return launch_wide<T, 3>(forward_wide<T, tiles.value>, a, room, rays, warps, bytes, gpu, stream);
    };
    const auto kernel_of = [](auto warps, auto sum_buffers) {
      return forward_cluster<T, decltype(warps)::value, decltype(sum_buffers)::value>;
    };
    const auto bytes_of = [&](auto warps, int groups, int sum_buffers) -> int64_t {
      return forward_cluster_bytes<T, decltype(warps)::value>(a.shape, groups, sum_buffers);
    };
    if (launch_clusters<T, 3>(a, room, gpu, stream, kernel_of, bytes_of)) return true;
    return (rays_wait(a.shape, gpu) && run(Constant<2>())) || run(Constant<1>());
  }
}

template <class T>
bool backward_with_blocks(const LltmGradients<T>& a, void* room, const Gpu& gpu, cudaStream_t stream) {
  if constexpr (sizeof(T) == 8) {
    return false;
  } else {
    auto run = [&](auto tiles, auto groups) {
      const int rays = RAYS * tiles, warps = (sixteens(a.shape.n_state) + groups - 1) / groups;
      const size_t bytes = backward_wide_bytes<T>(a.shape, rays);
      return warps <= BACKWARD_WARPS<tiles.value, groups.value> &&
             launch_wide<T, 1>(backward_wide<T, tiles.value, groups.value>, a, room, rays, warps, bytes, gpu, stream);
    };
    const auto kernel_of = [](auto warps, auto sum_buffers) {
      return backward_cluster<T, decltype(warps)::value, decltype(sum_buffers)::value>;
    };
    const auto bytes_of = [&](auto warps, int groups, int sum_buffers) -> int64_t {
      return backward_cluster_bytes<T, decltype(warps)::value>(a.shape, groups, sum_buffers);
    };
    if (launch_clusters<T, 1>(a, room, gpu, stream, kernel_of, bytes_of)) return true;
    return (rays_wait(a.shape, gpu) && run(Constant<2>(), Constant<1>())) || run(Constant<1>(), Constant<1>()) ||
           run(Constant<1>(), Constant<4>());
  }
}

// ---- a small state ----

// Calls f with an element of a half type and the number of inputs, a constant.
template <class F>
void dispatch_narrow(DType dtype, int n_input, const F& f) {
  dispatch(dtype, [&](auto element) {
    if constexpr (sizeof(element) == 2) {
      if (n_input == 16)
        f(element, std::integral_constant<int, 16>());
      else
        f(element, std::integral_constant<int, 32>());
    }
  });
}

// As many blocks as run at once, at most `most`. Gives their number.
template <class Kernel, class Arrays>
int launch_narrow(Kernel kernel, const Arrays& arrays, int threads, int64_t most, const Gpu& gpu, Stream stream) {
  int blocks = 0;
  cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads, 0);
  const int64_t tiles = (arrays.shape.n_rays + NARROW_RAYS - 1) / NARROW_RAYS, warps = threads / 32;
  const int64_t grid = std::min(std::min<int64_t>((tiles + warps - 1) / warps, int64_t(blocks) * gpu.processors), most);
  kernel<<<unsigned(grid), threads, 0, (cudaStream_t)stream>>>(arrays, int(tiles));
  return int(grid);
}

}  // namespace

int64_t lltm_shared_bytes() { return current_gpu().shared_bytes; }

Status lltm(DType dtype, const void* input, const void* weight, const void* bias, const void* h0, const void* c0,
            void* h, void* h_n, void* c_n, void* activated, void* c, void* before, void* room, const LltmShape& s,
            Stream stream) {
  if (s.n_rays == 0 || s.n_state == 0) return 0;
  const Gpu gpu = current_gpu();
  if (!activated && is_narrow(dtype, s.n_state, s.n_input) && gpu.major >= TENSOR_CORES_MAJOR && aligned(input, 16) &&
      aligned(h0, 16) && aligned(c0, 16))
    return lltm_narrow(dtype, input, weight, bias, h0, c0, h, h_n, c_n, nullptr, nullptr, s, stream);
  Status status = 0;
  dispatch(dtype, [&](auto element) {
    using T = decltype(element);
    const LltmArrays<T> a{(const T*)input, (const T*)weight, (const T*)bias, (const T*)h0, (const T*)c0, (T*)h,
                          (T*)h_n,         (T*)c_n,          (T*)activated,  (T*)c,        (T*)before,   s};
    const size_t quad = room ? 16 : 4 * sizeof(T);
    const bool quads = aligned(input, quad) && aligned(h0, quad) && aligned(c0, quad);
    const auto on = (cudaStream_t)stream;
    if (!room && forward_of_few(a, gpu, on)) return;
    if (gpu.major >= TENSOR_CORES_MAJOR && quads)
      if (room ? forward_with_blocks(a, room, gpu, on) : forward_with_tiles(a, gpu, on)) return;
    status = launch_rays(forward_ray<T>, a, values_of_ray(s.n_state, s.n_input) * sizeof(acc_t<T>), gpu, on);
  });
  return status ? status : launched();
}

Status lltm_narrow(DType dtype, const void* input, const void* weight, const void* bias, const void* h0, const void* c0,
                   void* h, void* h_n, void* c_n, void* slopes, void* before, const LltmShape& s, Stream stream) {
  if (s.n_rays == 0) return 0;
  const Gpu gpu = current_gpu();
  if (gpu.major < TENSOR_CORES_MAJOR) return cudaErrorNotSupported;
  dispatch_narrow(dtype, s.n_input, [&](auto element, auto inputs) {
    using T = decltype(element);
    const NarrowArrays<T> a{(const T*)input,
                            (const T*)weight,
                            (const T*)bias,
                            (const T*)h0,
                            (const T*)c0,
                            (T*)h,
                            (T*)h_n,
                            (T*)c_n,
                            (T*)slopes,
                            (T*)before,
                            s};
    auto kernel = slopes ? forward_narrow<T, inputs.value, true> : forward_narrow<T, inputs.value, false>;
    launch_narrow(kernel, a, NARROW_THREADS, INT32_MAX, gpu, stream);
  });
  return launched();
}

Status lltm_narrow_bwd(DType dtype, const void* grad_h, const void* grad_h_n, const void* grad_c_n, const void* input,
                       const void* weight, const void* slopes, const void* before, void* grad_input, void* grad_weight,
                       void* grad_bias, void* grad_h0, void* grad_c0, void* parts, const LltmShape& s, Stream stream) {
  const Gpu gpu = current_gpu();
  if (gpu.major < TENSOR_CORES_MAJOR) return cudaErrorNotSupported;
  dispatch_narrow(dtype, s.n_input, [&](auto element, auto inputs) {
    using T = decltype(element);
    const NarrowGradients<T> a{(const T*)grad_h, (const T*)grad_h_n, (const T*)grad_c_n, (const T*)input,
                               (const T*)weight, (const T*)slopes,   (const T*)before,   (T*)grad_input,
                               (T*)grad_h0,      (T*)grad_c0,        (float*)parts,      s};
    int blocks = 0;
    if (s.n_rays > 0)
      blocks = launch_narrow(backward_narrow<T, inputs.value>, a, NARROW_BACKWARD_THREADS, NARROW_PARTS, gpu, stream);
    launch_reduce_partials<T>(parts, grad_weight, grad_bias, blocks, 3 * NARROW_STATE, NARROW_STATE + inputs.value,
                              stream);
  });
  return launched();
}

Status lltm_bwd(DType dtype, const void* grad_h, const void* grad_h_n, const void* grad_c_n, const void* weight,
                const void* activated, const void* c, void* grad_gates, void* grad_h0, void* grad_c0, void* grad_bias,
                void* room, const LltmShape& s, Stream stream) {
  if (s.n_rays == 0 || s.n_state == 0) return 0;
  const Gpu gpu = current_gpu();
  Status status = 0;
  dispatch(dtype, [&](auto element) {
    using T = decltype(element);
    const LltmGradients<T> a{(const T*)grad_h,
                             (const T*)grad_h_n,
                             (const T*)grad_c_n,
                             (const T*)weight,
                             (const T*)activated,
                             (const T*)c,
                             (T*)grad_gates,
                             (T*)grad_h0,
                             (T*)grad_c0,
                             (acc_t<T>*)grad_bias,
                             s};
    const size_t quad = 4 * sizeof(T);
    const bool quads = aligned(grad_h, quad) && aligned(grad_h_n, quad) && aligned(grad_c_n, quad) &&
                       aligned(activated, quad) && aligned(c, quad);
    const auto on = (cudaStream_t)stream;
    if (!room && backward_of_few(a, gpu, on)) return;
    if (gpu.major >= TENSOR_CORES_MAJOR && quads)
      if (room ? backward_with_blocks(a, room, gpu, on) : backward_with_tiles(a, gpu, on)) return;
    status = launch_rays(backward_ray<T>, a, values_of_ray_bwd(s.n_state) * sizeof(acc_t<T>), gpu, on);
  });
  return status ? status : launched();
}

}  // namespace nerfkit
