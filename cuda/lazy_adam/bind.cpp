// SPDX-License-Identifier: Apache-2.0

#include "common/bind.h"
#include "lazy_adam/args.h"

namespace nerfkit {
namespace {

// A number that lies on the device of `reference`.
const float* number(const char* name, const Tensor& tensor, const Tensor& reference) {
  const Tensor flat = check_contiguous(name, tensor, reference, ScalarType::Float, Shape(tensor.dim(), 1));
  return static_cast<const float*>(const_ptr(flat));
}

const float* number(const char* name, const std::optional<Tensor>& tensor, const Tensor& reference) {
  return tensor ? number(name, *tensor, reference) : nullptr;
}

void in_place(Tensor param, const Tensor& grad_in, Tensor exp_avg, Tensor exp_avg_sq, const Tensor& step,
              const Tensor& lr, double beta1, double beta2, double eps, const std::optional<Tensor>& grad_scale,
              const std::optional<Tensor>& found_inf) {
  const OnDevice device(param);
  const Shape shape = shape_of(param);
  const Tensor grad = check_contiguous("grad", grad_in, param, shape);
  for (const Tensor& written : {param, exp_avg, exp_avg_sq}) {
    check_contiguous("a moment", written, param, shape);
    STD_TORCH_CHECK(written.is_contiguous(), "nerfkit: what is written in place must be contiguous");
  }
  const LazyAdamArguments arguments{mutable_ptr(param),
                                    const_ptr(grad),
                                    mutable_ptr(exp_avg),
                                    mutable_ptr(exp_avg_sq),
                                    param.numel(),
                                    number("step", step, param),
                                    number("lr", lr, param),
                                    number("grad_scale", grad_scale, param),
                                    number("found_inf", found_inf, param),
                                    beta1,
                                    beta2,
                                    eps};
  check_launch("lazy_adam", lazy_adam(dtype_of(param), arguments, device.stream));
}

}  // namespace
}  // namespace nerfkit

STABLE_TORCH_LIBRARY_IMPL(nerfkit, NERFKIT_DEVICE, m) { m.impl("_lazy_adam", TORCH_BOX(&nerfkit::in_place)); }
