// SPDX-License-Identifier: Apache-2.0
// The LLTM along every ray. Gates come from the product of [h, input] with the weight's rows; see lltm_cell.h for a
// unit.

#pragma once

#include "common/launch.h"
#include "lltm_cell/args.h"

namespace nerfkit {

struct LltmShape {
  int64_t n_samples, n_rays;
  int n_input, n_state;
  const int64_t* ray_offsets;
  const int64_t* order;  // rays in the order in which the GPU takes them, [R]; null for that of ray_offsets
};

// On a GPU with tensor cores: a wider state or input has kernels of its own, which take the weight in another order
// (lltm_wide.cuh). Elements of the room that it needs; 0: none.
constexpr int WIDEST_STATE = 64, WIDEST_INPUT = 64;
inline int64_t in_sixteens(int64_t n) { return (n + 15) / 16 * 16; }
inline int64_t wide_room(DType dtype, int64_t n_state, int64_t n_input) {
  const bool wide = n_state > WIDEST_STATE || n_input > WIDEST_INPUT || n_input == 0;
  return wide && dtype != DType::f64 ? 3 * in_sixteens(n_state) * in_sixteens(in_sixteens(n_state) + n_input) : 0;
}
inline int64_t wide_room_bwd(DType dtype, int64_t n_state) {
  return n_state > WIDEST_STATE && dtype != DType::f64 ? 3 * in_sixteens(n_state) * in_sixteens(n_state) : 0;
}

// On a GPU: what sizes that fit nowhere else take of shared memory, forward and backward, in accumulation type; and how
// much there is. Where that is too little, the launchers give TOO_WIDE.
constexpr Status TOO_WIDE = -1;
HD constexpr int64_t whole_quads(int64_t n) { return (n + 3) / 4 * 4; }
inline int64_t values_of_ray(int64_t n_state, int64_t n_input) { return 2 * n_state + whole_quads(n_state + n_input); }
inline int64_t values_of_ray_bwd(int64_t n_state) { return whole_quads(5 * n_state) + 4; }
int64_t lltm_shared_bytes();

constexpr int KEPT_ON_CPU = 4;  // of each unit: input gate, output gate, candidate, hyperbolic tangent of c
// For the backward pass are written, or null: activated [N, 3H], on a CPU [N, KEPT_ON_CPU * H]; on a GPU c [N, H] and
// before [N, H], the state in front of each sample.
Status lltm(DType, const void* input, const void* weight, const void* bias, const void* h0, const void* c0, void* h,
            void* h_n, void* c_n, void* activated, void* c, void* before, void* room, const LltmShape&, Stream);
// On a GPU. Gradients of the gates before activation [N, 3H], of h0 and of c0; those of input and weight are products
// with these. grad_bias [BIAS_PARTS, 3H], zero at the start, of the accumulation type: the sum of its rows is that of
// the bias.
constexpr int BIAS_PARTS = 2048;
Status lltm_bwd(DType, const void* grad_h, const void* grad_h_n, const void* grad_c_n, const void* weight,
                const void* activated, const void* c, void* grad_gates, void* grad_h0, void* grad_c0, void* grad_bias,
                void* room, const LltmShape&, Stream);
// On a GPU with tensor cores: half types, a state of NARROW_STATE units and 16 or 32 inputs, rows aligned to 16 bytes.
// For the backward pass slopes [N, 4H], in an order of their own (lltm_narrow.cuh), and before [N, H] are written, or
// null.
constexpr int NARROW_STATE = 16, NARROW_SLOPES = 4, NARROW_PARTS = 256;
inline bool is_narrow(DType dtype, int64_t n_state, int64_t n_input) {
  return (dtype == DType::f16 || dtype == DType::bf16) && n_state == NARROW_STATE && (n_input == 16 || n_input == 32);
}
Status lltm_narrow(DType, const void* input, const void* weight, const void* bias, const void* h0, const void* c0,
                   void* h, void* h_n, void* c_n, void* slopes, void* before, const LltmShape&, Stream);
// Gradients of all inputs. parts [NARROW_PARTS, 3H, H + I + 1], float32: room for sums.
Status lltm_narrow_bwd(DType, const void* grad_h, const void* grad_h_n, const void* grad_c_n, const void* input,
                       const void* weight, const void* slopes, const void* before, void* grad_input, void* grad_weight,
                       void* grad_bias, void* grad_h0, void* grad_c0, void* parts, const LltmShape&, Stream);
// On a CPU. Gradients of all inputs.
Status lltm_cpu_bwd(DType, const void* grad_h, const void* grad_h_n, const void* grad_c_n, const void* input,
                    const void* weight, const void* h0, const void* activated, void* grad_input, void* grad_weight,
                    void* grad_bias, void* grad_h0, void* grad_c0, const LltmShape&);

}  // namespace nerfkit
