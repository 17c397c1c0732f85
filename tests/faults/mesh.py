# SPDX-License-Identifier: Apache-2.0
"""Meshes."""

from tests.faults.fault import Fault

FAULTS = [
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
]
