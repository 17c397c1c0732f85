# SPDX-License-Identifier: Apache-2.0
"""Files of poses by programs whose formats are not read, so that poses are not looked for where they are known."""

from __future__ import annotations

import re
from pathlib import Path

from nerfkit.errors import SceneError
from nerfkit.reading import open_regular, shown

START = 2**16  # bytes of a file that are looked at
FILE_LIMIT = 2**40  # bytes
TO_JSON = "write poses (camera to world, OpenGL axes) and lens into a transforms.json"
FORMATS = (  # names in the folder or one within it, what such a file starts with, program, and the way in
    ("*.xml", r"<document[^>]*>\s*<chunk", "Metashape", "export them for COLMAP, or use ns-process-data metashape"),
    ("*.csv", r"^#?name,x,y,", "RealityCapture", "export them for COLMAP, or use ns-process-data realitycapture"),
    ("*.sfm", r'"(views|poses)"', "Meshroom", "add the node ExportColmap"),
    ("sfm.json", r'"(views|poses)"', "Meshroom", "add the node ExportColmap"),
    ("sfm_data.json", r'"(views|extrinsics)"', "openMVG", "run openMVG_main_openMVG2Colmap"),
    ("reconstruction.json", r'"(shots|cameras)"', "OpenSfM", "run opensfm export_colmap"),
    ("bundle*.out", r"# Bundle file", "Bundler", TO_JSON),
    ("*.nvm", r"NVM_V3", "VisualSFM", TO_JSON),
    ("*.txt", r"tx ty tz qx qy qz qw", "the TUM benchmark", f"they lack the lens: {TO_JSON}"),
    ("*_cam.txt", r"extrinsic", "MVSNet", TO_JSON),
    ("meta_data.json", r'"(camtoworld|worldtogt)"', "SDFStudio", TO_JSON),
    ("cameras.json", r'"img_name"', "Gaussian Splatting", "give the scene of which its cfg_args speaks"),
)  # fmt: skip
MAY_HOLD_POSES = re.compile(
    r".*(pose|camera|traj|extrinsic|transforms).*\.(json|xml|csv|txt|npz|npy|yml|yaml|log|out)", re.I
)


def check_no_poses(folder: Path) -> None:
    """Raise SceneError, with the way in, for a folder with poses that would have to be found anew."""
    for pattern, start, program, way in FORMATS:
        for file in sorted([*folder.glob(pattern), *folder.glob(f"*/{pattern}")])[:3]:
            try:
                with open_regular(file, FILE_LIMIT, "file", SceneError) as opened:
                    content = opened.read(START)
            except (SceneError, OSError):
                continue
            if re.search(start, content.decode("utf-8", "replace"), re.I | re.M):
                raise SceneError(
                    f"data.path: {shown(file)} holds poses of {program}, which are not read; {way}; or move the file "
                    "away to have poses found anew"
                )


def others_with_poses(folder: Path) -> list[str]:
    """Names of files that may hold poses in no format that is known."""
    return sorted(file.name for file in folder.iterdir() if MAY_HOLD_POSES.fullmatch(file.name))
