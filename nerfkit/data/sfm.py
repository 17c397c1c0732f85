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
import importlib.util
import json
import math
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from PIL import Image

from nerfkit.data import photographs as ph
from nerfkit.data import video_frames
from nerfkit.data.photographs import Photograph
from nerfkit.errors import SceneError, UserError
from nerfkit.files import OwnFolder
from nerfkit.reading import read_regular, shown

Report = Callable[[str], None]

KIND = "COLMAP model of photographs"
INSTALL = 'pip install "nerfkit[photos]"'
DATABASE, RECORD = "database.db", "solved.json"
STAGE = Path(__file__).with_name("colmap_stage.py")
MAX_IMAGE_SIZE, FEATURES = 1600, 4096  # pixels of the longer side; per image
PAIR_SECONDS = 0.4  # of one core, for 4096 features each (measured)
ENOUGH, LEAST = 0.8, 0.5  # shares of photographs: below the one more is tried, below the other it is an error
INTERVAL = 5.0  # seconds between lines of progress
POLL = 0.2  # seconds
MODEL_FILES = ("cameras.bin", "images.bin", "points3D.bin", "rigs.bin", "frames.bin")
TRIES = {  # name of an attempt -> what it says, database, request of its mapping
    "incremental": ("incremental mapping", DATABASE, {"stage": "incremental", "loose": False}),
    "loose": ("incremental mapping, lower thresholds", DATABASE, {"stage": "incremental", "loose": True}),
    "global": ("global mapping", "global.db", {"stage": "global"}),
    "thorough": ("incremental mapping, affine features", "affine.db", {"stage": "incremental", "loose": True}),
}


class Plan(msgspec.Struct, frozen=True):
    """How poses are looked for; with another plan, work does not go on but begins again."""

    mode: str  # COLMAP's name for who shares a lens
    model: str  # COLMAP's name of the camera model
    is_sequence: bool  # matched with neighbours only
    max_image_size: int = MAX_IMAGE_SIZE
    features: int = FEATURES


class Outcome(msgspec.Struct, frozen=True):
    """What came of it."""

    registered: int
    total: int
    summary: str  # one line
    missing: list[str]  # photographs without a pose
    notes: list[str]


class Record(msgspec.Struct, frozen=True):
    """The file that says what the folder is made of."""

    photographs: dict[str, int]  # bytes by name
    plan: Plan
    outcome: Outcome | None = None  # None while it is worked on


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
        raise SceneError(f"{shown(source)} is neither a folder of photographs nor a video ({_kinds()})")
    usual = source.with_name(f"{source.stem}_frames") if from_video else source
    root = Path(out).expanduser() if out is not None else _writable(usual, report)
    images = root / "images" if from_video else ph.image_folder(source)
    if from_video:
        video_frames.extract_frames(source, images, report)
    found = ph.find_photographs(images, report)
    if root / "images" != images and root != images:
        _link(root / "images", images, report)
    folder = _own_folder(root / "sparse")
    folder.lock()
    try:
        _solve(folder, images, found, from_video, report, allow_partial)
    finally:
        folder.unlock()
    return root


def _solve(
    folder: OwnFolder, images: Path, found: list[Photograph], is_video: bool, report: Report, partial: bool
) -> None:
    """Fill the folder `sparse`, or take what is in it."""
    mode = ph.camera_mode(found)
    pairs = ph.choose_pairs([photo.name for photo in found], is_video)
    plan = Plan(mode, ph.camera_model(mode, len(found)), pairs is not None)
    wanted = Record({photo.name: photo.bytes for photo in found}, plan)
    record = _read_record(folder)
    if record is None or record.plan != plan or not record.photographs.items() <= wanted.photographs.items():
        if record is not None:
            report(f"the photographs have changed since {shown(folder.path)} was made: it is made again")
        _clear(folder)
        record = None
    is_same = record is not None and record.photographs == wanted.photographs
    outcome = record.outcome if is_same and _is_finished(folder) else None
    if outcome is None:
        _check_pycolmap()
        _remove_model(folder, "0")
        _remove_model(folder, "partial")
        _write_record(folder, wanted)
        outcome = _Work(folder, images, found, plan, pairs, report).attempts()
        _write_record(folder, msgspec.structs.replace(wanted, outcome=outcome))
    _tell(outcome, folder, report)
    if outcome.registered < LEAST * outcome.total and not partial:
        raise SceneError(
            f"only {outcome.registered} of {outcome.total} photographs in {shown(images)} got a pose (not: "
            f"{_some(outcome.missing)}); take more that overlap, or allow a partial model; to try again, delete "
            f"{shown(folder.path)}"
        )
    if (folder.path / "partial").is_dir():
        folder.note("0/")
        os.rename(folder.path / "partial", folder.path / "0")


