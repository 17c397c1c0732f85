// SPDX-License-Identifier: Apache-2.0

#include <cmath>
#include <limits>

#include "common/bind.h"
#include "count_visible/args.h"

namespace nerfkit {
namespace {

Tensor forward(const Tensor& density_in, const Tensor& starts_in, const Tensor& ends_in, const Tensor& offsets_in,
               double early_stop_transmittance) {
  const OnDevice device(density_in);
  const Tensor density = check_contiguous("density", density_in, density_in, {ANY});
  const int64_t n_samples = density.size(0);
  const Tensor t_starts = check_contiguous("t_starts", starts_in, density, {n_samples});
  const Tensor t_ends = check_contiguous("t_ends", ends_in, density, {n_samples});
  const Tensor ray_offsets = check_contiguous("ray_offsets", offsets_in, density, ScalarType::Long, {ANY});
  const int64_t n_rays = ray_offsets.size(0) - 1;
  const double limit =
      early_stop_transmittance > 0 ? -std::log(early_stop_transmittance) : std::numeric_limits<double>::infinity();
  Tensor counts = empty(density, {n_rays}, ScalarType::Long);
  const CountVisibleArguments arguments{
      const_ptr(density), const_ptr(t_starts), const_ptr(t_ends), offsets(ray_offsets, n_samples, true), n_rays, limit};
  check_launch("count_visible",
               count_visible(dtype_of(density), arguments, static_cast<int64_t*>(mutable_ptr(counts)), device.stream));
  return counts;
}

}  // namespace
}  // namespace nerfkit

STABLE_TORCH_LIBRARY_IMPL(nerfkit, NERFKIT_DEVICE, m) { m.impl("_count_visible", TORCH_BOX(&nerfkit::forward)); }
