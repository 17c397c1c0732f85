# SPDX-License-Identifier: Apache-2.0
"""The shipped capture, the error of a depth, scenes that scripts make."""

from tests.faults.fault import Fault

FAULTS = [
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
]
