# SPDX-License-Identifier: Apache-2.0
"""Images, paths, video."""

from tests.faults.fault import Fault

FAULTS = [
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
]