class _Work:
    """The stages for one set of photographs."""

    def __init__(self, folder: OwnFolder, images: Path, found: list[Photograph], plan: Plan, pairs: Any, report):
        self.folder, self.images, self.found, self.plan, self.pairs, self.report = (
            folder, images, found, plan, pairs, report,
        )  # fmt: skip
        self.names = [photo.name for photo in found]
        self.threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

    def attempts(self) -> Outcome:
        """Try until enough photographs have a pose; the best model is in `0`, or in `partial`."""
        if self.plan.mode == "PER_IMAGE":
            self.report("note: sizes or EXIF of the photographs differ, so each gets a lens of its own")
        best, best_name = None, ""
        for name, (title, _, _) in TRIES.items():
            count = len(best["registered"]) if best else 0
            if count >= ENOUGH * len(self.names):
                break
            if name != "incremental":
                self.report(f"{count} of {len(self.names)} photographs have a pose: trying {title}")
            found = self._try(name)
            if found and (best is None or _quality(found) > _quality(best)):
                best, best_name = found, name
        return self._finish(best, best_name)

    def _try(self, name: str) -> dict | None:
        """One attempt; if a later one than the first fails, that is only told."""
        try:
            return self._attempt(name, *TRIES[name])
        except SceneError as error:
            if name == "incremental":
                raise
            self.report(f"note: {error}")
            return None

    def _attempt(self, name: str, title: str, database: str, request: dict) -> dict | None:
        """One attempt; its model is in `work-NAME/best` then."""
        if name == "global":
            self.folder.note(database)
            shutil.copyfile(_closed(self.folder.path / DATABASE), self.folder.path / database)
        else:
            self._features(database, name == "thorough")
            self._matches(database, name == "thorough")
        out = _fresh(self.folder, f"work-{name}")
        mapped: list[str] = []
        result = self._stage(
            title, database, len(self.names), lambda: len(mapped), mapped=mapped, out=str(out), **request
        )
        if database != DATABASE:
            _remove_database(self.folder, database)
        return result

    def _features(self, database: str, thorough: bool) -> None:
        for name in (database, f"{database}-wal", f"{database}-shm"):
            self.folder.note(name)
        path = self.folder.path / database
        have = dict(_query(path, "select name, camera_id from images join keypoints using (image_id)"))
        new = [name for name in self.names if name not in have]
        if have:
            self.report(f"going on with {shown(path)}: features of {len(have)} photographs are there")
        if new:
            ph.check_decodable(self.images, new, self.threads)
            self._stage(
                "features", database, len(self.names), lambda: _count(path, "keypoints"), stage="extract",
                groups=self._groups(have), mode="PER_IMAGE" if self.plan.mode == "PER_IMAGE" else "SINGLE",
                model=self.plan.model, max_image_size=MAX_IMAGE_SIZE, features=FEATURES, thorough=thorough,
            )  # fmt: skip
        names = {name for (name,) in _query(path, "select name from images join keypoints using (image_id)")}
        if failed := [shown(self.images / name) for name in self.names if name not in names]:
            raise SceneError(f"pycolmap cannot read {_some(failed)}; convert to PNG or JPEG, or remove")

    def _groups(self, cameras: dict[str, int]) -> list[tuple[list[str], int | None]]:
        """Photographs that share a camera, with its number in the database if it is there."""
        if self.plan.mode == "PER_IMAGE":
            return [(self.names, None)]
        groups: dict[str, list[str]] = {}
        for photo in self.found:
            groups.setdefault(photo.folder if self.plan.mode == "PER_FOLDER" else "", []).append(photo.name)
        known = [next((cameras[name] for name in names if name in cameras), None) for names in groups.values()]
        return list(zip(groups.values(), known, strict=True))

    def _matches(self, database: str, thorough: bool) -> None:
        path = self.folder.path / database
        count = len(self.pairs) if self.pairs is not None else math.comb(len(self.names), 2)
        if _count(path, "two_view_geometries") >= count:
            return
        if self.pairs is None and len(self.names) > ph.EXHAUSTIVE:
            seconds = count * PAIR_SECONDS / self.threads
            self.report(
                f"note: names of {len(self.names)} photographs that do not count up (or hold spaces): all {count} "
                f"pairs are matched, which takes about {_duration(seconds)} on {self.threads} cores"
            )
        pair_file = None
        if self.pairs is not None:
            self.folder.write("pairs.txt", "".join(f"{one} {two}\n" for one, two in self.pairs))
            pair_file = str(self.folder.path / "pairs.txt")
        self._stage(
            "matching pairs", database, count, lambda: _count(path, "two_view_geometries"), stage="match",
            pairs=pair_file, block=max(8, 2 * self.threads), thorough=thorough,
        )  # fmt: skip

    def _stage(self, title: str, database: str, total: int, count: Callable[[], int], mapped=None, **request) -> Any:
        request |= {
            "database": str(self.folder.path / database), "images": str(self._readable()), "threads": self.threads,
        }  # fmt: skip
        return run_stage(request, title, total, count, self.report, mapped if mapped is not None else [])

    def _readable(self) -> Path:
        """The photographs' folder, or one of links in which what pycolmap cannot read is PNG, under the same names."""
        if not any(name.lower().endswith(".webp") for name in self.names):
            return self.images
        mirror = self.folder.path / "work-images"
        self.folder.note("work-images/")
        for name in self.names:
            target = mirror / name
            if os.path.lexists(target):
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            if name.lower().endswith(".webp"):
                aside = target.with_name(f".{target.name}.tmp")
                with Image.open(self.images / name, formats=("WEBP", "PNG", "JPEG")) as image:
                    image.convert("RGB").save(aside, "PNG", compress_level=1)
                os.replace(aside, target)
            else:
                target.symlink_to((self.images / name).resolve())
        return mirror

    def _finish(self, best: dict | None, best_name: str) -> Outcome:
        """Move the best model to its place, delete the others, and say what it is."""
        total, missing = len(self.names), sorted(self.names, key=ph.natural_key)
        outcome = Outcome(0, total, f"registered 0 of {total} photographs", missing, [])
        if best is not None:
            outcome = outcome_of(best, self.names)
            place = "0" if outcome.registered >= LEAST * total else "partial"
            self.folder.note(f"{place}/")
            os.rename(self.folder.path / f"work-{best_name}" / "best", self.folder.path / place)
        _closed(self.folder.path / DATABASE)
        _remove_work(self.folder)
        return outcome


