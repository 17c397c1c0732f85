# SPDX-License-Identifier: Apache-2.0
"""Pixels, scenes, cameras, batches."""

from tests.faults.fault import Fault

FAULTS = [
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
]
