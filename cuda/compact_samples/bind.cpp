// SPDX-License-Identifier: Apache-2.0

#include "common/bind.h"
#include "compact_samples/args.h"

namespace nerfkit {
namespace {

// No ray takes rows of the next. As with `offsets`, on the GPU that is a promise.
void check_counts(const CompactArguments& in) {
#ifndef USE_CUDA
  bool fits = true;
  for (int64_t i = 0; fits && i < in.n_rays; ++i)
    fits = in.ray_offsets[i + 1] - in.ray_offsets[i] <= in.source_offsets[i + 1] - in.source_offsets[i];
  STD_TORCH_CHECK(fits, "nerfkit: ray_offsets give a ray more samples than source_offsets");
#endif
}

std::tuple<Tensor, Tensor, Tensor, Tensor> forward(const Tensor& origins_in, const Tensor& directions_in,
                                                   const Tensor& starts_in, const Tensor& ends_in,
                                                   const Tensor& source_in, const Tensor& offsets_in, int64_t n_rows) {
  const OnDevice device(origins_in);
  const Tensor origins =
      check_contiguous("origins", origins_in, origins_in, acc_type(origins_in.scalar_type()), {ANY, 3});
  const int64_t n_rays = origins.size(0);
  const Tensor directions = check_contiguous("directions", directions_in, origins, {n_rays, 3});
  const Tensor t_starts = check_contiguous("t_starts", starts_in, origins, {ANY});
  const Tensor t_ends = check_contiguous("t_ends", ends_in, origins, {t_starts.size(0)});
  const Tensor source_offsets = check_contiguous("source_offsets", source_in, origins, ScalarType::Long, {n_rays + 1});
  const Tensor ray_offsets = check_contiguous("ray_offsets", offsets_in, origins, ScalarType::Long, {n_rays + 1});
  const CompactArguments arguments{const_ptr(origins),
                                   const_ptr(directions),
                                   const_ptr(t_starts),
                                   const_ptr(t_ends),
                                   offsets(source_offsets, t_starts.size(0), true),
                                   offsets(ray_offsets, n_rows, true),
                                   n_rays,
                                   n_rows};
  check_counts(arguments);
  Tensor positions = empty(origins, {n_rows, 3}), starts = empty(origins, {n_rows}), ends = empty(origins, {n_rows});
  Tensor ray_index = empty(origins, {n_rows}, ScalarType::Long);
  check_launch("compact_samples",
               compact_samples(dtype_of(origins), arguments, mutable_ptr(positions), mutable_ptr(starts),
                               mutable_ptr(ends), static_cast<int64_t*>(mutable_ptr(ray_index)), device.stream));
  return {positions, starts, ends, ray_index};
}

}  // namespace
}  // namespace nerfkit

STABLE_TORCH_LIBRARY_IMPL(nerfkit, NERFKIT_DEVICE, m) { m.impl("_compact_samples", TORCH_BOX(&nerfkit::forward)); }
