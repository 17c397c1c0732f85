# SPDX-License-Identifier: Apache-2.0
"""Files of poses by programs whose formats are not read, named before poses are found anew."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from nerfkit.errors import SceneError
from nerfkit.safe_io import open_regular, printable

START = 2**16  # bytes of a file that are looked at
FILE_LIMIT = 2**40  # bytes
TO_JSON = "write poses (camera to world, OpenGL axes) and lens into a transforms.json"
FORMATS = (  # names in the folder or one within it, what such a file starts with, program, and the way in
    ("*.xml", r"<document[^>]*>\s*<chunk", "Metashape", "export them for COLMAP, or use ns-process-data metashape"),
    ("*.csv", r"^#?name,x,y,", "RealityCapture", "export them for COLMAP, or use ns-process-data realitycapture"),
    ("sfm_data.json", r'"(views|extrinsics)"', "openMVG", "run openMVG_main_openMVG2Colmap"),
    ("*sfm*", r'"(views|poses)"', "Meshroom", "add the node ExportColmap"),
    ("reconstruction.json", r'"(shots|cameras)"', "OpenSfM", "run opensfm export_colmap"),
    ("bundle*.out", r"# Bundle file", "Bundler", TO_JSON),
    ("*.nvm", r"NVM_V3", "VisualSFM", TO_JSON),
    ("*.txt", r"tx ty tz qx qy qz qw", "the TUM benchmark", f"{TO_JSON}, which they lack"),
    ("*_cam.txt", r"extrinsic", "MVSNet", TO_JSON),
    ("meta_data.json", r'"(camtoworld|worldtogt)"', "SDFStudio", TO_JSON),
    ("cameras.json", r'"img_name"', "Gaussian Splatting", "give the scene of which its cfg_args speaks"),
)  # fmt: skip
MAY_HOLD = re.compile(r".*(pose|camera|traj|extrinsic|transforms).*\.(json|xml|csv|txt|np[zy]|ya?ml|log|out)", re.I)


def poses_beside(folder: Path) -> str:
    """What is lost if the poses of photos in a folder are found anew, and the way to keep it; or nothing."""
    for pattern, start, program, way in FORMATS:
        for file in sorted([*folder.glob(pattern), *folder.glob(f"*/{pattern}")])[:3]:
            with suppress(SceneError, OSError), open_regular(file, FILE_LIMIT, "file", SceneError) as opened:
                if re.search(start, opened.read(START).decode("utf-8", "replace"), re.I | re.M):
                    return (
                        f"{printable(file)} holds poses and scale of {program}, which are not read; to keep them, {way}"
                    )
    names = sorted(file.name for file in folder.glob("*") if MAY_HOLD.fullmatch(file.name))
    return f"{printable(', '.join(names))} may hold poses, but of no format that is read" if names else ""
