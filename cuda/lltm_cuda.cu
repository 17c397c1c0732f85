// SPDX-License-Identifier: Apache-2.0
// Sixteen rays together on tensor cores (lltm_tiles_forward.cuh, lltm_tiles_backward.cuh), or eight in the registers of a warp
// where the state is small (lltm_narrow_forward.cuh, lltm_narrow_backward.cuh); where there are no such cores, or sizes they do
// not fit, a warp a ray, in plain arithmetic.

#include "lltm_narrow_backward.cuh"
#include "lltm_narrow_forward.cuh"
#include "lltm_tiles_backward.cuh"
#include "lltm_tiles_forward.cuh"
#include "partial_sums.cuh"

namespace nerfkit {
namespace {

// ---- any size and type: a warp a ray ----

// Room for an array that is read four numbers at a time.
HD int whole_quads(int n) { return (n + 3) / 4 * 4; }

template <class T>
__global__ void __launch_bounds__(32) forward_ray(const LltmArrays<T> a) {
  using A = acc_t<T>;
  extern __shared__ __align__(16) unsigned char shared[];
  const int H = a.shape.n_state, I = a.shape.n_input, lane = threadIdx.x;
  A *in = reinterpret_cast<A*>(shared), *h_new = in + whole_quads(H + I), *c = h_new + H;  // in = [h, input]
  for (int64_t ray = blockIdx.x; ray < a.shape.n_rays; ray += gridDim.x) {
    for (int j = lane; j < H; j += 32) in[j] = A(a.h0[ray * H + j]), c[j] = A(a.c0[ray * H + j]);
    for (int64_t n = a.shape.ray_offsets[ray]; n < a.shape.ray_offsets[ray + 1]; ++n) {
      for (int k = lane; k < I; k += 32) in[H + k] = A(a.input[n * I + k]);
      __syncwarp();
      for (int j = lane; j < H; j += 32) {
        A gates[3];
        for (int gate = 0; gate < 3; ++gate) {
          const T* row = a.weight + int64_t(gate * H + j) * (H + I);
          A sum = A(a.bias[gate * H + j]);
          for (int k = 0; k < H + I; ++k) sum += in[k] * A(row[k]);
          gates[gate] = sum;
        }
        const Gates<A> unit = activate(gates[0], gates[1], gates[2]);
        c[j] += unit.g * unit.i;
        h_new[j] = hyperbolic_tangent(c[j]) * unit.o;
        a.h[n * H + j] = T(h_new[j]);
        if (!a.activated) continue;
        a.c[n * H + j] = T(c[j]), a.before[n * H + j] = T(in[j]);
        T* act = a.activated + 3 * n * H + j;
        act[0] = T(unit.i), act[H] = T(unit.o), act[2 * H] = T(unit.g);
      }
      __syncwarp();
      for (int j = lane; j < H; j += 32) in[j] = h_new[j];
      __syncwarp();
    }
    for (int j = lane; j < H; j += 32) a.h_n[ray * H + j] = T(in[j]), a.c_n[ray * H + j] = T(c[j]);
    __syncwarp();
  }
}

template <class T>
__global__ void __launch_bounds__(32) backward_ray(const LltmGradients<T> a) {
  using A = acc_t<T>;
  extern __shared__ __align__(16) unsigned char shared[];
  const int H = a.shape.n_state, columns = H + a.shape.n_input, lane = threadIdx.x;
  A *grad_h = reinterpret_cast<A*>(shared), *grad_c = grad_h + H, *grad_gates = grad_c + H;
  A* bias = a.bias + int64_t(blockIdx.x) * 3 * H;
  for (int64_t ray = blockIdx.x; ray < a.shape.n_rays; ray += gridDim.x) {
    for (int j = lane; j < H; j += 32) grad_h[j] = A(a.h_n[ray * H + j]), grad_c[j] = A(a.c_n[ray * H + j]);
    for (int64_t n = a.shape.ray_offsets[ray + 1] - 1; n >= a.shape.ray_offsets[ray]; --n) {
      for (int j = lane; j < H; j += 32) {
        const T* act = a.activated + 3 * n * H + j;
        const Gates<A> gate{A(act[0]), A(act[H]), A(act[2 * H])};
        Gates<A> grad;
        grad_c[j] = activate_bwd(gate, A(a.c[n * H + j]), grad_h[j] + A(a.h[n * H + j]), grad_c[j], grad);
        grad_gates[j] = grad.i, grad_gates[H + j] = grad.o, grad_gates[2 * H + j] = grad.g;
        bias[j] += grad.i, bias[H + j] += grad.o, bias[2 * H + j] += grad.g;
        T* to = a.gates + 3 * n * H + j;
        to[0] = T(grad.i), to[H] = T(grad.o), to[2 * H] = T(grad.g);
      }
      __syncwarp();
      for (int j = lane; j < H; j += 32) {
        A sum = 0;
        for (int k = 0; k < 3 * H; ++k) sum += grad_gates[k] * A(a.weight[int64_t(k) * columns + j]);
        grad_h[j] = sum;
      }
      __syncwarp();
    }
    for (int j = lane; j < H; j += 32) a.h0[ray * H + j] = T(grad_h[j]), a.c0[ray * H + j] = T(grad_c[j]);
    __syncwarp();
  }
}

// ---- launching ----

int padded(int n) { return n <= 16 ? 16 : n <= 32 ? 32 : 64; }

bool fits_tiles(const LltmShape& s) {
  return s.n_state <= WIDEST_STATE && s.n_input <= WIDEST_INPUT && s.n_input > 0;
}

// Calls f with a constant.
template <class F>
void with_size(int n, const F& f) {
  switch (padded(n)) {
    case 16: return f(std::integral_constant<int, 16>());
    case 32: return f(std::integral_constant<int, 32>());
    default: return f(std::integral_constant<int, 64>());
  }
}

// False if the kernel needs more shared memory than there is.
template <class Size, class Kernel, class Arrays>
bool launch_tiles(Kernel kernel, const Arrays& arrays, size_t shared, const Gpu& gpu, cudaStream_t stream) {
  if (shared > size_t(gpu.shared_bytes)) return false;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(shared));
  int blocks = 0;
  cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, Size::THREADS, shared);
  if (blocks == 0) return false;
  const int64_t tiles = (arrays.shape.n_rays + RAYS - 1) / RAYS;
  const int64_t resident = std::min<int64_t>(int64_t(blocks) * gpu.processors, BIAS_PARTS / Size::GROUPS);
  const int64_t grid = std::min<int64_t>((tiles + Size::GROUPS - 1) / Size::GROUPS, resident);
  kernel<<<unsigned(grid), Size::THREADS, shared, stream>>>(arrays, tiles);
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
        size_t shared = size_t(Size::GROUPS) * 2 * RAYS * (H + PADDING) * sizeof(T) + 3 * H * sizeof(float);
        if (!Op::IN_REGISTERS) shared += size_t(Size::WARPS) * 2 * 3 * ((H + I) / Op::DEPTH) * 32 * sizeof(typename Op::Weight);
        auto kernel = forward_tiles<T, H, I, false>;
        if constexpr (Op::IN_REGISTERS)
          if (a.shape.n_state == H && a.shape.n_input == I && a.shape.n_samples > 0) kernel = forward_tiles<T, H, I, true>;
        done = launch_tiles<Size>(kernel, a, shared, gpu, stream);
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
      size_t shared = size_t(Size::GROUPS) * 2 * RAYS * (3 * H + PADDING) * sizeof(T);
      if (!Op::IN_REGISTERS) shared += size_t(Size::WARPS) * 2 * (3 * H / Op::DEPTH) * 32 * sizeof(typename Op::Weight);
      auto kernel = backward_tiles<T, H, false>;
      if constexpr (Op::IN_REGISTERS)
        if (a.shape.n_state == H && a.shape.n_samples > 0) kernel = backward_tiles<T, H, true>;
      done = launch_tiles<Size>(kernel, a, shared, gpu, stream);
    });
  }
  return done;
}

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

