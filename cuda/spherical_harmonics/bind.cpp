// SPDX-License-Identifier: Apache-2.0

#include "common/bind.h"
#include "spherical_harmonics/args.h"

namespace nerfkit {
namespace {

// As with `offsets`, on the GPU that is a promise.
void check_rays(const int64_t* ray_index, int64_t n_rows, int64_t n_rays) {
#ifndef USE_CUDA
  bool fits = true;
  for (int64_t n = 0; n < n_rows; ++n) fits = fits && 0 <= ray_index[n] && ray_index[n] < n_rays;
  STD_TORCH_CHECK(fits, "nerfkit: ray_index is out of range of the ", n_rays, " rays");
#endif
}

Tensor forward(const Tensor& directions_in, const std::optional<Tensor>& ray_index_in, ScalarType type) {
  const OnDevice device(directions_in);
  const Tensor directions =
      check_contiguous("directions", directions_in, directions_in, acc_type(directions_in.scalar_type()), {ANY, 3});
  std::optional<Tensor> ray_index;
  if (ray_index_in) ray_index = check_contiguous("ray_index", *ray_index_in, directions, ScalarType::Long, {ANY});
  const auto* rays = ray_index ? static_cast<const int64_t*>(const_ptr(*ray_index)) : nullptr;
  const int64_t n_rows = ray_index ? ray_index->size(0) : directions.size(0);
  if (rays) check_rays(rays, n_rows, directions.size(0));
  Tensor result = empty(directions, {n_rows, HARMONICS}, type);
  check_launch("spherical_harmonics", spherical_harmonics(dtype_of(directions), dtype_of(result), const_ptr(directions),
                                                          rays, mutable_ptr(result), n_rows, device.stream));
  return result;
}

}  // namespace
}  // namespace nerfkit

STABLE_TORCH_LIBRARY_IMPL(nerfkit, NERFKIT_DEVICE, m) { m.impl("_spherical_harmonics", TORCH_BOX(&nerfkit::forward)); }
