// SPDX-License-Identifier: Apache-2.0
// The LLTM along every ray: arguments and launchers. N samples, R rays, I inputs, H units of state; gates come from the
// product of [h, input] with the weight's rows, in the order input gate, output gate, candidate. lltm_cell/args.h has
// the mathematics of one unit, NOTES.md the gradient and which kernel takes which size.

#pragma once

#include <type_traits>

#include "common/launch.h"
#include "lltm_cell/args.h"

namespace nerfkit {

struct LltmShape {
  int64_t n_samples, n_rays;   // N, R
  int n_input, n_state;        // I, H
  const int64_t* ray_offsets;  // [R + 1]
  const int64_t* order;        // [R], rays as the GPU takes them, longest first; null: in the order of memory
};

// What the forward pass saves for the backward pass is one workspace of the element type, in rows of H:
//   CPU:           activated i, o, g and tanh(c') of each sample [N, 4, H], then h0 [R, H]
//   GPU, state16:  saved derivatives [N, 8, 4, 2] (state16.cuh), then the state before each sample [N, H]
//   GPU, others:   activated i, o, g [N, 3, H], then c' [N, H], then the state before each sample [N, H]
constexpr int SAVED_ON_CPU = 4, SAVED_ON_GPU = 5;  // rows of a sample
inline int64_t workspace_rows(bool on_cpu, int64_t n_samples, int64_t n_rays) {
  return on_cpu ? SAVED_ON_CPU * n_samples + n_rays : SAVED_ON_GPU * n_samples;
}

// The structs below hold void pointers in a launcher's signature and typed ones, as<T>(), in a kernel's.

template <class T>
struct LltmForward {
  const T* input;   // [N, I]
  const T* weight;  // [3H, H + I]
  const T* bias;    // [3H]
  const T* h0;      // [R, H]
  const T* c0;      // [R, H]
  T* h;             // [N, H]
  T* h_n;           // [R, H]
  T* c_n;           // [R, H]
  T* workspace;     // [workspace_rows, H], written for the backward pass; or null
  LltmShape shape;

  template <class U>
  LltmForward<U> as() const {
    return {(const U*)input, (const U*)weight, (const U*)bias, (const U*)h0,  (const U*)c0,
            (U*)h,           (U*)h_n,          (U*)c_n,        (U*)workspace, shape};
  }
};

// Gradients of all inputs: on a CPU, and on a GPU by the kernels for a state of 16 units.
template <class T>
struct LltmBackward {
  const T* grad_h;     // [N, H]
  const T* grad_h_n;   // [R, H]
  const T* grad_c_n;   // [R, H]
  const T* input;      // [N, I]
  const T* weight;     // [3H, H + I]
  const T* workspace;  // [workspace_rows, H]
  T* grad_input;       // [N, I]
  T* grad_weight;      // [3H, H + I]
  T* grad_bias;        // [3H]
  T* grad_h0;          // [R, H]
  T* grad_c0;          // [R, H]
  float* partials;     // [STATE16_PARTIALS, 3H, H + I + 1], scratch on a GPU: sums of weight and, behind them, bias
  LltmShape shape;

  template <class U>
  LltmBackward<U> as() const {
    return {(const U*)grad_h,
            (const U*)grad_h_n,
            (const U*)grad_c_n,
            (const U*)input,
            (const U*)weight,
            (const U*)workspace,
            (U*)grad_input,
            (U*)grad_weight,
            (U*)grad_bias,
            (U*)grad_h0,
            (U*)grad_c0,
            partials,
            shape};
  }
};

// On a GPU, of all other sizes: gradients before activation. Those of input and weight are products with these.
template <class T>
struct LltmGateBackward {
  using Sum = std::conditional_t<std::is_void_v<T>, void, acc_t<T>>;
  const T* grad_h;     // [N, H]
  const T* grad_h_n;   // [R, H]
  const T* grad_c_n;   // [R, H]
  const T* weight;     // [3H, H + I]
  const T* workspace;  // [workspace_rows, H]
  T* grad_gates;       // [N, 3H], before activation
  T* grad_h0;          // [R, H]
  T* grad_c0;          // [R, H]
  Sum* grad_bias;      // [BIAS_PARTIALS, 3H], zero at the start; the sum of its rows is the bias's gradient
  LltmShape shape;

  template <class U>
  LltmGateBackward<U> as() const {
    return {(const U*)grad_h, (const U*)grad_h_n, (const U*)grad_c_n, (const U*)weight,     (const U*)workspace,
            (U*)grad_gates,   (U*)grad_h0,        (U*)grad_c0,        (acc_t<U>*)grad_bias, shape};
  }
};

Status lltm(DType, const LltmForward<void>&, Stream);
Status lltm_bwd(DType, const LltmBackward<void>&, Stream);

// ---- on a GPU only ----

Status lltm_gates_bwd(DType, const LltmGateBackward<void>&, Stream);
constexpr int BIAS_PARTIALS = 2048;    // blocks, or groups of 16 rays, that add to the bias's gradient, at most
constexpr int STATE16_PARTIALS = 256;  // blocks of the backward kernel for 16 units, at most

// Whether the current GPU takes these sizes by the kernels for a state of 16 units, whose backward pass is lltm_bwd.
bool lltm_is_state16(DType, int64_t n_state, int64_t n_input);

// The most units and inputs that the GPU's kernels take: the weight then fits in registers or shared memory.
constexpr int LARGEST_ON_GPU = 64;

}  // namespace nerfkit