template <class Kernel, class Arrays>
void launch_rays(Kernel kernel, const Arrays& arrays, size_t shared, const Gpu&, cudaStream_t stream) {
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(shared));
  kernel<<<unsigned(std::min<int64_t>(arrays.shape.n_rays, BIAS_PARTS)), 32, shared, stream>>>(arrays);
}

}  // namespace

Status lltm(DType dtype, const void* input, const void* weight, const void* bias, const void* h0, const void* c0, void* h,
            void* h_n, void* c_n, void* activated, void* c, void* before, const LltmShape& s, Stream stream) {
  if (s.n_rays == 0 || s.n_state == 0) return 0;
  const Gpu gpu = current_gpu();
  if (!activated && is_narrow(dtype, s.n_state, s.n_input) && gpu.major >= TENSOR_CORES_MAJOR && aligned(input, 16) &&
      aligned(h0, 16) && aligned(c0, 16))
    return lltm_narrow(dtype, input, weight, bias, h0, c0, h, h_n, c_n, nullptr, nullptr, s, stream);
  dispatch(dtype, [&](auto element) {
    using T = decltype(element);
    const LltmArrays<T> a{(const T*)input, (const T*)weight, (const T*)bias, (const T*)h0, (const T*)c0, (T*)h,
                          (T*)h_n,         (T*)c_n,          (T*)activated,  (T*)c,        (T*)before, s};
    const size_t quad = 4 * sizeof(T);
    const bool quads = aligned(input, quad) && aligned(h0, quad) && aligned(c0, quad);
    if (gpu.major >= TENSOR_CORES_MAJOR && quads && fits_tiles(s) && forward_with_tiles(a, gpu, (cudaStream_t)stream)) return;
    launch_rays(forward_ray<T>, a, size_t(2 * s.n_state + whole_quads(s.n_state + s.n_input)) * sizeof(acc_t<T>), gpu, (cudaStream_t)stream);
  });
  return launched();
}