def outcome_of(model: dict, names: list[str]) -> Outcome:
    """What a stage says of its model, in words, with what looks suspicious."""
    lenses = model["lenses"]
    focals = sorted(params[0] for _, params, _, _ in lenses)
    span = f"{focals[0]:.0f}" if len(focals) == 1 else f"{focals[0]:.0f} to {focals[-1]:.0f}"
    kinds = ", ".join(sorted({name for name, _, _, _ in lenses}))
    registered = set(model["registered"]) & set(names)
    summary = (
        f"registered {len(registered)} of {len(names)} photographs, {model['points']} points, {model['error']:.2f} px, "
        f"{len(lenses)} {'lens' if len(lenses) == 1 else 'lenses'} {kinds} f {span}"
    )
    notes = []
    for kind, params, width, _ in lenses:
        if not 0.3 * width <= params[0] <= 5 * width:
            notes.append(f"suspicious: a focal length of {params[0]:.0f} pixels in images {width} wide")
        k1 = params[{"OPENCV": 4, "SIMPLE_RADIAL": 3}[kind]] if kind in ("OPENCV", "SIMPLE_RADIAL") else 0.0
        if abs(k1) > 0.5:
            notes.append(f"suspicious: a lens distortion k1 of {k1:.2f}")
    if model["error"] > 1.5:
        notes.append(f"suspicious: a mean reprojection error of {model['error']:.2f} pixels")
    more = [f"and {len(notes) - 3} notes more like these"] if len(notes) > 4 else []
    missing = [name for name in names if name not in registered]
    return Outcome(len(registered), len(names), summary, missing, (notes[:3] if more else notes) + more)


