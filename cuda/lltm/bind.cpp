// SPDX-License-Identifier: Apache-2.0

#include "lltm/args.h"

#include "common/bind.h"

namespace nerfkit {
namespace {

const int64_t* rays_in_order(const std::optional<Tensor>& order, const Tensor& like, int64_t rays) {
  if (!order) return nullptr;
  STD_TORCH_CHECK(order->is_contiguous(), "nerfkit: order must be contiguous");
  return static_cast<const int64_t*>(const_ptr(check_contiguous("order", *order, like, ScalarType::Long, {rays})));
}

// With rows that begin at a multiple of 16 bytes.
Tensor aligned_rows(const Tensor& rows) {
  return reinterpret_cast<uintptr_t>(const_ptr(rows)) % 16 ? torch::stable::clone(rows) : rows;
}

void check_fits(const char* op, Status status, const Tensor& weight, int64_t values) {
#ifdef USE_CUDA
  const int64_t state = weight.size(0) / 3, bytes = values * (weight.scalar_type() == ScalarType::Double ? 8 : 4);
  STD_TORCH_CHECK(status != TOO_WIDE, "nerfkit: ", op, ": a state of ", state, " and ", weight.size(1) - state,
                  " inputs take ", bytes, " bytes of shared memory, a block of this GPU has ", lltm_shared_bytes(),
                  "; ops.backend(\"torch\") takes any size");
#endif
}

using Five = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;
using Six = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

Six forward(const Tensor& input_in, const Tensor& offsets_in, const Tensor& weight_in, const Tensor& bias_in,
            const Tensor& h0_in, const Tensor& c0_in, std::optional<Tensor> order, bool save) {
  const OnDevice device(input_in);
  Tensor input = check_contiguous("input", input_in, input_in, {ANY, ANY});
  const Tensor ray_offsets = check_contiguous("ray_offsets", offsets_in, input, ScalarType::Long, {ANY});
  const int64_t n = input.size(0), rays = ray_offsets.size(0) - 1;
  Tensor h0 = check_contiguous("h0", h0_in, input, {rays, ANY});
  const int64_t state = h0.size(1), n_input = input.size(1);
  Tensor c0 = check_contiguous("c0", c0_in, input, {rays, state});
  const Tensor weight = check_contiguous("weight", weight_in, input, {3 * state, state + n_input});
  const Tensor bias = check_contiguous("bias", bias_in, input, {3 * state});
  Tensor h = empty(input, {n, state}), h_n = empty(input, {rays, state}), c_n = empty(input, {rays, state});
  Tensor activated = save ? empty(input, {n, (input.is_cpu() ? KEPT_ON_CPU : 3) * state}) : empty0(input);
  const bool save_states = save && !input.is_cpu();
  Tensor c = save_states ? empty(input, {n, state}) : empty0(input);
  Tensor before = save_states ? empty(input, {n, state}) : empty0(input);
  const LltmShape shape{n, rays, int(n_input), int(state), offsets(ray_offsets, n), rays_in_order(order, input, rays)};
  const int64_t room_size = input.is_cpu() ? 0 : wide_room(dtype_of(input), state, n_input);
  Tensor room = empty(input, {room_size});
  if (room_size) input = aligned_rows(input), h0 = aligned_rows(h0), c0 = aligned_rows(c0);
  const Status status = lltm(dtype_of(input), const_ptr(input), const_ptr(weight), const_ptr(bias), const_ptr(h0),
                             const_ptr(c0), mutable_ptr(h), mutable_ptr(h_n), mutable_ptr(c_n), mutable_ptr(activated),
                             mutable_ptr(c), mutable_ptr(before), mutable_ptr(room), shape, device.stream);
  check_fits("lltm", status, weight, values_of_ray(state, n_input));
  check_launch("lltm", status);
  return {h, h_n, c_n, activated, c, before};
}

#ifdef USE_CUDA
std::tuple<Tensor, Tensor, Tensor, Tensor> backward(const Tensor& grad_h_in, const Tensor& grad_h_n_in,
                                                    const Tensor& grad_c_n_in, const Tensor& offsets_in,
                                                    const Tensor& weight_in, const Tensor& gates_in, const Tensor& c_in,
                                                    std::optional<Tensor> order) {
  const OnDevice device(gates_in);
  Tensor gates = check_contiguous("gates", gates_in, gates_in, {ANY, ANY});
  const int64_t n = gates.size(0), state = gates.size(1) / 3;
  const Tensor ray_offsets = check_contiguous("ray_offsets", offsets_in, gates, ScalarType::Long, {ANY});
  const int64_t rays = ray_offsets.size(0) - 1;
  Tensor c = check_contiguous("c", c_in, gates, {n, state});
  const Tensor weight = check_contiguous("weight", weight_in, gates, {3 * state, ANY});
  Tensor grad_h = check_contiguous("grad_h", grad_h_in, gates, {n, state});
  Tensor grad_h_n = check_contiguous("grad_h_n", grad_h_n_in, gates, {rays, state});
  Tensor grad_c_n = check_contiguous("grad_c_n", grad_c_n_in, gates, {rays, state});
  Tensor grad_gates = empty(gates, {n, 3 * state}), grad_h0 = empty(gates, {rays, state}),
         grad_c0 = empty(gates, {rays, state});
  Tensor grad_bias = zeros(gates, {BIAS_PARTS, 3 * state}, acc_type(gates.scalar_type()));
  const LltmShape shape{
      n, rays, int(weight.size(1) - state), int(state), offsets(ray_offsets, n), rays_in_order(order, gates, rays)};
  const int64_t room_size = wide_room_bwd(dtype_of(gates), state);
  Tensor room = empty(gates, {room_size});
  if (room_size) {
    grad_h = aligned_rows(grad_h), grad_h_n = aligned_rows(grad_h_n), grad_c_n = aligned_rows(grad_c_n);
    gates = aligned_rows(gates), c = aligned_rows(c);
  }
  const Status status =
      lltm_bwd(dtype_of(gates), const_ptr(grad_h), const_ptr(grad_h_n), const_ptr(grad_c_n), const_ptr(weight),
               const_ptr(gates), const_ptr(c), mutable_ptr(grad_gates), mutable_ptr(grad_h0), mutable_ptr(grad_c0),
               mutable_ptr(grad_bias), mutable_ptr(room), shape, device.stream);
  check_fits("lltm_bwd", status, weight, values_of_ray_bwd(state));
  check_launch("lltm_bwd", status);
  return {grad_gates, grad_h0, grad_c0, grad_bias};
}

Tensor aligned_rows(const char* name, const Tensor& tensor, const Tensor& like, const Shape& shape) {
  return aligned_rows(check_contiguous(name, tensor, like, shape));
}

void check_narrow(const Tensor& input) {
  STD_TORCH_CHECK(is_narrow(dtype_of(input), NARROW_STATE, input.size(1)), "nerfkit: there is no such kernel for ",
                  input.size(1), " inputs of ", torch::headeronly::toString(input.scalar_type()));
}

Five narrow_forward(const Tensor& input_in, const Tensor& offsets_in, const Tensor& weight_in, const Tensor& bias_in,
                    const Tensor& h0_in, const Tensor& c0_in, std::optional<Tensor> order) {
  const OnDevice device(input_in);
  const Tensor input = aligned_rows("input", input_in, input_in, {ANY, ANY});
  check_narrow(input);
  const Tensor ray_offsets = check_contiguous("ray_offsets", offsets_in, input, ScalarType::Long, {ANY});
  const int64_t n = input.size(0), n_input = input.size(1), rays = ray_offsets.size(0) - 1, state = NARROW_STATE;
  const Tensor h0 = aligned_rows("h0", h0_in, input, {rays, state}),
               c0 = aligned_rows("c0", c0_in, input, {rays, state});
  const Tensor weight = check_contiguous("weight", weight_in, input, {3 * state, state + n_input});
  const Tensor bias = check_contiguous("bias", bias_in, input, {3 * state});
  Tensor h = empty(input, {n, state}), h_n = empty(input, {rays, state}), c_n = empty(input, {rays, state});
  Tensor slopes = empty(input, {n, NARROW_SLOPES * state}), before = empty(input, {n, state});
  const LltmShape shape{
      n, rays, int(n_input), NARROW_STATE, offsets(ray_offsets, n), rays_in_order(order, input, rays)};
  check_launch("lltm_narrow",
               lltm_narrow(dtype_of(input), const_ptr(input), const_ptr(weight), const_ptr(bias), const_ptr(h0),
                           const_ptr(c0), mutable_ptr(h), mutable_ptr(h_n), mutable_ptr(c_n), mutable_ptr(slopes),
                           mutable_ptr(before), shape, device.stream));
  return {h, h_n, c_n, slopes, before};
}

Five narrow_backward(const Tensor& grad_h_in, const Tensor& grad_h_n_in, const Tensor& grad_c_n_in,
                     const Tensor& input_in, const Tensor& offsets_in, const Tensor& weight_in, const Tensor& slopes_in,
                     const Tensor& before_in, std::optional<Tensor> order) {
  const OnDevice device(input_in);
  const Tensor input = aligned_rows("input", input_in, input_in, {ANY, ANY});
  check_narrow(input);
  const Tensor ray_offsets = check_contiguous("ray_offsets", offsets_in, input, ScalarType::Long, {ANY});
  const int64_t n = input.size(0), n_input = input.size(1), rays = ray_offsets.size(0) - 1, state = NARROW_STATE;
  const Tensor weight = check_contiguous("weight", weight_in, input, {3 * state, state + n_input});
  const Tensor slopes = aligned_rows("slopes", slopes_in, input, {n, NARROW_SLOPES * state});
  const Tensor before = aligned_rows("before", before_in, input, {n, state});
  const Tensor grad_h = aligned_rows("grad_h", grad_h_in, input, {n, state});
  const Tensor grad_h_n = aligned_rows("grad_h_n", grad_h_n_in, input, {rays, state});
  const Tensor grad_c_n = aligned_rows("grad_c_n", grad_c_n_in, input, {rays, state});
  Tensor grad_input = empty(input, {n, n_input}), grad_h0 = empty(input, {rays, state}),
         grad_c0 = empty(input, {rays, state});
  Tensor grad_weight = empty(input, {3 * state, state + n_input}), grad_bias = empty(input, {3 * state});
  Tensor parts = empty(input, {NARROW_PARTS, 3 * state, state + n_input + 1}, ScalarType::Float);
  const LltmShape shape{
      n, rays, int(n_input), NARROW_STATE, offsets(ray_offsets, n), rays_in_order(order, input, rays)};
  check_launch("lltm_narrow_bwd",
               lltm_narrow_bwd(dtype_of(input), const_ptr(grad_h), const_ptr(grad_h_n), const_ptr(grad_c_n),
                               const_ptr(input), const_ptr(weight), const_ptr(slopes), const_ptr(before),
                               mutable_ptr(grad_input), mutable_ptr(grad_weight), mutable_ptr(grad_bias),
                               mutable_ptr(grad_h0), mutable_ptr(grad_c0), mutable_ptr(parts), shape, device.stream));
  return {grad_input, grad_weight, grad_bias, grad_h0, grad_c0};
}
#else
Five cpu_backward(const Tensor& grad_h_in, const Tensor& grad_h_n_in, const Tensor& grad_c_n_in, const Tensor& input_in,
                  const Tensor& offsets_in, const Tensor& weight_in, const Tensor& h0_in, const Tensor& activated_in) {
  const Tensor input = check_contiguous("input", input_in, input_in, {ANY, ANY});
  const Tensor ray_offsets = check_contiguous("ray_offsets", offsets_in, input, ScalarType::Long, {ANY});
  const int64_t n = input.size(0), n_input = input.size(1), rays = ray_offsets.size(0) - 1;
  const Tensor h0 = check_contiguous("h0", h0_in, input, {rays, ANY});
  const int64_t state = h0.size(1), width = state + n_input;
  const Tensor activated = check_contiguous("activated", activated_in, input, {n, KEPT_ON_CPU * state});
  const Tensor weight = check_contiguous("weight", weight_in, input, {3 * state, width});
  const Tensor grad_h = check_contiguous("grad_h", grad_h_in, input, {n, state});
  const Tensor grad_h_n = check_contiguous("grad_h_n", grad_h_n_in, input, {rays, state});
  const Tensor grad_c_n = check_contiguous("grad_c_n", grad_c_n_in, input, {rays, state});
  Tensor grad_input = empty(input, {n, n_input}), grad_h0 = empty(input, {rays, state}),
         grad_c0 = empty(input, {rays, state});
  Tensor grad_weight = empty(input, {3 * state, width}), grad_bias = empty(input, {3 * state});
  const LltmShape shape{n, rays, int(n_input), int(state), offsets(ray_offsets, n), nullptr};
  check_launch("lltm_cpu_bwd", lltm_cpu_bwd(dtype_of(input), const_ptr(grad_h), const_ptr(grad_h_n),
                                            const_ptr(grad_c_n), const_ptr(input), const_ptr(weight), const_ptr(h0),
                                            const_ptr(activated), mutable_ptr(grad_input), mutable_ptr(grad_weight),
                                            mutable_ptr(grad_bias), mutable_ptr(grad_h0), mutable_ptr(grad_c0), shape));
  return {grad_input, grad_weight, grad_bias, grad_h0, grad_c0};
}
#endif

}  // namespace
}  // namespace nerfkit

STABLE_TORCH_LIBRARY_IMPL(nerfkit, NERFKIT_DEVICE, m) {
  m.impl("_lltm", TORCH_BOX(&nerfkit::forward));
#ifdef USE_CUDA
  m.impl("_lltm_bwd", TORCH_BOX(&nerfkit::backward));
  m.impl("_lltm_narrow", TORCH_BOX(&nerfkit::narrow_forward));
  m.impl("_lltm_narrow_bwd", TORCH_BOX(&nerfkit::narrow_backward));
#else
  m.impl("_lltm_cpu_bwd", TORCH_BOX(&nerfkit::cpu_backward));
#endif
}
