# SPDX-License-Identifier: Apache-2.0
"""The model "images"."""

from tests.faults.fault import Fault

FAULTS = [
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
    Fault(
        "corrections_of_other_rays",
        "model/images/renderer.py",
        "color.index_copy(0, hits,",
        "color.index_copy(0, hits.flip(0),",
        "images_model",
    ),
    Fault(
        "corrections_beside_other_pixels",
        "training/losses.py",
        "(color - truth[: len(color)])",
        "(color - truth[-len(color) :])",
        "images_model",
    ),
    Fault("images_that_look_elsewhere", "model/images/lookup.py", "cosine.topk(", "(-cosine).topk(", "images_lookup"),
    Fault("hidden_points_are_seen", "model/images/depth_maps.py", "* (depth > 0)", "", "images_lookup"),
    Fault("agreement_of_no_depth", "model/images/depth_maps.py", ".clamp(min=self.step)", "", "images_lookup"),
    Fault(
        "corrections_of_colors_too_good",
        "model/images/renderer.py",
        "color = disturbed(color, jitter, self.options.noise)",
        "pass",
        "images_model",
    ),
    Fault(
        "the_last_of_four_pixels_decides",
        "model/images/sources.py",
        "counts = counts & ~self.ignored[pixel]",
        "counts = ~self.ignored[pixel]",
        "images_lookup",
    ),
    Fault(
        "fisheyes_see_nothing_behind_themselves",
        "model/images/sources.py",
        " | self.sees_behind[view]",
        "",
        "images_lookup",
    ),
    Fault(
        "fisheyes_among_few_see_nothing_behind_themselves",
        "model/images/sources.py",
        "(depth > 0) | self.sees_behind)",
        "depth > 0)",
        "images_lookup",
    ),
    Fault(
        "far_depths_are_as_certain_as_near_ones",
        "model/images/depth_maps.py",
        "(distance * self.cone).clamp(min=self.step)",
        "self.step",
        "images_lookup",
    ),
]