def run_stage(
    request: dict, title: str, total: int, count: Callable[[], int], report: Report, mapped: list[str]
) -> Any:
    """Run a stage in a process of its own, and report how far it is; it ends with this one, and at Ctrl-C."""
    began, told, first = time.monotonic(), time.monotonic(), count()
    result: dict[str, Any] = {}
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [sys.executable, str(STAGE)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
            start_new_session=True,  # or Ctrl-C would reach it, too
        )  # fmt: skip
        reader = threading.Thread(target=_listen, args=(process.stdout, mapped, result), daemon=True)
        reader.start()
        try:
            _send(process, request)
            while process.poll() is None:
                time.sleep(POLL)
                if time.monotonic() - told >= INTERVAL:
                    told = time.monotonic()
                    report(progress(title, count(), total, first, told - began))
        finally:  # Ctrl-C: what is committed in the database stays
            if process.poll() is None:
                process.kill()
            process.wait()
            reader.join(1)
            process.stdout.close()
            process.stdin.close()
        if process.returncode or "result" not in result:
            raise _stage_error(title, process.returncode, errors)
    report(f"{title}: done in {_duration(time.monotonic() - began)}")
    return result["result"]


def progress(title: str, done: int, total: int, first: int, seconds: float) -> str:
    """A line of progress, with an estimate once something is done."""
    left = ""
    if first < done < total:
        left = f", about {_duration(seconds * (total - done) / (done - first))} left"
    return f"{title}: {min(done, total)} of {total}{left}"


def _send(process: subprocess.Popen, request: dict) -> None:
    """Give the request, and leave the pipe open: its end tells the process that this one has gone."""
    try:
        process.stdin.write(json.dumps(request).encode() + b"\n")
        process.stdin.flush()
    except BrokenPipeError:  # it died at once: its exit status says why
        pass


def _listen(stream: Any, mapped: list[str], result: dict) -> None:
    for line in stream:
        try:
            value = json.loads(line)
        except ValueError:  # of a library that prints
            continue
        if isinstance(value, dict):
            result.update(value)
        else:
            mapped.append(value)


def _stage_error(title: str, status: int, errors: Any) -> SceneError:
    errors.seek(max(0, errors.seek(0, os.SEEK_END) - 4000))
    lines = errors.read().decode(errors="replace").strip().splitlines() or ["it said nothing"]
    how = f"was ended by signal {-status}" if status < 0 else "failed"
    if "No module named 'pycolmap'" in lines[-1]:
        return _no_pycolmap()
    return SceneError(f"pycolmap {how} in the stage '{title}': {shown(lines[-1].strip())}")


def _check_pycolmap() -> None:
    try:
        found = importlib.util.find_spec("pycolmap") is not None
    except ValueError:
        found = False
    if not found:
        raise _no_pycolmap()


def _no_pycolmap() -> SceneError:
    return SceneError(f"camera poses of photographs are found by pycolmap, which is not installed: {INSTALL}")


def _own_folder(path: Path) -> OwnFolder:
    """The folder `sparse`, claimed; raises SceneError if it holds a model that nerfkit did not make."""
    try:
        folder = OwnFolder(path, KIND)
        folder.claim()
        return folder
    except UserError as error:
        if any((path / "0" / name).exists() for name in ("cameras.bin", "cameras.txt")):
            raise SceneError(
                f"{shown(path)} holds a COLMAP model already, which nerfkit did not make: read that, or choose "
                "another folder for the output"
            ) from None
        raise SceneError(str(error)) from None


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


