# SPDX-License-Identifier: Apache-2.0
"""Photographs or a video -> a COLMAP folder with camera poses, by pycolmap (pip install "nerfkit[photos]").

    FOLDER/ or FOLDER/images/     photographs, also in sub-folders
    FOLDER/sparse/0/              the model found, in COLMAP's binary files
    FOLDER/sparse/database.db     features and matches, for other tools and for work that goes on
    FOLDER/sparse/solved.json     of which photographs and how, and what came of it

What is finished is used at once the next time; what was stopped goes on with the database.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import msgspec

from nerfkit.data.sfm import photographs as ph
from nerfkit.data.sfm import video_frames
from nerfkit.data.sfm.attempts import LEAST, Attempts
from nerfkit.data.sfm.model_folder import MODEL, PARTIAL, RECORD, ModelFolder
from nerfkit.data.sfm.photographs import Photograph
from nerfkit.data.sfm.plan import Outcome, Plan, Record, some
from nerfkit.data.sfm.process import Report, check_pycolmap
from nerfkit.errors import SceneError
from nerfkit.reading import shown


def solve(
    photos: str | Path, out: str | Path | None = None, report: Report = print, allow_partial: bool = False
) -> Path:
    """The COLMAP folder of a folder of photographs or of a video, made unless it is there.

    It is the folder of the photographs, `<name>_frames` beside a video, or `out`; its model is in `sparse/0`. `report`
    gets lines of progress. Raises SceneError, among others if less than half of the photographs get a pose and not
    `allow_partial`. Ctrl-C leaves what is done.
    """
    source = Path(photos).expanduser()
    from_video = video_frames.is_video(source) and not source.is_dir()
    if not from_video and not source.is_dir():
        kinds = ", ".join(suffix[1:] for suffix in video_frames.SUFFIXES)
        raise SceneError(f"{shown(source)} is neither a folder of photographs nor a video ({kinds})")
    usual = source.with_name(f"{source.stem}_frames") if from_video else source
    root = Path(out).expanduser() if out is not None else _writable(usual, report)
    images = root / "images" if from_video else ph.image_folder(source)
    if from_video:
        video_frames.extract_frames(source, images, report)
    found = ph.find_photographs(images, report)
    if root / "images" != images and root != images:
        _link(root / "images", images, report)
    folder = ModelFolder(root / "sparse")
    folder.lock()
    try:
        _fill(folder, images, found, from_video, report, allow_partial)
    finally:
        folder.unlock()
    return root


def _fill(
    folder: ModelFolder, images: Path, found: list[Photograph], is_video: bool, report: Report, partial: bool
) -> None:
    """Fill the folder `sparse`, or take what is in it."""
    mode = ph.camera_mode(found)
    pairs = ph.choose_pairs([photo.name for photo in found], is_video)
    n_turned = sum(photo.is_turned for photo in found)
    plan = Plan(mode, ph.camera_model(mode, len(found)), pairs is not None, n_turned)
    wanted = Record({photo.name: photo.bytes for photo in found}, plan)
    outcome = _known(folder, wanted, report)
    if outcome is None:
        check_pycolmap()
        folder.remove_models()
        folder.write_record(wanted)
        outcome = Attempts(folder, images, found, plan, pairs, report).run()
        folder.write_record(msgspec.structs.replace(wanted, outcome=outcome))
    _tell(outcome, folder, report)
    if outcome.registered < LEAST * outcome.total and not partial:
        raise SceneError(
            f"only {outcome.registered} of {outcome.total} photographs in {shown(images)} got a pose (not: "
            f"{some(outcome.missing)}); take more that overlap, or allow a partial model; to try again, delete "
            f"{shown(folder.path)}"
        )
    if (folder.path / PARTIAL).is_dir():
        folder.place(folder.path / PARTIAL, MODEL)


def _known(folder: ModelFolder, wanted: Record, report: Report) -> Outcome | None:
    """What came of it if it is finished; what is of other photographs is deleted."""
    record = folder.read_record()
    if record is None or record.plan != wanted.plan or not record.photographs.items() <= wanted.photographs.items():
        if record is not None:
            report(f"the photographs have changed since {shown(folder.path)} was made: it is made again")
        folder.clear()
        return None
    return record.outcome if record.photographs == wanted.photographs and folder.is_finished() else None


def _tell(outcome: Outcome, folder: ModelFolder, report: Report) -> None:
    """Report what came of it."""
    report(outcome.summary)
    if outcome.missing and outcome.registered:
        report(f"not registered: {some(outcome.missing, 20)}")
    for note in outcome.notes:
        report(f"note: {note}; look at the model in {shown(folder.path)}")


def _writable(root: Path, report: Report) -> Path:
    """`root`, or a folder in the user's cache if nothing can be written there."""
    if _can_write(root / "sparse") or (root / "sparse" / RECORD).exists():
        return root
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    name = f"{root.name}-{hashlib.sha256(str(root.resolve()).encode()).hexdigest()[:12]}"
    instead = cache / "nerfkit" / "photos" / name
    report(f"note: {shown(root)} cannot be written; the COLMAP model goes to {shown(instead)}")
    return instead


def _can_write(path: Path) -> bool:
    """Whether something can be made in the folder, or in the nearest one above that is there."""
    while not os.path.lexists(path) and path != path.parent:
        path = path.parent
    return path.is_dir() and os.access(path, os.W_OK | os.X_OK)


def _link(link: Path, images: Path, report: Report) -> None:
    """Have the photographs in the COLMAP folder, too."""
    if os.path.lexists(link):
        if link.resolve() != images.resolve():
            raise SceneError(f"{shown(link)} is there, and is not the folder of the photographs {shown(images)}")
        return
    try:
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(images.resolve(), target_is_directory=True)
    except OSError as error:
        report(f"note: no link {shown(link)} to the photographs could be made: {error.strerror}")
