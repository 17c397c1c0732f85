// SPDX-License-Identifier: Apache-2.0
// The LLTM of any type, in plain arithmetic: one warp per ray. Up to 64 units and inputs, so that a warp's numbers fit
// in the shared memory that every GPU has.

#include "lltm/launchers.cuh"

namespace nerfkit {
namespace {

constexpr int UNIT_LANES = 8,
              WARP_UNITS = 32 / UNIT_LANES;  // neighbours in a row of the weight share a sector

template <class T>
__global__ void __launch_bounds__(32) lltm_generic_forward(const LltmForward<T> a, const SavedGates<T> saved) {
  using A = acc_t<T>;
  extern __shared__ __align__(16) unsigned char shared[];
  const int H = a.shape.n_state, I = a.shape.n_input, lane = threadIdx.x;
  A *in = reinterpret_cast<A*>(shared), *h_new = in + H + I, *c = h_new + H;  // in = [h, input]
  for (int64_t ray = blockIdx.x; ray < a.shape.n_rays; ray += gridDim.x) {
    for (int j = lane; j < H; j += 32) in[j] = A(a.h0[ray * H + j]), c[j] = A(a.c0[ray * H + j]);
    for (int64_t n = a.shape.ray_offsets[ray]; n < a.shape.ray_offsets[ray + 1]; ++n) {
      for (int k = lane; k < I; k += 32) in[H + k] = A(a.input[n * I + k]);
      __syncwarp();
      for (int first = 0; first < H; first += WARP_UNITS) {
        const int j = min(first + lane / UNIT_LANES, H - 1);
        A gates[3] = {};
        for (int k = lane % UNIT_LANES; k < H + I; k += UNIT_LANES)
          for (int gate = 0; gate < 3; ++gate) gates[gate] += in[k] * A(a.weight[int64_t(gate * H + j) * (H + I) + k]);
        for (int gate = 0; gate < 3; ++gate) gates[gate] = warp_sum(gates[gate], UNIT_LANES) + A(a.bias[gate * H + j]);
        if (lane % UNIT_LANES || first + lane / UNIT_LANES >= H) continue;
        const Gates<A> unit = activate(gates[0], gates[1], gates[2]);
        c[j] += unit.g * unit.i;
        h_new[j] = hyperbolic_tangent(c[j]) * unit.o;
        a.h[n * H + j] = T(h_new[j]);
        if (!saved.activated) continue;
        saved.c[n * H + j] = T(c[j]), saved.before[n * H + j] = T(in[j]);
        T* act = saved.activated + 3 * n * H + j;
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
__global__ void __launch_bounds__(32)
    lltm_generic_backward(const LltmGateBackward<T> a, const SavedGates<const T> saved) {
  using A = acc_t<T>;
  extern __shared__ __align__(16) unsigned char shared[];
  const int H = a.shape.n_state, columns = H + a.shape.n_input, lane = threadIdx.x;
  A *grad_h = reinterpret_cast<A*>(shared), *grad_c = grad_h + H, *grad_gates = grad_c + H;
  A* bias = a.grad_bias + int64_t(blockIdx.x) * 3 * H;
  for (int64_t ray = blockIdx.x; ray < a.shape.n_rays; ray += gridDim.x) {
    for (int j = lane; j < H; j += 32) grad_h[j] = A(a.grad_h_n[ray * H + j]), grad_c[j] = A(a.grad_c_n[ray * H + j]);
    for (int64_t n = a.shape.ray_offsets[ray + 1] - 1; n >= a.shape.ray_offsets[ray]; --n) {
      for (int j = lane; j < H; j += 32) {
        const T* act = saved.activated + 3 * n * H + j;
        const Gates<A> gate{A(act[0]), A(act[H]), A(act[2 * H])};
        Gates<A> grad;
        grad_c[j] = activate_bwd(gate, A(saved.c[n * H + j]), grad_h[j] + A(a.grad_h[n * H + j]), grad_c[j], grad);
        grad_gates[j] = grad.i, grad_gates[H + j] = grad.o, grad_gates[2 * H + j] = grad.g;
        bias[j] += grad.i, bias[H + j] += grad.o, bias[2 * H + j] += grad.g;
        T* to = a.grad_gates + 3 * n * H + j;
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
    for (int j = lane; j < H; j += 32) a.grad_h0[ray * H + j] = T(grad_h[j]), a.grad_c0[ray * H + j] = T(grad_c[j]);
    __syncwarp();
  }
}

// shared: numbers of the accumulation type, in whole 16 bytes: the compiler reads doubles in pairs, the last one too.
template <class T, class Kernel, class Arguments, class Saved>
void launch_generic(Kernel kernel, const Arguments& a, const Saved& saved, int64_t shared, const LltmLaunch& on) {
  const int64_t blocks = std::min<int64_t>(a.shape.n_rays, BIAS_PARTIALS);
  const size_t bytes = (size_t(shared) * sizeof(acc_t<T>) + 15) / 16 * 16;
  kernel<<<unsigned(blocks), 32, bytes, on.stream>>>(a, saved);
}

}  // namespace

void launch_generic_forward(const LltmLaunch& on, const LltmForward<void>& arguments) {
  dispatch(on.dtype, [&](auto element) {
    using T = decltype(element);
    const LltmForward<T> a = arguments.as<T>();
    const int64_t shared = 3 * a.shape.n_state + a.shape.n_input;
    launch_generic<T>(lltm_generic_forward<T>, a, saved_gates(a.workspace, a.shape), shared, on);
  });
}

void launch_generic_backward(const LltmLaunch& on, const LltmGateBackward<void>& arguments) {
  dispatch(on.dtype, [&](auto element) {
    using T = decltype(element);
    const LltmGateBackward<T> a = arguments.as<T>();
    launch_generic<T>(lltm_generic_backward<T>, a, saved_gates(a.workspace, a.shape), 5 * a.shape.n_state, on);
  });
}

}  // namespace nerfkit