def _read_record(folder: OwnFolder) -> Record | None:
    if not folder.owns(RECORD):
        return None
    try:
        return msgspec.json.decode(read_regular(folder.path / RECORD, 2**28, "record", SceneError), type=Record)
    except (SceneError, msgspec.DecodeError):
        return None


def _write_record(folder: OwnFolder, record: Record) -> None:
    folder.write(RECORD, msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n")


def _is_finished(folder: OwnFolder) -> bool:
    """Whether a model's files are there: a folder gets its name when they are written."""
    return any((folder.path / place / name).is_file() for place in ("0", "partial") for name in MODEL_FILES[:1])


def _clear(folder: OwnFolder) -> None:
    """Delete what nerfkit made in the folder."""
    _remove_work(folder)
    for name in ("0", "partial"):
        _remove_model(folder, name)
    folder.clear()


def _remove_work(folder: OwnFolder) -> None:
    for name in TRIES:
        _fresh(folder, f"work-{name}", again=False)
    mirror = folder.path / "work-images"
    if "work-images/" in folder.names() and mirror.is_dir() and not mirror.is_symlink():
        shutil.rmtree(mirror)  # links and copies
    for name in ("global.db", "affine.db"):
        _remove_database(folder, name)


def _remove_database(folder: OwnFolder, name: str) -> None:
    if name in folder.names():
        for suffix in ("", "-wal", "-shm"):
            (folder.path / f"{name}{suffix}").unlink(missing_ok=True)


def _fresh(folder: OwnFolder, name: str, again: bool = True) -> Path:
    """An empty folder for a stage's models; it is deleted only, if not `again`."""
    path = folder.path / name
    if f"{name}/" in folder.names() and path.is_dir() and not path.is_symlink():
        for model in path.iterdir():
            _remove_model(folder, f"{name}/{model.name}")
        path.rmdir()
    if again:
        folder.note(f"{name}/")
        path.mkdir()
    return path


def _remove_model(folder: OwnFolder, name: str) -> None:
    """Delete the files of a model, and its folder if nothing else is in it; raises SceneError if there is."""
    path = folder.path / name
    if not path.is_dir() or path.is_symlink():
        return
    if f"{name.partition('/')[0]}/" not in folder.names():
        raise SceneError(f"{shown(path)} is there, and nerfkit did not write it; move it away")
    for file in MODEL_FILES:
        (path / file).unlink(missing_ok=True)
    try:
        path.rmdir()
    except OSError:
        raise SceneError(f"{shown(path)} holds files that nerfkit did not write; move them away") from None


def _query(database: Path, question: str) -> list[tuple]:
    """Rows of a database that another process may be writing; none if it is not there yet."""
    if not database.exists():
        return []
    try:
        connection = sqlite3.connect(f"{database.resolve().as_uri()}?mode=ro", uri=True, timeout=5)
        try:
            return connection.execute(question).fetchall()
        finally:
            connection.close()
    except sqlite3.Error:  # its tables are not there yet
        return []


def _count(database: Path, table: str) -> int:
    rows = _query(database, f"select count(*) from {table}")
    return rows[0][0] if rows else 0


def _closed(database: Path) -> Path:
    """The database with all that is written in its one file."""
    try:
        connection = sqlite3.connect(database, timeout=5)
        try:
            connection.execute("pragma wal_checkpoint(truncate)")
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise SceneError(f"{shown(database)} cannot be read: {error}; delete it to begin again") from None
    return database


def _tell(outcome: Outcome, folder: OwnFolder, report: Report) -> None:
    report(outcome.summary)
    if outcome.missing and outcome.registered:
        report(f"not registered: {_some(outcome.missing, 20)}")
    for note in outcome.notes:
        report(f"note: {note}; look at the model in {shown(folder.path)}")


def _quality(model: dict) -> tuple[int, int]:
    return len(model["registered"]), model["points"]


def _some(names: list[str], limit: int = 5) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(shown(name) for name in names[:limit]) + more


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _kinds() -> str:
    return ", ".join(suffix[1:] for suffix in video_frames.SUFFIXES)
