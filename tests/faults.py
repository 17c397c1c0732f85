# SPDX-License-Identifier: Apache-2.0
"""Do the tests bite? Faults that a user would notice, each put into a copy of nerfkit, and the tests that have to fail.

    python tests/faults.py              all of them, for minutes
    python tests/faults.py NAME ...     these alone
    python tests/faults.py --list       their names

The exit status is 1 if a fault survives its tests, or if what it changes is no longer there. A new feature comes with
a fault of its own: what would go wrong, where, and which modules of tests should notice.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
COPIED = ("nerfkit", "tests", "scripts", "configs", "docs", "pyproject.toml")
LINKED = ("data",)
IMPORTED = (  # once, for all faults; whatever else tests need, they import themselves
    "torch", "functorch.compile", "torchmetrics.functional.image", "matplotlib.figure", "imageio.v2", "PIL.Image",
    "hypothesis.strategies", "safetensors.torch", "tyro", "msgspec", "tqdm", "skimage.metrics",
)  # fmt: skip
MOST_SECONDS = 300  # of the tests of one fault; a run that does not end is noticed, too


class Fault(NamedTuple):
    """One way to be wrong."""

    name: str
    file: str  # of nerfkit; of scripts: ../scripts/...
    old: str  # occurs once
    new: str
    tests: str  # modules that should notice, without test_ and .py


FAULTS = [
    # viewer
    Fault(
        "full_pictures_are_not_given_up",
        "viewer/engine.py",
        "client.of_stage != MOVING and",
        "False and",
        "viewer_engine",
    ),
    Fault(
        "small_pictures_are_measured",
        "viewer/resolution.py",
        "trusted = is_full or n_rays >= TRUSTED_RAYS",
        "trusted = True",
        "viewer_engine",
    ),
    Fault(
        "chunks_grow_without_bound",
        "viewer/chunk.py",
        "return max(CHUNK_SECONDS, 2",
        "return max(1.0, 2",
        "viewer_engine",
    ),
    Fault("all_time_put_down_to_rays", "viewer/chunk.py", "min(max(fixed, 0.0), seconds)", "0.0", "viewer_engine"),
    Fault(
        "an_onlooker_takes_half", "viewer/sharing.py", "return self.credit >= seconds", "return True", "viewer_engine"
    ),
    Fault("what_browsers_leave_is_kept", "viewer/memory.py", "gc.collect()", "pass", "viewer_leaving"),
    Fault(
        "frozen_browsers_are_kept", "viewer/frozen.py", "return connection.transport.abort()", "pass", "viewer_leaving"
    ),
    Fault("slow_browsers_are_hung_up_on", "viewer/frozen.py", ">= unread", ">= 0", "viewer_leaving"),
    Fault("who_has_left_is_drawn_for", "viewer/session.py", "not in self.state.sessions", "is None", "viewer_leaving"),
    Fault("videos_mix_steps", "viewer/panels/video.py", "deepcopy(subject.model)", "subject.model", "viewer_video"),
    Fault("pictures_starve_videos", "viewer/training.py", "self.sharing.job_credit <= 0", "True", "viewer_video"),
    Fault("videos_of_nobody_go_on", "viewer/panels/__init__.py", "self.path.video.left(client)", "", "viewer_video"),
    Fault("foreign_names_are_answered", "viewer/guard.py", "found[1].lower() not in names", "False", "viewer_guard"),
    Fault(
        "foreign_pages_are_answered",
        "viewer/guard.py",
        "authority.lower() != hosts[0].lower()",
        "not authority",
        "viewer_guard",
    ),
    Fault(
        "a_crop_hides_what_is_behind",
        "model/cropping.py",
        "self.crop.inside(positions), values",
        "self.crop.inside(positions) | True, values",
        "crop",
    ),
    Fault("a_crop_counts_lengths_as_low", "crop.py", "& (positions <= high)", "& (positions <= high + 1)", "crop"),
    Fault(
        "a_path_in_degrees_of_the_width",
        "rendering/path_files.py",
        "focals.append(height / 2",
        "focals.append(width / 2",
        "camera_paths",
    ),
    Fault(
        "a_path_is_saved_in_the_models_frame",
        "viewer/path.py",
        "to_json(moved(cameras, frame, to_model=False)",
        "to_json(moved(cameras, None, to_model=False)",
        "camera_paths",
    ),
    # data: pixels, scenes, cameras, batches
    Fault(
        "alpha_ignored",
        "data/pixels.py",
        "return color[..., :3] * alpha + background * (1 - alpha)",
        "return color[..., :3]",
        "pixels",
    ),
    Fault(
        "alpha_taken_as_premultiplied",
        "data/pixels.py",
        "color[..., :3] * alpha + background",
        "color[..., :3] + background",
        "pixels",
    ),
    Fault(
        "background_behind_opaque_pixels", "data/pixels.py", "background * (1 - alpha)", "background * alpha", "pixels"
    ),
    Fault("pixels_divided_by_256", "data/pixels.py", "pixels.float() / 255", "pixels.float() / 256", "pixels"),
    Fault("srgb_made_linear", "data/pixels.py", "pixels.float() / 255", "(pixels.float() / 255) ** 2.2", "pixels"),
    Fault("downscale_by_nearest", "data/pixels.py", "Image.Resampling.BOX", "Image.Resampling.NEAREST", "scene"),
    Fault(
        "exif_orientation_ignored",
        "data/pixels.py",
        "return orientation if orientation in TRANSPOSES else 1",
        "return 1",
        "pixels",
    ),
    Fault("gray_16_divided_by_256", "data/pixels.py", "np.asarray(band) / 257", "np.asarray(band) / 256", "pixels"),
    Fault(
        "black_and_white_mixed_up", "data/pixels.py", '"white": 1.0, "black": 0.0', '"white": 0.0, "black": 1.0', "step"
    ),
    Fault(
        "downscale_leaves_focal_length",
        "data/cameras.py",
        "replace(self, focal=self.focal * scale, center",
        "replace(self, focal=self.focal, center",
        "cameras",
    ),
    Fault(
        "downscale_leaves_center",
        "data/cameras.py",
        "center=self.center * scale, width",
        "center=self.center, width",
        "cameras",
    ),
    Fault("half_a_pixel_off", "data/cameras.py", "dim=-1) + 0.5  # [R, 2]", "dim=-1)  # [R, 2]", "cameras"),
    Fault(
        "focal_x_and_y_swapped",
        "data/cameras.py",
        "(pixel - self.center[view]) / self.focal[view]",
        "(pixel - self.center[view]) / self.focal[view].flip(-1)",
        "cameras",
    ),
    Fault("y_points_down", "data/cameras.py", "torch.stack([x, -y, -torch", "torch.stack([x, y, -torch", "cameras"),
    Fault(
        "intrinsics_of_the_first_view",
        "data/cameras.py",
        "(pixel - self.center[view]) / self.focal[view]",
        "(pixel - self.center[0]) / self.focal[0]",
        "cameras",
    ),
    Fault(
        "rows_and_columns_swapped",
        "data/cameras.py",
        "pixel % width, pixel // width",
        "pixel // height, pixel % height",
        "cameras",
    ),
    Fault(
        "intrinsics_of_frames_ignored",
        "data/readers/transforms.py",
        "values = of_frame(content, frame)",
        "values = of_frame(content, frames[0])",
        "image",
    ),
    Fault("fl_y_ignored", "data/readers/transforms.py", '"fl_y" if "fl_y" in values else "fl_x"', '"fl_x"', "scene"),
    Fault(
        "angle_of_view_of_the_height",
        "data/readers/transforms.py",
        '(("x", width), ("y", height))',
        '(("x", height), ("y", width))',
        "scene",
    ),
    Fault(
        "principal_point_in_the_middle",
        "data/readers/transforms.py",
        'if "cx" in values else width / 2',
        "if False else width / 2",
        "scene",
    ),
    Fault(
        "w_and_h_ignored",
        "data/readers/transforms.py",
        "    scale_x, scale_y = _scales(values, where, width, height)",
        "    scale_x = scale_y = 1.0",
        "scene",
    ),
    Fault(
        "train_and_test_mixed_up",
        "data/readers/transforms_capture.py",
        'files = {split: folder / f"transforms_{split}.json"',
        "files = {split: folder / f\"transforms_{dict(train='test', test='train').get(split, split)}.json\"",
        "scene",
    ),
    Fault("y_is_up", "data/readers/transforms_capture.py", "Z_UP = (0.0, 0.0, 1.0)", "Z_UP = (0.0, 1.0, 0.0)", "scene"),
    Fault(
        "images_of_other_frames",
        "data/scene.py",
        "read_image(self.files[view],",
        "read_image(self.files[-1 - view],",
        "scene",
    ),
    Fault(
        "rays_of_other_pixels",
        "data/batch.py",
        "rays_of_pixels(drawn.view, drawn.column, drawn.row)",
        "rays_of_pixels(drawn.view, drawn.row, drawn.column)",
        "batch",
    ),
    Fault(
        "half_of_every_image",
        "data/pixel_source.py",
        "torch.randint(n, (n_pixels,)",
        "torch.randint(n // 2 + 1, (n_pixels,)",
        "batch",
    ),
    Fault(
        "no_jitter",
        "data/batch.py",
        "jitter = torch.rand(n_rays, device=self.device)",
        "jitter = torch.zeros(n_rays, device=self.device)",
        "batch",
    ),
    Fault(
        "one_random_background",
        "data/batch.py",
        "colors = torch.rand(n_rays, 3, device=self.is_random.device)",
        "colors = torch.rand(1, 3, device=self.is_random.device).expand(n_rays, 3)",
        "batch",
    ),
    Fault(
        "random_scored_over_black",
        "data/pixels.py",
        "BACKGROUNDS.get(kind, 1.0)",
        "BACKGROUNDS.get(kind, 0.0)",
        "pixels",
    ),
    # captures: lenses, sizes, masks, what is missing, the frame
    Fault(
        "lens_ignored",
        "data/cameras.py",
        "if self.table is not None:\n            return",
        "if False:\n            return",
        "captures",
    ),
    Fault(
        "smaller_images_drawn_as_often",
        "data/pixel_source.py",
        "within - row * width, pixel",
        "within - row * width, self.pool.first[view]",
        "captures",
    ),
    Fault("ignored_pixels_are_trained", "data/batch.py", "weight * ~drawn.ignored", "weight", "capture_masks"),
    Fault(
        "masked_pixels_stay_opaque",
        "data/scene.py",
        "pixels[rows, 3] *= ~masked",
        "pass",
        "capture_masks",
    ),
    Fault(
        "depths_in_the_models_units",
        "commands/render.py",
        "return frame.distance_to_input(values)",
        "return values",
        "capture_runs",
    ),
    Fault(
        "paths_read_in_the_models_frame",
        "commands/render.py",
        "run.frame, to_model=True)",
        "None, to_model=True)",
        "capture_runs",
    ),
    Fault(
        "a_place_over_white",
        "training/scene_options.py",
        'return "random" if _is_place(scene) else "white"',
        'return "white"',
        "capture_masks",
    ),
    Fault(
        "the_window_stands_still",
        "data/pixel_source.py",
        "wanted = step // self.every if",
        "wanted = 0 if",
        "pixel_source",
    ),
    Fault(
        "the_windows_first_image_alone",
        "data/pixel_source.py",
        "slot = torch.searchsorted(self.slot_end, number, right=True)",
        "slot = torch.zeros_like(number)",
        "pixel_source",
    ),
    Fault(
        "directions_of_the_cells_corner",
        "data/cameras.py",
        "return torch.lerp(above, below, down), known",
        "return above, known",
        "cameras",
    ),
    Fault(
        "inverted_poses_unsuspected",
        "data/readers/pose_axes.py",
        "if better := _meets_better(poses):",
        "if better := None:",
        "transforms_capture",
    ),
    Fault(
        "lpips_without_lengths",
        "lpips.py",
        "unit = feature / (feature.square().sum(1, keepdim=True) + 1e-8).sqrt()",
        "unit = feature",
        "lpips",
    ),
    Fault(
        "masks_the_other_way_round",
        "data/scene.py",
        "mask if self.white_ignores else ~mask",
        "~mask if self.white_ignores else mask",
        "capture_masks",
    ),
    Fault(
        "few_images_are_enough",
        "data/assemble.py",
        "if 2 * len(found) < n_images or not found:",
        "if not found:",
        "capture_images bad_scenes",
    ),
    Fault(
        "exif_beats_the_lens",
        "data/assemble.py",
        "        return stored\n",
        "        return header\n",
        "capture_images",
    ),
    Fault("any_shape_fits", "data/assemble.py", "return abs(scale_x - scale_y) <=", "return 0 <=", "bad_scenes"),
    Fault(
        "first_test_view_is_the_second",
        "data/assemble.py",
        "ordered[::TEST_EVERY]",
        "ordered[1::TEST_EVERY]",
        "captures",
    ),
    Fault(
        "frame_found_anew",
        "commands/train.py",
        "frame = run_frame(Path(resume)) if resume else None",
        "frame = None",
        "capture_runs",
    ),
    Fault(
        "a_given_default_box_ignored",
        "training/scene_options.py",
        '"data.box" in given or ',
        "",
        "capture_runs",
    ),
    Fault(
        "near_of_the_frame_ignored",
        "training/scene_options.py",
        '"sampling.near": scene.frame.near',
        "",
        "capture_runs",
    ),
    Fault(
        "a_place_sampled_in_a_box",
        "training/scene_options.py",
        '"contracted" if _is_place(scene) and options.model.kind in FIELDS else "box"',
        '"box"',
        "capture_masks",
    ),
    Fault(
        "sizes_of_the_preset_replaced",
        "training/scene_options.py",
        " and getattr(target, key) == getattr(default, key)",
        "",
        "capture_masks",
    ),
    Fault(
        "what_a_file_says_is_not_given",
        "commands/options.py",
        ".union(*in_files)",
        "",
        "scene_options",
    ),
    Fault(
        "surroundings_of_a_box_ignored",
        "commands/train.py",
        'options.data, options.sampling.kind == "contracted"',
        "options.data, False",
        "scene_options",
    ),
    Fault(
        "poses_looked_for_in_the_images_of_a_scene",
        "data/load.py",
        "        _check_not_inside(folder)\n",
        "",
        "photographs",
    ),
    Fault(
        "inspect_counts_what_is_missing",
        "commands/inspect.py",
        "file is not None]\n    chosen",
        "True]\n    chosen",
        "capture_runs",
    ),
    Fault(
        "alpha_never_read",
        "data/scene.py",
        "return 4 if any(header.has_alpha for header in self.headers) or",
        "return 4 if",
        "scene",
    ),
    Fault(
        "center_written_the_other_way",
        "data/readers/transforms.py",
        '"cx": cx, "cy": cy',
        '"cx": cy, "cy": cx',
        "cameras",
    ),
    Fault(
        "depth_behind_the_camera",
        "data/cameras.py",
        "return -(directions @ self.camera_to_world[view, :, 2])",
        "return directions @ self.camera_to_world[view, :, 2]",
        "cameras image",
    ),
    # model: sampling, stages, what is a function of what
    Fault(
        "softplus_for_density",
        "model/decoder.py",
        "torch.exp(log_density.clamp(max=MAX_LOG_DENSITY))",
        "torch.nn.functional.softplus(log_density)",
        "golden_image",
    ),
    Fault(
        "no_bias_of_density",
        "model/decoder.py",
        "_at_least_float32(embedding[:, 0]) + self.density_bias",
        "_at_least_float32(embedding[:, 0])",
        "golden_image",
    ),
    Fault("colors_cut_off", "model/decoder.py", ".sigmoid()", ".clamp(0, 1)", "golden_image"),
    Fault(
        "encoder_without_its_input",
        "model/encoder.py",
        "weight = self.weight + self.identity_tap.to(self.weight.dtype)",
        "weight = self.weight",
        "golden_image",
    ),
    Fault(
        "encoder_taps_mirrored",
        "model/encoder.py",
        "return depthwise_conv1d(features, weight,",
        "return depthwise_conv1d(features, weight.flip(1),",
        "golden_image",
    ),
    Fault(
        "lltm_from_far_to_near",
        "model/aggregator.py",
        "state, _, _ = lltm(encoded, ray_offsets, self.weight, self.bias, h0, c0)",
        "ends = (ray_offsets[-1] - ray_offsets).flip(0)\n"
        "        state = lltm(encoded.flip(0), ends, self.weight, self.bias, h0, c0)[0].flip(0)",
        "golden_image",
    ),
    Fault(
        "lltm_past_the_encoder",
        "model/renderer.py",
        "self.aggregator(encoded, samples",
        "self.aggregator(features, samples",
        "golden_image",
    ),
    Fault(
        "encoder_left_out",
        "model/renderer.py",
        "encoded = self.encoder(features, samples.ray_offsets) if self.encoder else features",
        "encoded = features",
        "golden_image",
    ),
    Fault(
        "seen_from_behind",
        "model/renderer.py",
        "spherical_harmonics(rays.directions,",
        "spherical_harmonics(-rays.directions,",
        "golden_image",
    ),
    Fault(
        "field_asked_at_the_start_of_intervals",
        "model/renderer.py",
        "features = self.grid(samples.positions)",
        "middle = (samples.t_ends - samples.t_starts)[:, None] / 2\n"
        "            features = self.grid(samples.positions - rays.directions[samples.ray_index] * middle)",
        "golden_image",
    ),
    Fault(
        "normals_point_inwards",
        "model/renderer.py",
        "return -torch.nn.functional.normalize(gradient",
        "return torch.nn.functional.normalize(gradient",
        "image",
    ),
    Fault(
        "box_taken_as_a_cube",
        "model/grid.py",
        "/ (self.box[1] - self.box[0]))",
        "/ (self.box[1] - self.box[0]).max())",
        "golden_image",
    ),
    Fault(
        "near_ignored",
        "model/sampling.py",
        "config.step, config.near, config.far, jitter",
        "config.step, 0.0, config.far, jitter",
        "sampling",
    ),
    Fault(
        "far_ignored",
        "model/sampling.py",
        "config.step, config.near, config.far, jitter",
        "config.step, config.near, 1e10, jitter",
        "sampling",
    ),
    Fault(
        "jitter_ignored",
        "model/sampling.py",
        "config.far, jitter, capacity",
        "config.far, None, capacity",
        "sampling",
    ),
    Fault(
        "min_transmittance_ignored",
        "model/sampling.py",
        "ray_offsets, self.config.min_transmittance)",
        "ray_offsets, 0.0)",
        "sampling",
    ),
    Fault(
        "occupancy_threshold_ignored",
        "model/sampling.py",
        "self._mean_opacity().clamp(max=self.config.occupancy_threshold)",
        "self._mean_opacity()",
        "sampling",
    ),
    Fault(
        "occupancy_of_a_mean_ignored",
        "model/sampling.py",
        "self._mean_opacity().clamp(max=self.config.occupancy_threshold)",
        "torch.tensor(self.config.occupancy_threshold)",
        "sampling",
    ),
    Fault(
        "what_no_camera_sees_is_occupied",
        "model/contracted.py",
        "        self.occupancy &= self.seen\n        self.occupancy &= self._near",
        "        self.occupancy &= self._near",
        "contracted",
    ),
    Fault(
        "seen_behind_the_camera",
        "model/contracted.py",
        "depth > 0 if not _is_wide(cameras, view) else torch.ones_like(inside)",
        "torch.ones_like(inside)",
        "contracted",
    ),
    Fault(
        "what_no_ray_reaches_stays_occupied",
        "model/contracted.py",
        "self._near_blocks(self.unreached < REACHED_UPDATES)",
        "self.seen",
        "contracted",
    ),
    Fault(
        "scored_views_reach_blocks",
        "model/contracted.py",
        "if self.training and torch.is_grad_enabled():  # not",
        "if True:  # not",
        "contracted",
    ),
    Fault(
        "transparent_samples_rendered",
        "model/sampling.py",
        "< self.threshold)",
        "< 0 * self.threshold)",
        "contracted",
    ),
    Fault(
        "samples_that_are_not_numbers_left_out",
        "model/sampling.py",
        "return ~(-torch.expm1(-density * (t_ends - t_starts)) < self.threshold)",
        "return -torch.expm1(-density * (t_ends - t_starts)) >= self.threshold",
        "step",
    ),
    Fault(
        "thin_samples_left_out_from_the_start",
        "model/sampling.py",
        "if step >= self.config.occupancy_warmup:",
        "if True:",
        "sampling",
    ),
    Fault(
        "runs_of_before_leave_out_thin_samples",
        "model/sampling.py",
        'threshold", torch.tensor(-1.0))  # runs',
        'threshold", torch.tensor(0.01))  # runs',
        "old_run",
    ),
    Fault("invisible_samples_rendered", "model/sampling.py", "kept = visible & self", "kept = self", "contracted"),
    Fault(
        "visible_samples_of_another_density",
        "model/sampling.py",
        "density[torch.arange(n_rows, device=shift.device) + shift[ray_index]]",
        "density[:n_rows]",
        "contracted",
    ),
    Fault("all_rays_of_an_untrained_place", "model/contracted.py", "2**10), 2**18", "2**18), 2**18", "contracted"),
    Fault("features_of_a_box_outside_of_it", "model/grid.py", "if self.contracted:", "if False:", "contracted"),
    Fault("density_bias_ignored", "model/decoder.py", "+ self.density_bias", "- 1", "contracted"),
    Fault(
        "distortion_without_weight",
        "training/losses.py",
        "weight * weighted_mean(of_rays",
        "0 * weighted_mean(of_rays",
        "contracted",
    ),
    Fault(
        "distortion_from_the_start",
        "training/losses.py",
        "(batch.progress / DISTORTION_RAMP).clamp(max=1.0)",
        "1.0",
        "contracted",
    ),
    Fault("occupancy_never_falls", "model/sampling.py", "OCCUPANCY_DECAY = 0.9 ", "OCCUPANCY_DECAY = 1.0 ", "sampling"),
    Fault(
        "occupancy_at_every_step",
        "model/sampling.py",
        "if step % self.config.occupancy_every:",
        "if False:",
        "sampling",
    ),
    Fault(
        "occupancy_without_warm_up",
        "model/sampling.py",
        "if step < self.config.occupancy_warmup",
        "if False",
        "sampling",
    ),
    Fault(
        "occupancy_axes_mixed_up",
        "model/sampling.py",
        "[cells // side**2, cells // side % side, cells % side]",
        "[cells % side, cells // side % side, cells // side**2]",
        "sampling",
    ),
    Fault(
        "background_left_out",
        "model/compositing.py",
        "samples.ray_offsets, background\n",
        "samples.ray_offsets, 0 * background\n",
        "golden_image",
    ),
    Fault("context_not_silent_at_first", "model/decoder.py", "first[:, n_base_inputs:].zero_()", "pass", "training"),
    Fault("occupancy_never_updated", "training/trainer.py", "self.model.update(self.step)", "pass", "step"),
    # rendering: images, paths, video
    Fault(
        "depth_z_along_the_ray",
        "rendering/image_renderer.py",
        "rendering.depth * cameras.z_per_distance(view, rays.directions)",
        "rendering.depth",
        "image",
    ),
    Fault(
        "width_and_height_swapped",
        "rendering/image_renderer.py",
        "unflatten(0, (height, width))",
        "unflatten(0, (width, height))",
        "image",
    ),
    Fault(
        "always_the_first_view",
        "rendering/image_renderer.py",
        "cameras.image_rays(view, start, end)",
        "cameras.image_rays(0, start, end)",
        "golden_image",
    ),
    Fault("normals_unweighted", "rendering/image_renderer.py", "weights[:, None] * normals", "normals", "golden_image"),
    Fault("last_pixels_forgotten", "rendering/image_renderer.py", "start = end\n", "start = end + 1\n", "image"),
    Fault("8_bits_cut_off", "rendering/images.py", "* 255 + 0.5)", "* 255)", "image"),
    Fault(
        "colors_from_0",
        "rendering/images.py",
        "(values - low) / max(high - low, 1e-9)",
        "values / max(high, 1e-9)",
        "image",
    ),
    Fault("normals_as_they_are", "rendering/images.py", "image / 2 + 0.5 if", "image if", "image"),
    Fault("fades_to_black", "rendering/images.py", "colors * opacity + (1 - opacity)", "colors * opacity", "image"),
    Fault(
        "render_before_truth",
        "rendering/images.py",
        "torch.cat([truth, render,",
        "torch.cat([render, truth,",
        "evaluation",
    ),
    Fault(
        "errors_shown_four_times_darker",
        "rendering/images.py",
        "colorize(error, 0, 0.25,",
        "colorize(error, 0, 1.0,",
        "evaluation",
    ),
    Fault(
        "path_ends_where_it_begins",
        "rendering/paths.py",
        "    angles = torch.arange(n_frames) / n_frames * 2",
        "    angles = torch.arange(n_frames) / (n_frames - 1) * 2",
        "cameras",
    ),
    Fault("elevation_ignored", "rendering/paths.py", "math.radians(elevation))", "math.radians(25.0))", "cameras"),
    Fault(
        "up_axis_ignored",
        "rendering/paths.py",
        "look_at(eyes, target, up))",
        "look_at(eyes, target, torch.tensor([0.0, 0.0, 1.0])))",
        "cameras",
    ),
    Fault(
        "orbit_on_its_side",
        "rendering/paths.py",
        "helper = torch.eye(3)[up.abs().argmin()]",
        "up = torch.tensor([0.0, 0.0, 1.0]); helper = torch.eye(3)[0]",
        "cameras",
    ),
    Fault(
        "orbit_of_the_nearest_camera", "rendering/paths.py", ".norm(dim=-1).mean()", ".norm(dim=-1).min()", "cameras"
    ),
    Fault(
        "orbit_clockwise",
        "rendering/paths.py",
        "torch.sin(azimuths)[:, None] * north",
        "-torch.sin(azimuths)[:, None] * north",
        "cameras",
    ),
    Fault(
        "spiral_of_one_turn",
        "rendering/paths.py",
        "_around(like, target, up, 2 * t,",
        "_around(like, target, up, t,",
        "cameras",
    ),
    Fault(
        "views_in_another_order",
        "rendering/paths.py",
        "index = u.long() if closed",
        "index = -u.long() if closed",
        "cameras",
    ),
    Fault(
        "paths_have_the_last_intrinsics",
        "rendering/paths.py",
        "first = like.pinhole()[[0] * poses.shape[0]]",
        "first = like.pinhole()[[-1] * poses.shape[0]]",
        "cameras",
    ),
    Fault("video_padded_with_black", "rendering/video.py", 'mode="edge"', 'mode="constant"', "image"),
    Fault(
        "video_of_20_frames_a_second",
        "rendering/video.py",
        'format="FFMPEG", fps=fps,',
        'format="FFMPEG", fps=20,',
        "image",
    ),
    Fault(
        "white_behind_every_render",
        "training/run.py",
        "background_color(self.config.data.background, self.device)",
        'background_color("white", self.device)',
        "command_results",
    ),
    # training: steps, loss, scores, run folders
    Fault(
        "pictures_leave_the_model_in_eval_mode",
        "rendering/image_renderer.py",
        "module.training = mode",
        "pass",
        "previews",
    ),
    Fault(
        "pictures_of_the_wrong_step",
        "training/previews.py",
        "if picture > step}",
        "if picture > step + 10**9}",
        "previews",
    ),
    Fault(
        "a_full_disk_ends_training_for_a_picture",
        "training/previews.py",
        "except Exception",
        "except KeyError",
        "previews",
    ),
    Fault(
        "scores_on_the_way_of_one_process",
        "training/scores.py",
        "self.processes.gathered(own)",
        "[own]",
        "scores_over_time",
    ),
    Fault(
        "test_scores_are_dropped_on_resume",
        "training/run_folder.py",
        "lines = read_lines(folder.path)",
        "lines = read_log(folder.path)",
        "scores_over_time",
    ),
    Fault(
        "rate_stays",
        "training/schedule.py",
        "min(progress, 1.0))",
        "0.0)",
        "training",
    ),
    Fault(
        "no_warm_up",
        "training/schedule.py",
        "warm = min(1.0, (step + 1) / max(settings.warmup, 1))",
        "warm = 1.0",
        "training",
    ),
    Fault(
        "cosine_of_a_whole_turn",
        "training/schedule.py",
        "math.cos(math.pi * p)",
        "math.cos(2 * math.pi * p)",
        "training",
    ),
    Fault("tables_decay_at_every_step", "training/schedule.py", "and step % DECAY_EVERY == 0", "", "training"),
    Fault("tables_decay_only_once", "training/schedule.py", "** DECAY_EVERY", "** 1", "training"),
    Fault("rate_never_set", "training/trainer.py", 'group["lr"].fill_(rate)', "pass", "training"),
    Fault(
        "background_warm_up_a_step_long",
        "training/trainer.py",
        "self.step < self.config.trainer.background_warmup",
        "self.step <= self.config.trainer.background_warmup",
        "step",
    ),
    Fault(
        "a_step_too_many", "training/trainer.py", "while self.progress < 1:", "while self.progress <= 1:", "training"
    ),
    Fault("max_seconds_ignored", "training/trainer.py", "seconds / limit if limit else 0.0", "0.0", "training"),
    Fault("log_every_ignored", "training/trainer.py", "if step % settings.log_every == 0:", "if True:", "training"),
    Fault(
        "save_every_ignored",
        "training/trainer.py",
        "and settings.save_every and step % settings.save_every == 0",
        "and False",
        "training",
    ),
    Fault("last_step_not_saved", "training/trainer.py", "if self._saved_step != self.step:", "if False:", "training"),
    Fault(
        "psnr_of_the_log_doubled",
        "training/trainer.py",
        "-10 * math.log10(max(stats",
        "-20 * math.log10(max(stats",
        "training",
    ),
    Fault(
        "loss_of_the_log_not_a_mean",
        "training/trainer.py",
        '{"loss": stats.loss / steps}',
        '{"loss": stats.loss}',
        "training",
    ),
    Fault(
        "resume_without_moments",
        "training/trainer.py",
        'load_moments(self.optimizer, list(self.parameters.values()), checkpoint.part(tensors, "optimizer"))',
        "pass",
        "training",
    ),
    Fault(
        "resume_without_random_states",
        "training/trainer.py",
        'restore_random_states(checkpoint.part(tensors, "random"), state["random"])',
        "pass",
        "training",
    ),
    Fault(
        "resume_without_seconds",
        "training/trainer.py",
        'self.step, self.seconds = state["step"], state["seconds"]',
        'self.step, self.seconds = state["step"], 0.0',
        "training",
    ),
    Fault(
        "resume_from_step_0",
        "training/trainer.py",
        'self.step, self.seconds = state["step"], state["seconds"]',
        'self.step, self.seconds = 0, state["seconds"]',
        "training",
    ),
    Fault(
        "resume_without_the_number_of_rays",
        "training/step.py",
        'self.n_rays.fill_(state["n_rays"])',
        "pass",
        "training",
    ),
    Fault(
        "lazy_adam_ignored",
        "training/trainer.py",
        'rate, config.trainer.optimizer == "lazy_adam")',
        "rate, False)",
        "training",
    ),
    Fault("other_options_resumed", "training/trainer.py", "folder.check_resumable(self.config)", "pass", "training"),
    Fault(
        "poses_drift_together",
        "training/adjustments.py",
        "return values - values.mean(0)",
        "return values",
        "adjustments",
    ),
    Fault(
        "light_on_the_background",
        "training/adjustments.py",
        "own = torch.cat([color - behind, opacity[:, None]], dim=-1)",
        "own = torch.cat([color, torch.ones_like(opacity)[:, None]], dim=-1)",
        "adjustments",
    ),
    Fault(
        "refined_cameras_are_forgotten",
        "training/run.py",
        'return self.refined if split == "train" and self.refined is not None else self.given_cameras(split)',
        "return self.given_cameras(split)",
        "adjustments",
    ),
    Fault(
        "adjustments_not_summed_over_processes",
        "training/step.py",
        "[*self.model.parameters(), *self.adjustments.parameters()]",
        "[*self.model.parameters()]",
        "adjustments",
    ),
    Fault(
        "models_without_gradients_in_rays_refined",
        "training/step.py",
        "self.adjustments.check_gradients(self.model)",
        "pass",
        "adjustments",
    ),
    Fault(
        "aligned_scores_at_the_given_pose",
        "training/evaluator.py",
        'shown["_aligned"] = image_of(camera, 0)',
        'shown["_aligned"] = image_of(cameras, view)',
        "adjustments",
    ),
    Fault(
        "poses_forgotten_on_resuming",
        "training/trainer.py",
        "load_adjustments(self.adjustments, tensors, folder.path)",
        "pass",
        "adjustments",
    ),
    Fault(
        "lights_fitted_to_clipped_values",
        "metrics.py",
        "chosen = (truth > UNCLIPPED[0]) & (truth < UNCLIPPED[1])",
        "chosen = truth > -1",
        "adjustments",
    ),
    Fault(
        "weights_of_pixels_ignored", "training/losses.py", "weighted_mean(error, batch.weight)", "error.mean()", "batch"
    ),
    Fault(
        "loss_over_black",
        "training/losses.py",
        "blend(batch.pixels, batch.background)",
        "blend(batch.pixels, 0 * batch.background)",
        "batch",
    ),
    Fault(
        "rays_cut_off_count",
        "training/step.py",
        "weight = batch.weight * ray_complete",
        "weight = batch.weight",
        "step",
    ),
    Fault(
        "half_of_the_samples",
        "training/step.py",
        "wanted = n_complete * target /",
        "wanted = n_complete * target / 2 /",
        "training",
    ),
    Fault("scale_of_the_loss_stays", "training/step.py", "self.scaler.update()", "pass", "step"),
    Fault(
        "gradients_add_up",
        "training/step.py",
        "(terms.values()))\n        self.optimizer.zero_grad()",
        "(terms.values()))",
        "training",
    ),
    Fault("psnr_of_range_2", "metrics.py", "truth, data_range=1.0).clamp", "truth, data_range=2.0).clamp", "image"),
    Fault("ssim_on_clamped_values", "metrics.py", "k2=0.03, data_range=1.0", "k2=0.03, data_range=(0.2, 0.8)", "image"),
    Fault("ssim_of_another_window", "metrics.py", "sigma=1.5, kernel_size=11", "sigma=0.5, kernel_size=11", "image"),
    Fault(
        "best_view_for_the_mean",
        "training/evaluator.py",
        'sum(row["psnr"] for row in rows) / len(rows)',
        'max(row["psnr"] for row in rows)',
        "evaluation",
    ),
    Fault(
        "scores_over_white",
        "training/evaluator.py",
        "background_color(config.data.background, device)",
        'background_color("white", device)',
        "evaluation",
    ),
    Fault(
        "steps_of_the_options",
        "training/evaluator.py",
        '"steps": state["step"]',
        '"steps": config.trainer.steps',
        "evaluation",
    ),
    Fault(
        "seconds_in_milliseconds",
        "training/evaluator.py",
        'round(state["seconds"], 2)',
        'round(state["seconds"] * 1000, 2)',
        "evaluation",
    ),
    Fault(
        "split_of_the_protocol",
        "training/evaluator.py",
        '"split": config.eval.split',
        '"split": "test"',
        "command_results",
    ),
    Fault(
        "ignored_pixels_are_scored",
        "training/evaluator.py",
        "else psnr(render[counts], truth[counts])",
        "else psnr(render, truth)",
        "capture_masks",
    ),
    Fault(
        "the_first_views_are_compared",
        "training/evaluator.py",
        "evenly_chosen(len(cameras), n_comparisons)",
        "range(n_comparisons)",
        "evaluation",
    ),
    Fault(
        "scores_of_a_split_for_those_of_the_test",
        "training/evaluator.py",
        'owner = folder if split == "test" and not other_scene else',
        "owner = folder if True else",
        "command_results",
    ),
    Fault(
        "seed_ignored_by_torch",
        "training/randomness.py",
        "    torch.manual_seed(seed)",
        "    torch.manual_seed(0)",
        "command_results",
    ),
    Fault(
        "stop_ignored",
        "training/trainer.py",
        "                stopped = self._stops()\n                if stopped:",
        "                if stopped:",
        "training",
    ),
    Fault("log_lines_twice_after_resume", "training/run_folder.py", 'if line["step"] <= step]', "if True]", "training"),
    Fault(
        "trains_on_with_nan",
        "training/step.py",
        "self.not_finite.copy_(torch.where(is_finite, 0, self.not_finite + 1))",
        "pass",
        "training",
    ),
    Fault(
        "saves_what_is_not_finite",
        "training/trainer.py",
        "self.check_finite()\n        folder = self._own(folder)",
        "folder = self._own(folder)",
        "training",
    ),
    Fault(
        "older_checkpoint_first",
        "training/checkpoint.py",
        "(folder / NEWEST, folder / PREVIOUS)",
        "(folder / PREVIOUS, folder / NEWEST)",
        "checkpoint",
    ),
    Fault("checksum_ignored", "training/checkpoint.py", "if has_checksum and", "if False and", "checkpoint"),
    Fault(
        "runs_replaced_unasked",
        "training/run_folder.py",
        "if checkpoint.exists(self.path) and not self.overwrite:",
        "if False:",
        "command_results",
    ),
    # commands and options
    Fault(
        "errors_with_status_0",
        "commands/__init__.py",
        "return failed(str(error))",
        "return failed(str(error), 0)",
        "command_results",
    ),
    Fault("out_of_render_ignored", "commands/render.py", "if options.out:", "if False:", "command_results"),
    Fault(
        "outputs_ignored",
        "commands/render.py",
        "outputs = choose_outputs(options.outputs)",
        'outputs = choose_outputs("rgb")',
        "command_results",
    ),
    Fault("opacity_not_saved", "commands/render.py", '"opacity": ("opacity",)', '"opacity": ()', "command_results"),
    Fault(
        "size_swapped",
        "commands/render.py",
        "cameras.resized(*options.size)",
        "cameras.resized(*options.size[::-1])",
        "command_results",
    ),
    Fault("frames_ignored", "commands/render.py", "options.frames or FRAMES", "FRAMES", "command_results"),
    Fault("fps_ignored", "commands/render.py", "in files], options.fps)", "in files], 20)", "command_results"),
    Fault(
        "video_backwards",
        "commands/render.py",
        "[folder.path / file for file in files]",
        "[folder.path / file for file in reversed(files)]",
        "command_results",
    ),
    Fault(
        "colors_of_depth_from_0",
        "commands/render.py",
        "return max(distance - radius, 0.0), distance + radius",
        "return 0.0, distance + radius",
        "command_results",
    ),
    Fault("render_resume_ignored", "commands/render.py", "if resume and all(", "if False and all(", "command_results"),
    Fault(
        "render_device_ignored",
        "commands/render.py",
        "processes.join(options.device)",
        '"cpu"',
        "command_results",
    ),
    Fault(
        "render_backend_ignored",
        "commands/render.py",
        "ops.set_backend(options.ops.backend, options.ops.overrides())",
        "pass",
        "command_results",
    ),
    Fault(
        "path_of_the_train_views",
        "commands/render.py",
        "return run.cameras(options.path)",
        'return run.cameras("train")',
        "command_results",
    ),
    Fault(
        "eval_split_ignored",
        "commands/eval.py",
        "config.eval.split = options.split or config.eval.split",
        "pass",
        "command_results",
    ),
    Fault(
        "eval_data_ignored",
        "commands/eval.py",
        "path, of = data or config.data.path,",
        "path, of = config.data.path or data,",
        "command_results",
    ),
    Fault(
        "eval_comparisons_ignored",
        "commands/eval.py",
        "config.eval.comparisons = options.comparisons",
        "pass",
        "command_results",
    ),
    Fault(
        "eval_backend_ignored",
        "commands/eval.py",
        "ops.set_backend(options.ops.backend, options.ops.overrides())",
        "pass",
        "command_results",
    ),
    Fault(
        "seed_ignored", "commands/train.py", "seed_everything(options.seed)", "seed_everything(0)", "command_results"
    ),
    Fault(
        "out_of_train_ignored",
        "commands/train.py",
        'options.out or Path("runs") / scene.name',
        'Path("runs") / scene.name',
        "command_results",
    ),
    Fault(
        "train_device_ignored",
        "commands/train.py",
        "pick_device(processes.join(options.device))",
        'pick_device("auto")',
        "command_results",
    ),
    Fault(
        "scored_unasked", "commands/train.py", "    elif options.eval.after_training:", "    else:", "command_results"
    ),
    Fault("not_restored", "commands/train.py", "trainer.restore(folder)", "pass", "command_results"),
    Fault(
        "summary_of_ssim_twice",
        "training/evaluator.py",
        "return f\"PSNR {metrics['psnr']:.2f}",
        "return f\"PSNR {metrics['ssim']:.2f}",
        "command_results",
    ),
    Fault(
        "summary_of_steps_for_seconds",
        "commands/summary.py",
        "{metrics['train_seconds']:.0f}",
        "{metrics['steps']:.0f}",
        "command_results",
    ),
    Fault(
        "eval_device_ignored",
        "commands/eval.py",
        "processes.join(options.device)",
        '"cpu"',
        "command_results",
    ),
    Fault(
        "interpolates_the_train_views",
        "commands/render.py",
        'run.cameras("test" if "test" in run.scene.splits else "train")',
        'run.cameras("train")',
        "command_results",
    ),
    Fault(
        "size_of_a_path_file_ignored",
        "rendering/path_files.py",
        '{"w": given[0], "h": given[1], **read_json(file)}',
        '{**read_json(file), "w": given[0], "h": given[1]}',
        "command_results",
    ),
    Fault(
        "train_downscale_ignored",
        "commands/train.py",
        "assemble(capture, data.downscale",
        "assemble(capture, 1.0",
        "command_results",
    ),
    Fault(
        "eval_downscale_ignored",
        "commands/eval.py",
        "assemble(capture, of.downscale",
        "assemble(capture, 1.0",
        "command_results",
    ),
    Fault(
        "overwrite_ignored",
        "commands/train.py",
        "for_new_run(path, options.overwrite)",
        "for_new_run(path, False)",
        "command_results",
    ),
    Fault(
        "split_of_the_run_ignored",
        "commands/summary.py",
        "split = read_config(folder).eval.split",
        'split = "test"',
        "command_results",
    ),
    Fault(
        "first_file_beats_the_later",
        "config/toml_files.py",
        "return values | changes | inner",
        "return changes | values | inner",
        "config",
    ),
    Fault(
        "files_beat_the_command_line",
        "commands/options.py",
        "    config_module.check(options)\n",
        "    options.trainer = config.trainer\n    config_module.check(options)\n",
        "config",
    ),
    Fault(
        "resumed_run_forgets_its_options",
        "commands/options.py",
        "_config_of_run(known.resume) if known.resume else None",
        "None",
        "config",
    ),
    # unbounded space
    Fault(
        "contraction_jumps_at_the_faces",
        "contraction.py",
        "return u / largest * (2 - 1 / largest)  #",
        "return u / largest * (2.1 - 1 / largest)  #",
        "contraction",
    ),
    Fault(
        "contraction_of_infinity_is_not_a_number",
        "contraction.py",
        ".clamp(-FARTHEST, FARTHEST)  #",
        "  #",
        "contraction",
    ),
    Fault(
        "uncontracted_infinity_is_infinite",
        "contraction.py",
        "gap = (2 - largest).clamp(min=torch.finfo(contracted.dtype).eps / 2)",
        "gap = 2 - largest",
        "contraction",
    ),
    Fault(
        "contraction_forgets_the_box_centre",
        "contraction.py",
        "return (box[0] + box[1]) / 2, ",
        "return torch.zeros_like(box[0]), ",
        "contraction",
    ),
    Fault(
        "ladder_of_jittered_rays_ends_before_far",
        "contraction.py",
        "while beyond < 2:",
        "while beyond < 1:",
        "contraction",
    ),
    Fault(
        "ladder_forgets_its_cone",
        "contraction.py",
        "before + max(step, cone * before)",
        "before + step",
        "contraction",
    ),
    Fault(
        "ladder_without_end",
        "contraction.py",
        "if len(ladder) > MAX_LADDER or ladder[-1] == before:",
        "if len(ladder) > 10 * MAX_LADDER:",
        "contraction",
    ),
    Fault(
        "cameras_of_smaller_images",
        "export/cameras.py",
        "lens = image.lens if on_this_disk is None else",
        "lens = image.lens if True else",
        "export_others",
    ),
    Fault("comparisons_of_before_stay", "training/evaluator.py", "- set(files))", "- found.names())", "evaluation"),
    Fault("a_rest_makes_chunks_smaller", "viewer/chunk.py", "2 * self._fixed_before", "0", "viewer_engine"),
    # meshes
    Fault(
        "what_a_mesh_hides_is_seen",
        "export/mesh.py",
        "(cosine > 0) & ~occluder.hides(in_image(seen), cosine)",
        "(cosine > 0)",
        "export_mesh",
    ),
    Fault("a_slope_hides_itself", "export/hidden.py", "2 * COVERS * slope)", "COVERS)", "export_mesh"),
    Fault(
        "far_faces_hide_what_is_beside_them",
        "export/hidden.py",
        "mine = (drawn & (level == number))",
        "mine = (drawn & (level <= number))",
        "export_mesh",
    ),
    Fault(
        "what_lies_behind_a_point_hides_it", "../scripts/orrery/sight.py", " & (t > 0) & short", " & (t > 0)", "sight"
    ),
    Fault(
        "triangles_that_reach_behind_the_eye_hide_nothing",
        "../scripts/orrery/sight.py",
        "(depth > NEAR).any(axis=1)",
        "(depth > NEAR).all(axis=1)",
        "sight",
    ),
    Fault("a_vertex_unseen_is_a_hole", "export/mesh.py", "2 * total >= 1 +", "2 * seen >= 1 + 0 *", "export_mesh"),
    Fault(
        "rows_of_pixels_as_long_as_columns",
        "export/views.py",
        "row.long() * self.camera.size(0)[0]",
        "row.long() * self.camera.size(0)[1]",
        "export_mesh",
    ),
    Fault(
        "a_block_at_the_edge_of_an_image_is_left_out",
        "export/fields.py",
        "(pixel > -reach[:, None])",
        "(pixel > reach[:, None])",
        "export_mesh",
    ),
    # several processes
    Fault(
        "sums_divided_by_the_processes",
        "training/gradients.py",
        "own / total.clamp(min=SMALLEST)",
        "torch.ones_like(own) / self.processes.size",
        "parallel",
    ),
    Fault(
        "all_processes_draw_the_same", "training/together.py", 'f"rays of {self.processes.rank}"', '"rays"', "parallel"
    ),
    Fault(
        "grids_of_processes_drift_apart",
        "training/together.py",
        'seed_step(self.seed, step, "update", self.device)',
        'seed_step(self.seed, step, f"{self.processes.rank}", self.device)',
        "parallel",
    ),
    Fault("models_are_not_compared", "training/together.py", "if differ:", "if False:", "parallel"),
    Fault(
        "one_process_stops_by_itself",
        "training/together.py",
        "self.stop = any_stop > 0",
        "self.stop = stop",
        "parallel",
    ),
    Fault(
        "place_in_the_schedule_forgotten",
        "training/trainer.py",
        'shared.get("scheduled", self.step)',
        "self.step",
        "parallel",
    ),
    Fault(
        "parameters_without_gradient_keep_the_last",
        "training/gradients.py",
        "p.grad = torch.zeros_like(p)",
        "p.grad = torch.ones_like(p)",
        "parallel",
    ),
    Fault(
        "halves_of_a_loss_that_is_not_scaled",
        "training/step.py",
        " or _adds_halves(processes, parallel)",
        "",
        "parallel",
    ),
    Fault(
        "sums_of_halves_stay_behind", "training/gradients.py", "torch._foreach_copy_(large, sums)", "pass", "parallel"
    ),
    Fault("views_are_not_shared_out", "parallel.py", "range(self.rank, n, self.size)", "range(n)", "parallel"),
    Fault("every_process_prints", "commands/__init__.py", 'sys.stdout = open(os.devnull, "w")', "pass", "parallel"),
    # the shipped capture, and the error of a depth
    Fault(
        "tangential_terms_swapped",
        "data/lens_models.py",
        "distorted_x = factor * x + 2 * p1 * x * y + p2 * (r2 + 2 * x * x)",
        "distorted_x = factor * x + 2 * p2 * x * y + p1 * (r2 + 2 * x * x)",
        "room",
    ),
    Fault(
        "test_views_one_later",
        "data/assemble.py",
        "test = ordered[::TEST_EVERY]",
        "test = ordered[1::TEST_EVERY]",
        "room",
    ),
    Fault(
        "depth_error_in_model_units",
        "../scripts/measure_depth.py",
        'run.frame.distance_to_input(images["depth_ray"])',
        'images["depth_ray"]',
        "room",
    ),
    Fault("depth_error_absolute", "../scripts/measure_depth.py", ".abs() / true)[surface]", ".abs())[surface]", "room"),
    Fault(
        "depth_error_of_the_sky",
        "../scripts/measure_depth.py",
        "surface = true.isfinite()",
        "surface = torch.ones_like(true, dtype=torch.bool)",
        "room",
    ),
    Fault(
        "depth_box_in_the_files_units",
        "../scripts/measure_depth.py",
        "(true.flatten() * scale)[:, None]",
        "true.flatten()[:, None]",
        "room",
    ),
    Fault(
        "depth_of_another_size_taken",
        "../scripts/measure_depth.py",
        "ranges.shape != (height, width) or not",
        "not",
        "room",
    ),
    Fault(
        "floaters_looked_for_where_there_are_no_samples",
        "../scripts/measure_floaters.py",
        "near=0.0)",
        "near=run.config.sampling.near)",
        "floaters",
    ),
    Fault("transparent_pixels_are_floaters", "../scripts/measure_floaters.py", "(depth > 0) & ", "", "floaters"),
    # exports
    Fault(
        "faces_turned_inwards",
        "export/surface.py",
        'gradient_direction="ascent"',
        'gradient_direction="descent"',
        "export_mesh",
    ),
    Fault("blocks_without_overlap", "export/grid.py", "- block * BLOCK) + 1)", "- block * BLOCK))", "export_mesh"),
    Fault(
        "meshes_in_the_models_frame",
        "export/mesh.py",
        "return replace(self, vertices=frame.to_input(self.vertices), normals=normals)",
        "return self",
        "export_mesh",
    ),
    Fault(
        "hidden_faces_stay",
        "export/mesh.py",
        "kept = by_most_neighbours(mesh.faces, has_color)[mesh.faces].all(axis=1)",
        "kept = np.ones(len(mesh.faces), dtype=bool)",
        "export_mesh",
    ),
    Fault(
        "corners_of_an_export_in_the_models_frame",
        "commands/export.py",
        'options.frame, "--crop").placed(run.frame)',
        'options.frame, "--crop")',
        "export_mesh",
    ),
    Fault(
        "exports_of_unbounded_space_end_at_the_box",
        "export/domain.py",
        'if config.sampling.kind == "contracted":',
        "if False:",
        "export_mesh",
    ),
    Fault(
        "contracted_cells_taken_for_boxes",
        "export/grid.py",
        "if isinstance(sampler, ContractedSampler):",
        "if False:",
        "export_mesh",
    ),
    Fault(
        "a_crop_that_is_off_cuts_exports",
        "crop.py",
        "found is not None and found[1] else None",
        "found is not None else None",
        "export_mesh",
    ),
    Fault(
        "unfinished_parts_of_other_options",
        "export/work.py",
        '.read_text(encoding="utf-8", errors="replace") != text:',
        '.read_text(encoding="utf-8", errors="replace") == "":',
        "export_mesh",
    ),
    Fault(
        "median_at_the_end_of_its_interval",
        "model/compositing.py",
        "start + share * (end - start)",
        "end",
        "export_mesh",
    ),
    Fault(
        "points_that_others_see_through",
        "export/points.py",
        "return (agree > deny) |",
        "return (agree >= 0) |",
        "export_others",
    ),
    Fault(
        "splats_have_scales_without_logarithm",
        "export/splats.py",
        "np.log(scales(cloud.positions))",
        "scales(cloud.positions)",
        "export_others",
    ),
    Fault(
        "depth_images_in_the_models_units",
        "export/images.py",
        "frame.distance_to_input(values)",
        "values",
        "export_others",
    ),
    Fault(
        "poses_of_nerfbaselines_in_opencv_axes",
        "integrations/nerfbaselines.py",
        "pose[:, :3] *= TO_OPENGL",
        "pass",
        "nerfbaselines",
    ),
    # captures that fit no scene
    Fault(
        "views_that_look_away_from_each_other_in_silence",
        "data/doubts.py",
        "if other != view and (wide[other] or inside.any()):",
        "if wide[other] or inside.any():",
        "odd_captures",
    ),
    Fault("plain_walls_in_silence", "data/doubts.py", "max() < PLAIN", "max() < 0", "odd_captures"),
    # scenes that scripts make
    Fault(
        "nothing_throws_a_shadow",
        "../scripts/orrery/lighting.py",
        "(self.view.reach - z < depth + self.texel).float()",
        "torch.ones_like(z)",
        "scenes",
    ),
    Fault(
        "samples_meet_pixels_at_their_corner",
        "../scripts/orrery/casting.py",
        "(base[:, None] + place for base, place in",
        "(base[:, None] + 0 * place for base, place in",
        "scenes",
    ),
    Fault(
        "a_scene_of_other_options_is_gone_on_with",
        "../scripts/make_scenes.py",
        "if found.get(name) != made_with[name]",
        "if name not in found",
        "scenes",
    ),
    # the model "images"
    Fault(
        "a_view_sees_its_own_image",
        "model/images/lookup.py",
        "inside, cosine = inside & ~own, cosine - OWN * own",
        "pass",
        "images_model",
    ),
    Fault(
        "an_image_of_a_rendering_counts_as_a_training_view",
        "rendering/image_renderer.py",
        "._replace(view=None)",
        "",
        "images_model",
    ),
    Fault(
        "kept_images_lose_colors",
        "training/run_images.py",
        "lossless=True, exact=True",
        "lossless=True",
        "images_model",
    ),
    Fault(
        "the_correction_trains_the_field",
        "model/images/renderer.py",
        "(x.detach() for x in field[:3])",
        "field[:3]",
        "images_model",
    ),
    Fault("images_that_look_elsewhere", "model/images/lookup.py", "cosine.topk(", "(-cosine).topk(", "images_model"),
    Fault("hidden_points_are_seen", "model/images/depth_maps.py", "* (depth > 0)", "", "images_model"),
    Fault("agreement_of_no_depth", "model/images/depth_maps.py", ".clamp(min=self.step)", "", "images_model"),
    Fault(
        "corrections_of_colors_too_good",
        "model/images/renderer.py",
        "color = disturbed(color, jitter, self.options.noise)",
        "pass",
        "images_model",
    ),
]


def copy_tree(folder: Path) -> None:
    """What tests need of this checkout, in `folder`."""
    ignored = shutil.ignore_patterns("__pycache__", ".pytest_cache")
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=ignored)
        else:
            shutil.copy(source, folder / name)
    for name in LINKED:
        (folder / name).symlink_to(ROOT / name)


def outcome(fault: Fault, folder: Path) -> str:
    """The test that notices the fault, or what went wrong; the copy is as before when this returns."""
    file = folder / "nerfkit" / fault.file
    text = file.read_text(encoding="utf-8")
    if text.count(fault.old) != 1:
        return f"NOT FOUND: its text occurs {text.count(fault.old)} times in {fault.file}"
    before = without_fault(fault.tests, folder)
    if before != "SURVIVED":
        return f"FAILS WITHOUT IT: {before}"
    file.write_text(text.replace(fault.old, fault.new), encoding="utf-8")
    try:
        return noticed(fault.tests, folder)
    finally:
        file.write_text(text, encoding="utf-8")


def noticed(tests: str, folder: Path) -> str:
    """The first test that fails, of those that should notice."""
    log = folder / "faults.log"
    status = run_tests([f"tests/test_{name}.py" for name in tests.split()], folder, log)
    output = log.read_text(encoding="utf-8", errors="replace")
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", output, re.MULTILINE)
    if status is None:
        return f"caught: no end within {MOST_SECONDS} s"
    if status == pytest.ExitCode.TESTS_FAILED and failed:
        return f"caught: {failed[1].removeprefix('tests/')}"
    return "SURVIVED" if status == pytest.ExitCode.OK else f"NO TESTS: {output.strip()[-300:]}"


without_fault = cache(noticed)  # once for every choice of modules: tests that fail anyway notice nothing


def run_tests(modules: list[str], folder: Path, log: Path) -> int | None:
    """Exit status of pytest on `modules` in `folder`; None if it has to be ended. What it says goes to `log`.

    In a fork of this process, which has all that takes seconds to import, but not nerfkit.
    """
    pid = os.fork()
    if pid == 0:
        os.setsid()  # to be ended with all that it starts
        for stream, target in ((1, os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)), (2, 1)):
            os.dup2(target, stream)
        os.chdir(folder)
        sys.path[:] = [str(folder), *(path for path in sys.path if Path(path).resolve() != ROOT / "tests")]
        os.environ |= {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
        sys.dont_write_bytecode = True  # a file that changes twice within a second would be taken for what it was
        status = 99
        try:
            status = pytest.main(["-x", "-q", "-p", "no:cacheprovider", "--tb=no", "-rfE", *modules])
        finally:
            sys.stdout.flush()
            os._exit(int(status))
    end = time.monotonic() + MOST_SECONDS
    while time.monotonic() < end:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--list", action="store_true", help="names, files and tests")
    options = parser.parse_args()
    by_name = {fault.name: fault for fault in FAULTS}
    assert len(by_name) == len(FAULTS), "two faults of one name"
    unknown = [name for name in options.names if name not in by_name]
    if unknown:
        parser.error(f"no fault is called {', '.join(unknown)}; --list tells their names")
    chosen = [by_name[name] for name in options.names] or FAULTS
    if options.list:
        for fault in chosen:
            print(f"{fault.name:<42} {fault.file:<32} {fault.tests}")
        return 0
    for module in IMPORTED:
        importlib.import_module(module)
    bad = 0
    with tempfile.TemporaryDirectory() as name:
        copy_tree(Path(name))
        for fault in chosen:
            began = time.monotonic()
            result = outcome(fault, Path(name))
            bad += not result.startswith("caught")
            print(f"{fault.name:<42} {time.monotonic() - began:5.0f} s  {result}", flush=True)
    print(f"{len(chosen) - bad} of {len(chosen)} faults are caught")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
