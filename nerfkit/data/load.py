# SPDX-License-Identifier: Apache-2.0
"""A scene folder -> Scene, of any known format; of photos and videos after their poses were found."""

import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from nerfkit.config import Config, DataConfig, SamplingConfig, from_dict, to_dict
from nerfkit.data import readers
from nerfkit.data.assemble import assemble, resolve_files
from nerfkit.data.capture import Capture
from nerfkit.data.readers.folders import list_images
from nerfkit.data.scene import Scene
from nerfkit.data.scene_transform.transform import SceneTransform
from nerfkit.data.sfm import VIDEOS, root_of, solve
from nerfkit.data.sfm.photos import OTHERS, SUFFIXES, image_folder
from nerfkit.errors import SceneError
from nerfkit.files import MARKER
from nerfkit.safe_io import missing_hint, native_name, open_regular, printable

IMAGE_FOLDER = re.compile(r"(images|input|rgb|frames|train|val|test)(_\d+)?", re.I)  # as scenes name it
START, FILE_LIMIT = 2**16, 2**40  # bytes of a file of poses: looked at, at most
TO_JSON = "write poses (camera to world, OpenGL axes) and lens into a transforms.json"
FOREIGN = (  # formats that are not read: names, how a file starts, program, way in
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


def scene_of(config: Config, transform: SceneTransform | None = None) -> Scene:
    """The scene of `config.data`, as it is trained, scored and shown: in the frame of a run's `transform`, or with a
    data.box in that of the files."""
    data = config.data
    capture = load_capture(data.path, data.format, data.sfm_dir, of_run=transform is not None)
    scene = assemble(capture, data, transform, unbounded=config.sampling.kind == "contracted")
    return replace(scene, source=data)


def load_scene(
    path: str,
    format: str = "auto",
    downscale: float = 1.0,
    box: tuple[float, ...] | None = None,
    transform: SceneTransform | None = None,
    sfm_dir: str = "",
    masks: str = "ignore",
    unbounded: bool = False,
) -> Scene:
    """The scene in folder `path`: `scene_of` for those who have no configuration.

    Args:
        path, format, downscale, sfm_dir, masks: the options of data with these names.
        box: x, y, z of the lowest, then the highest corner, in the files' frame, which then is the model's.
        transform: that of a run which goes on.
        unbounded: what lies outside of the `box` counts, too.
    """
    kind = "contracted" if unbounded else None
    path, sfm_dir, box = os.fspath(path), os.fspath(sfm_dir), None if box is None else tuple(map(float, box))
    data = DataConfig(path=path, format=format, downscale=downscale, box=box, sfm_dir=sfm_dir, masks=masks)
    config = from_dict(to_dict(Config(data=data, sampling=SamplingConfig(kind=kind))), "load_scene")  # checked
    return scene_of(config, transform)


def load_capture(
    path: str, format: str = "auto", sfm_dir: str = "", report: Callable[[str], None] = print, of_run: bool = False
) -> Capture:
    """What a reader finds at `path`, and its image files; `report` gets a line where poses have to be found.

    For a scene `of_run` "auto" is the first format, as when runs said so, and poses that are gone are not found anew.
    """
    folder, formats = look_at(path, format)
    if formats:
        return resolve_files(readers.read(folder, formats, seeks_points=not of_run), folder)
    out = _path(sfm_dir) if sfm_dir else None
    if of_run and not any((sparse := root_of(folder, out) / "sparse").glob("*")):
        raise SceneError(
            f"the poses of the run were in {printable(sparse)}, which is gone; new ones would have other "
            "coordinates. Put it back, give its folder with --data (with train, --data.sfm_dir), or train again"
        )
    report(f"{printable(folder)} has no camera poses; they are looked for")
    if beside := poses_beside(folder):
        report(f"warning: {beside}")
    solved = solve(folder, out, report)
    return replace(resolve_files(readers.read(solved, ["colmap"]), solved), format_again="auto")


def look_at(path: str, format: str = "auto") -> tuple[Path, list[str]]:
    """The folder or video of a scene, and the formats to read it as: none for photos without poses."""
    if not path:
        raise SceneError("no scene is given; give its folder, as in: nerfkit inspect FOLDER, or nerfkit train FOLDER")
    folder = _path(path)
    if not os.path.lexists(folder):
        raise SceneError(f"the folder '{printable(folder)}' {missing_hint(folder)}")
    if not os.path.isdir(folder) and not (os.path.isfile(folder) and folder.suffix.lower() in VIDEOS):
        meant = f"did you mean the folder '{printable(folder.parent)}'?"
        raise SceneError(f"'{printable(folder)}' is neither a folder nor a video; {meant}")
    if format not in ("auto", *readers.READERS):
        raise SceneError(f"data.format: {format!r} is unknown; use auto, {', '.join(readers.READERS)}")
    found = readers.formats_of(folder)
    if format != "auto" and format not in found and found:
        others, what = " or ".join(found), f"data.format: {format} needs {readers.READERS[format].needs}"
        raise SceneError(
            f"{what}, but '{printable(folder)}' looks like {others}; choose {others}, or leave out --data.format"
        )
    if formats := found if format == "auto" else [format]:
        return folder, formats
    _check_photos(folder, poses_beside(folder))
    return folder, []


def poses_beside(folder: Path) -> str:
    """What is lost if the poses of photos in a folder are found anew, and the way to keep it; or nothing."""
    for pattern, start, program, way in FOREIGN:
        for file in sorted([*folder.glob(pattern), *folder.glob(f"*/{pattern}")])[:3]:
            with suppress(SceneError, OSError), open_regular(file, FILE_LIMIT, "file", SceneError) as opened:
                if re.search(start, opened.read(START).decode("utf-8", "replace"), re.I | re.M):
                    what = f"{printable(file)} holds poses and scale of {program}"
                    return f"{what}, which are not read; to keep them, {way}"
    names = sorted(file.name for file in folder.glob("*") if MAY_HOLD.fullmatch(file.name))
    return f"{printable(', '.join(names))} may hold poses, but of no format that is read" if names else ""


def elsewhere(data: DataConfig, path: str) -> DataConfig:
    """A run's options for another folder: of its scene, maybe in another format now, or of another scene."""
    known = data.format in readers.READERS and readers.READERS[data.format].recognises(_path(path))
    return replace(data, path=path, format=data.format if known else "auto", sfm_dir="")


def _path(text: str) -> Path:
    try:
        return Path(native_name(text)).expanduser()
    except (RuntimeError, ValueError) as error:  # an unknown user; an invalid file name
        raise SceneError(f"'{printable(text)}' cannot be a folder ({error}); check the path") from None


def _check_photos(folder: Path, beside: str) -> None:
    if folder.is_file():  # a video
        return
    place = image_folder(folder)
    inner = sorted(entry for entry in place.glob("*") if os.path.isdir(entry) and not entry.name.startswith("."))
    if runs := [at for at in (place, *inner) if (at / MARKER).exists() and (at / "config.toml").exists()]:
        raise SceneError(f"'{printable(runs[0])}' is a run of nerfkit; give the folder of a scene or of photos")
    scenes = [entry for entry in inner if readers.formats_of(entry)]
    files = (file for at in [place, *([] if scenes else inner)] for file in at.glob("*"))
    if not any(file.suffix.lower() in (*SUFFIXES, *OTHERS) for file in files):
        within = scenes or [(place / name).parent for name in list_images(place)[:1]]
        known = f"{beside}; " * bool(beside)
        if within:
            there = f"there is {'no scene' if scenes else 'no image'} in '{printable(folder)}' itself"
            around = folder.resolve().parent  # of the folder "sparse" of a scene
            meant = [around] if readers.formats_of(around) else within[:3]
            raise SceneError(f"{known}{there}; did you mean {' or '.join(map(printable, meant))}?")
        if not any(place.iterdir()):
            raise SceneError(f"the folder '{printable(place)}' is empty; put photos or a scene there, or give another")
        formats = "; ".join(f"{name} needs {reader.needs}" for name, reader in readers.READERS.items())
        there = f"there are no photos (JPEG, PNG, WebP) and no scene of a known format in '{printable(place)}'"
        raise SceneError(f"{known}{there}. Of the formats, {formats}")
    scene = folder.resolve().parent
    if IMAGE_FOLDER.fullmatch(folder.resolve().name) and readers.formats_of(scene):
        raise SceneError(f"'{printable(folder)}' holds the images of the scene '{printable(scene)}'; give that folder")
