// SPDX-License-Identifier: Apache-2.0
// The LLTM of any size and type, in plain arithmetic: a warp walks along a ray.

#pragma once

#include "lltm/mma16.cuh"

namespace nerfkit {
namespace {

constexpr int LANES_OF_UNIT = 8,
              UNITS_AT_ONCE = 32 / LANES_OF_UNIT;  // neighbours in a row of the weight share a sector

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
      for (int first = 0; first < H; first += UNITS_AT_ONCE) {
        const int j = min(first + lane / LANES_OF_UNIT, H - 1);
        A gates[3] = {};
        for (int k = lane % LANES_OF_UNIT; k < H + I; k += LANES_OF_UNIT)
          for (int gate = 0; gate < 3; ++gate) gates[gate] += in[k] * A(a.weight[int64_t(gate * H + j) * (H + I) + k]);
        for (int gate = 0; gate < 3; ++gate)
          gates[gate] = warp_sum(gates[gate], LANES_OF_UNIT) + A(a.bias[gate * H + j]);
        if (lane % LANES_OF_UNIT || first + lane / LANES_OF_UNIT >= H) continue;
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

template <class Kernel, class Arrays>
Status launch_rays(Kernel kernel, const Arrays& arrays, int64_t shared, const Gpu& gpu, cudaStream_t stream) {
  if (shared > gpu.shared_bytes) return TOO_WIDE;
  allow_shared(kernel, gpu);
  kernel<<<unsigned(std::min<int64_t>(arrays.shape.n_rays, BIAS_PARTS)), 32, size_t(shared), stream>>>(arrays);
  return 0;
}

}  // namespace
}  // namespace nerfkit
