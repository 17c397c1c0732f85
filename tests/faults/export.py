# SPDX-License-Identifier: Apache-2.0
"""Exports but meshes."""

from tests.faults.fault import Fault

FAULTS = [
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
        "export_points",
    ),
    Fault(
        "splats_have_scales_without_logarithm",
        "export/splats.py",
        "np.log(scales(cloud.positions))",
        "scales(cloud.positions)",
        "export_points",
    ),
    Fault(
        "depth_images_in_the_models_units",
        "export/images.py",
        "frame.distance_to_input(values)",
        "values",
        "export_depth",
    ),
    Fault(
        "poses_of_nerfbaselines_in_opencv_axes",
        "integrations/nerfbaselines.py",
        "pose[:, :3] *= TO_OPENGL",
        "pass",
        "nerfbaselines",
    ),
    Fault("pinholes_see_what_is_behind_them", "export/views.py", "inside &= z > 0", "pass", "export_points"),
    Fault(
        "points_of_pixels_without_a_direction",
        "export/points.py",
        "good &= view.known.flatten()",
        "pass",
        "export_points",
    ),
    Fault(
        "tracks_of_images_that_are_not_exported",
        "export/cameras.py",
        "track_lengths=lengths, ",
        "",
        "export_cameras",
    ),
]
