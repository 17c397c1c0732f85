// SPDX-License-Identifier: Apache-2.0
// All native ops. They are private: the public functions in nerfkit/ops check, cast and differentiate.
// What is not asked for (bool to_x, bool save) comes back as a tensor without elements.

#include <torch/csrc/stable/library.h>

STABLE_TORCH_LIBRARY(nerfkit, m) {
  m.def("_trilinear(Tensor feats, Tensor points) -> Tensor");
  m.def(
      "_trilinear_bwd(Tensor grad_out, Tensor feats, Tensor points, bool to_feats, bool to_points) -> (Tensor, "
      "Tensor)");

  m.def("_grid_encode(Tensor points, Tensor table, int[] resolutions, int max_entries) -> Tensor");
  m.def(
      "_grid_encode_bwd(Tensor grad_out, Tensor points, Tensor table, int[] resolutions, int max_entries, "
      "bool to_points, bool to_table, bool deterministic) -> (Tensor, Tensor)");

  // x is [B, C, H, W], or [B, H, W, C] with channels_last; window is stride, padding, dilation, each (y, x).
  m.def("_depthwise_conv2d(Tensor x, Tensor weight, Tensor? bias, int[] window, bool channels_last) -> Tensor");
  m.def(
      "_depthwise_conv2d_bwd(Tensor grad_out, Tensor x, Tensor weight, int[] window, bool channels_last, "
      "bool to_x, bool to_weight) -> (Tensor, Tensor, Tensor)");

  m.def("_depthwise_conv1d(Tensor x, Tensor weight, Tensor? bias, Tensor ray_offsets, int dilation) -> Tensor");
  m.def(
      "_depthwise_conv1d_bwd(Tensor grad_out, Tensor x, Tensor weight, Tensor ray_offsets, int dilation, "
      "bool to_x, bool to_weight) -> (Tensor, Tensor, Tensor)");

  // gates [B, 3H] before activation -> h, c and the activated gates.
  m.def("_lltm_cell(Tensor gates, Tensor c) -> (Tensor, Tensor, Tensor)");
  m.def("_lltm_cell_bwd(Tensor grad_h, Tensor grad_c, Tensor gates, Tensor c_new) -> (Tensor, Tensor)");

  // The whole cell, on a GPU, for a batch that is too small to be worth a matrix product of its own.
  m.def("_lltm_cell_small(Tensor input, Tensor h, Tensor c, Tensor weight, Tensor bias) -> (Tensor, Tensor, Tensor)");
  m.def(
      "_lltm_cell_small_bwd(Tensor grad_h, Tensor grad_c, Tensor input, Tensor h, Tensor weight, Tensor gates, "
      "Tensor c_new) -> (Tensor, Tensor, Tensor, Tensor, Tensor)");

  // order: rays as a GPU takes them together; it changes no result. -> h, h_n, c_n and, with save, a workspace
  // [rows, H] of which only the backward op of the same device knows the layout.
  m.def(
      "_lltm(Tensor input, Tensor ray_offsets, Tensor weight, Tensor bias, Tensor h0, Tensor c0, Tensor? order, "
      "bool save) -> (Tensor, Tensor, Tensor, Tensor)");
  // -> gradients of input, weight, bias, h0 and c0.
  m.def(
      "_lltm_bwd(Tensor grad_h, Tensor grad_h_n, Tensor grad_c_n, Tensor input, Tensor ray_offsets, Tensor weight, "
      "Tensor workspace, Tensor? order, bool to_input, bool to_weight) -> (Tensor, Tensor, Tensor, Tensor, Tensor)");

  // inputs lie side by side; parameters are weight and bias of each layer, one after the other; wanted: a flag an
  // input.
  // -> gradients of the inputs and parts [P, n] of that of the parameters.
  m.def("_mlp(Tensor[] inputs, Tensor parameters, int[] widths) -> Tensor");
  m.def(
      "_mlp_bwd(Tensor grad_out, Tensor[] inputs, Tensor parameters, int[] widths, int[] wanted) -> (Tensor[], "
      "Tensor)");

  // Samples are counted, then written with n_rows rows: those of rays that end within, then zeros.
  // -> counts [R], samples in front of each tile of rays [T + 1], of which the last is N, and a workspace for
  // filling.
  m.def(
      "_march_count(Tensor origins, Tensor directions, Tensor occupancy, Tensor box, float step, float near, "
      "float far, Tensor? jitter, Tensor? t_edges) -> (Tensor, Tensor, Tensor)");
  // -> t_starts, t_ends, ray_offsets.
  m.def(
      "_march_fill(Tensor origins, Tensor directions, Tensor occupancy, Tensor box, float step, float near, float far, "
      "Tensor? jitter, Tensor? t_edges, Tensor counts, Tensor tile_offsets, Tensor workspace, int n_rows) -> (Tensor, "
      "Tensor, Tensor)");

  // Rows behind the last ray's are not looked at.
  m.def(
      "_count_visible(Tensor density, Tensor t_starts, Tensor t_ends, Tensor ray_offsets, float "
      "early_stop_transmittance) -> "
      "Tensor");
  // -> positions, t_starts, t_ends, ray_index, with n_rows rows.
  m.def(
      "_compact_samples(Tensor origins, Tensor directions, Tensor t_starts, Tensor t_ends, Tensor source_offsets, "
      "Tensor ray_offsets, int n_rows) -> (Tensor, Tensor, Tensor, Tensor)");

  // One row a ray, or with ray_index one for each of its elements, in the type `dtype`.
  m.def("_spherical_harmonics(Tensor directions, Tensor? ray_index, ScalarType dtype) -> Tensor");

  m.def(
      "_composite(Tensor density, Tensor rgb, Tensor t_starts, Tensor t_ends, Tensor ray_offsets, "
      "Tensor background) -> (Tensor, Tensor, Tensor, Tensor)");
  m.def(
      "_composite_bwd(Tensor grad_color, Tensor grad_opacity, Tensor grad_depth, Tensor grad_weights, "
      "Tensor density, Tensor rgb, Tensor t_starts, Tensor t_ends, Tensor ray_offsets, Tensor background) "
      "-> (Tensor, Tensor, Tensor)");

  m.def(
      "_distortion(Tensor weights, Tensor t_starts, Tensor t_ends, Tensor ray_offsets, float near, float far, "
      "float linear) -> Tensor");
  m.def(
      "_distortion_bwd(Tensor grad_out, Tensor weights, Tensor t_starts, Tensor t_ends, Tensor ray_offsets, "
      "float near, float far, float linear) -> Tensor");

  // On a GPU alone. limit: optical thickness where a ray ends. -> color, opacity, depth, median depth.
  m.def(
      "_render_rays(Tensor origins, Tensor directions, Tensor occupancy, Tensor box, Tensor? t_edges, Tensor table, "
      "int[] resolutions, int max_entries, Tensor density_net, Tensor color_net, int hidden, Tensor? conv_weight, "
      "Tensor? conv_bias, Tensor? lltm_weight, Tensor? lltm_bias, Tensor background, Tensor threshold, float step, "
      "float near, float far, float limit, float density_bias) -> (Tensor, Tensor, Tensor, Tensor)");

  // In place; step, lr, grad_scale and found_inf are numbers on the device.
  m.def(
      "_lazy_adam(Tensor(a!) param, Tensor grad, Tensor(b!) exp_avg, Tensor(c!) exp_avg_sq, Tensor step, Tensor lr, "
      "float beta1, float beta2, float eps, Tensor? grad_scale, Tensor? found_inf) -> ()");
}
