// SPDX-License-Identifier: Apache-2.0

#include "grid_encode/bind.h"

namespace nerfkit {
namespace {

ScalarType point_type(const Tensor& points) {
  return points.scalar_type() == ScalarType::Double ? ScalarType::Double : ScalarType::Float;
}

Tensor forward(const Tensor& points_in, const Tensor& table_in, std::vector<int64_t> resolutions, int64_t max_entries) {
  const OnDevice device(points_in);
  const Tensor points = check_contiguous("points", points_in, points_in, point_type(points_in), {ANY, 3});
  const Tensor table = check_contiguous("table", table_in, points, table_in.scalar_type(), {ANY, ANY});
  const GridLevels levels = levels_of(table, resolutions, max_entries);
  Tensor result = empty(table, {points.size(0), int64_t(levels.n_levels) * levels.n_features});
  check_launch("grid_encode", grid_encode(dtype_of(points), dtype_of(table), const_ptr(points), const_ptr(table),
                                          mutable_ptr(result), points.size(0), levels, device.stream));
  return result;
}

std::tuple<Tensor, Tensor> backward(const Tensor& grad_in, const Tensor& points_in, const Tensor& table_in,
                                    std::vector<int64_t> resolutions, int64_t max_entries, bool to_points,
                                    bool to_table, bool deterministic) {
  const OnDevice device(points_in);
  const Tensor points = check_contiguous("points", points_in, points_in, point_type(points_in), {ANY, 3});
  const Tensor table = check_contiguous("table", table_in, points, table_in.scalar_type(), {ANY, ANY});
  const GridLevels levels = levels_of(table, resolutions, max_entries);
  const Tensor grad = check_contiguous("grad_out", grad_in, points, table.scalar_type(),
                                       {points.size(0), int64_t(levels.n_levels) * levels.n_features});
  Tensor grad_points = to_points ? empty(points, shape_of(points)) : empty0(points);
  const Shape table_shape = to_table ? shape_of(table) : Shape{0};
  Tensor grad_table = zeros(table, table_shape, acc_type(table.scalar_type()));
  const bool fixed = deterministic && to_table && !points.is_cpu();  // the CPU kernel always adds in one order
  Tensor fixed_point = zeros(table, fixed ? table_shape : Shape{0}, ScalarType::Long);
  Tensor largest = zeros(table, {fixed ? 1 : 0}, ScalarType::Long);
  check_launch("grid_encode_bwd", grid_encode_bwd(dtype_of(points), dtype_of(table), const_ptr(grad), const_ptr(points),
                                                  const_ptr(table), mutable_ptr(grad_points), mutable_ptr(grad_table),
                                                  static_cast<int64_t*>(mutable_ptr(fixed_point)), mutable_ptr(largest),
                                                  table.size(0), points.size(0), levels, device.stream));
  return {grad_points, grad_table};
}

}  // namespace
}  // namespace nerfkit

STABLE_TORCH_LIBRARY_IMPL(nerfkit, NERFKIT_DEVICE, m) {
  m.impl("_grid_encode", TORCH_BOX(&nerfkit::forward));
  m.impl("_grid_encode_bwd", TORCH_BOX(&nerfkit::backward));
}
