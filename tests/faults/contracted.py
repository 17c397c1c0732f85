# SPDX-License-Identifier: Apache-2.0
"""Unbounded space."""

from tests.faults.fault import Fault

FAULTS = [
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
        "export_cameras",
    ),
    Fault("comparisons_of_before_stay", "training/evaluator.py", "- set(files))", "- found.names())", "evaluation"),
    Fault("a_rest_makes_chunks_smaller", "viewer/chunk.py", "2 * self._fixed_before", "0", "viewer_engine"),
]