Status lltm_narrow(DType dtype, const void* input, const void* weight, const void* bias, const void* h0, const void* c0, void* h,
                   void* h_n, void* c_n, void* slopes, void* before, const LltmShape& s, Stream stream) {
  if (s.n_rays == 0) return 0;
  const Gpu gpu = current_gpu();
  if (gpu.major < TENSOR_CORES_MAJOR) return cudaErrorNotSupported;
  dispatch_narrow(dtype, s.n_input, [&](auto element, auto inputs) {
    using T = decltype(element);
    const NarrowArrays<T> a{(const T*)input, (const T*)weight, (const T*)bias, (const T*)h0, (const T*)c0, (T*)h,
                            (T*)h_n,         (T*)c_n,          (T*)slopes,     (T*)before,   s};
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
    const NarrowGradients<T> a{(const T*)grad_h, (const T*)grad_h_n, (const T*)grad_c_n, (const T*)input, (const T*)weight, (const T*)slopes,
                               (const T*)before, (T*)grad_input,     (T*)grad_h0,        (T*)grad_c0,     (float*)parts,    s};
    int blocks = 0;
    if (s.n_rays > 0)
      blocks = launch_narrow(backward_narrow<T, inputs.value>, a, NARROW_BACKWARD_THREADS, NARROW_PARTS, gpu, stream);
    launch_add_partials<T>(parts, grad_weight, grad_bias, blocks, 3 * NARROW_STATE, NARROW_STATE + inputs.value, stream);
  });
  return launched();
}

Status lltm_bwd(DType dtype, const void* grad_h, const void* grad_h_n, const void* grad_c_n, const void* weight,
                const void* activated, const void* c, void* grad_gates, void* grad_h0, void* grad_c0, void* grad_bias,
                const LltmShape& s, Stream stream) {
  if (s.n_rays == 0 || s.n_state == 0) return 0;
  const Gpu gpu = current_gpu();
  dispatch(dtype, [&](auto element) {
    using T = decltype(element);
    const LltmGradients<T> a{(const T*)grad_h, (const T*)grad_h_n, (const T*)grad_c_n, (const T*)weight, (const T*)activated,
                             (const T*)c,      (T*)grad_gates,     (T*)grad_h0,        (T*)grad_c0,      (acc_t<T>*)grad_bias, s};
    const size_t quad = 4 * sizeof(T);
    const bool quads = aligned(grad_h, quad) && aligned(grad_h_n, quad) && aligned(grad_c_n, quad);
    if (gpu.major >= TENSOR_CORES_MAJOR && quads && fits_tiles(s) && backward_with_tiles(a, gpu, (cudaStream_t)stream)) return;
    launch_rays(backward_ray<T>, a, size_t(whole_quads(5 * s.n_state) + 4) * sizeof(acc_t<T>), gpu, (cudaStream_t)stream);
  });
  return launched();
}

}  // namespace nerfkit
