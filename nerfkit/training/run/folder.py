# SPDX-License-Identifier: Apache-2.0
"""A run folder: it can be moved, and rendered without the scene; resuming and scoring read the scene's images.

.nerfkit                  names of nerfkit's files, the only ones that are replaced or deleted
config.toml               every option, none of them auto
decisions.json            of options left as auto: value, who decided (scene, device, size, time, model), why
setup.txt                 what was found of the scene, and all that was decided, for people
checkpoint.safetensors    model, views, optimiser, occupancy and random states (see nerfkit.training.run.checkpoint)
scene.json                number of the run's format, cameras of every split, up axis
metrics.jsonl             one line per logged step, score of held-out views on the way, and check of views drawn late
metrics.json              scores on the test views, with their protocol
previews/                 images of one view on the way, a strip and videos of them (see nerfkit.training.watching)
tensorboard/              events for TensorBoard, where trainer.tensorboard is on
paths/                    camera paths made by hand in the viewer, which a new run in this folder leaves as they are
loss.png  eval/  render/  images; eval/<split>/ has images and metrics.json of another split
report.html               all of it in one page (see nerfkit.commands.report)
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

from nerfkit import config as config_module
from nerfkit.config import Config, Decision
from nerfkit.config.files import DECISIONS, read_decisions
from nerfkit.data.cameras.cameras import Cameras
from nerfkit.data.cameras.lens import Lens
from nerfkit.data.readers.transforms.cameras_json import parse_cameras, to_json
from nerfkit.data.scene import Scene
from nerfkit.data.scene_transform.transform import SceneTransform
from nerfkit.errors import RunError, SceneError
from nerfkit.files import MARKER, OwnFolder, read_marker
from nerfkit.safe_io import printable, shell_join
from nerfkit.training.run import files as run_files


@dataclass(frozen=True)
class RunScene:
    """Description of the scene in a run folder."""

    name: str
    up: tuple[float, float, float]  # world axis that points up
    splits: dict[str, dict[str, Any]]  # cameras of each in the schema of a transforms file
    transform: dict[str, Any] | None = None  # None where the files' frame is the model's
    paths: dict[str, dict[str, Any]] = field(default_factory=dict)  # cameras of splits without images

    def cameras(self, split: str, file: Path) -> Cameras:
        """Cameras of a split or path; raises RunError if there is none, SceneError naming `file` if they are broken."""
        known = self.splits | self.paths
        if split not in known:
            raise RunError(f"the run in {file.parent} has no {split!r} views; use {' or '.join(self.splits)}")
        return parse_cameras(known[split], file)

    def names(self, split: str) -> list[str]:
        """Of the views of a split, all different."""
        return [frame["file_path"] for frame in self.splits[split]["frames"]]

    def lenses(self, split: str, file: Path) -> list[Lens]:
        """Lens of each of its images, of whose distortion its cameras know nothing; raises as `cameras`."""
        cameras, found = self.cameras(split, file), []
        for view, entry in enumerate(self.splits[split]["frames"]):
            try:
                if "lens" in entry:
                    found.append(Lens(**{**entry["lens"], "params": tuple(entry["lens"]["params"])}))
                else:
                    focal, center = cameras.focal[view].tolist(), cameras.center[view].tolist()
                    found.append(Lens("PINHOLE", (*focal, *center), *cameras.size(view)))
            except (TypeError, KeyError, SceneError) as error:
                name = printable(str(entry.get("file_path", view)))
                raise RunError(f"view {name} of the run in {file.parent} has an invalid lens: {error}") from None
        return found


def describe(scene: Scene) -> RunScene:
    splits = {name: to_json(views.cameras, views.names) for name, views in scene.views.items()}
    paths = {name: to_json(path, [f"{view:04d}" for view in range(len(path))]) for name, path in scene.paths.items()}
    transform = scene.transform.to_json() if scene.transform is not None else None
    return RunScene(scene.name, scene.up, splits, transform, paths)


class RunFolder(OwnFolder):
    """The folder of one run, new or existing."""

    def __init__(self, path: str | Path, overwrite: bool = False):
        super().__init__(path, "run")
        self.overwrite = overwrite

    @classmethod
    def for_new_run(cls, path: str | Path, overwrite: bool = False) -> RunFolder:
        """A folder for a new run, in which nothing changes before `start`.

        Raises RunError if it holds a run already, which only `overwrite` replaces, a user's files, or cannot be made.
        """
        folder = cls(path, overwrite)
        if folder.claim(only_check=True):
            folder._lock_for_new_run()
        return folder

    def _lock_for_new_run(self) -> None:
        self.lock()
        if run_files.has_checkpoint(self.path) and not self.overwrite:
            self.unlock()
            raise RunError(
                f"'{self.path}' holds a run already; continue it with {shell_join('--resume', self.path)}, "
                "replace it with --overwrite, or choose another folder with --out"
            )

    @classmethod
    def existing(cls, path: str | Path) -> RunFolder:
        """The folder of an existing run; raises RunError if it is none, or lost its marker."""
        folder = cls(path)
        run_files.check_is_run(folder.path)
        kind, folder.names = read_marker(folder.path, folder.kind)
        if not kind:
            raise RunError(
                f"{printable(folder.path)} lacks the file {MARKER}, which lists what nerfkit wrote; "
                "copy the run again, with its hidden files"
            )
        return folder

    def start(self, config: Config, scene: RunScene) -> None:
        """Replace an earlier run's files by this run's description; raises RunError if another run started here."""
        files = _description(config, scene)  # fails before anything is deleted
        self.claim()
        self._lock_for_new_run()
        self.clear(self.names - {f"{run_files.PATHS}/"})
        for name, text in files.items():
            self.write(name, text)

    def save_description(self, config: Config, scene: RunScene) -> None:
        """Write the configuration, with the scene's absolute path, and the scene's cameras."""
        for name, text in _description(config, scene, read_decisions(self.path)).items():
            self.write(name, text)

    def check_resumable(self, config: Config, scene: RunScene | None = None) -> None:
        """Raise RunError if `config` or `scene` are not what the run was trained with, naming what differs."""
        changed = config_module.fixed_differences(run_files.read_config(self.path), config)
        own = [old for name, old, new in changed if name == "trainer.loss" and not new]
        if own:
            raise RunError(
                f"{self.path} was trained with a loss of your own, which a run folder never imports by itself; give it "
                f"again, if you trust it: --trainer.loss {own[0]} (in Python loss_fn)"
            )
        if changed:
            options = ", ".join(f"{name} {old}, which cannot become {new}" for name, old, new in changed)
            names = " and ".join(name for name, _, _ in changed)
            raise RunError(
                f"cannot resume '{self.path}': the run has {options}; leave out {names}, or train a new run, with "
                "another --out instead of --resume"
            )
        differences = scene_differences(read_scene(self.path), scene) if scene else []
        if differences:
            raise RunError(
                f"cannot resume {self.path}: the scene is not the one that the run was trained on: "
                f"{'; '.join(differences)}. Give the run's scene with --data.path, or train a new "
                "run with another --out instead of --resume"
            )


def _description(config: Config, scene: RunScene, before: Mapping[str, Decision] = {}) -> dict[str, str]:  # noqa: B006
    """Content of the files that describe a run, ConfigError for a path that they cannot hold; values that are those of
    `before`, which a run that goes on states, were decided then."""
    named = config.data.path, config.data.sfm_dir, config.eval.lpips
    path, poses, lpips = (str(Path(name).expanduser().resolve()) if name else "" for name in named)
    data = replace(config.data, path=path, sfm_dir=poses)
    config = replace(config, data=data, eval=replace(config.eval, lpips=lpips))
    config_module.check(config)
    decisions = {name: old for name, old in before.items() if attrgetter(name)(config) == old.value}
    decisions |= getattr(config, "decisions", {})
    written = {name: asdict(decision) for name, decision in decisions.items()}
    return {
        run_files.CONFIG: config_module.dumps(config),
        DECISIONS: json.dumps(written, indent=1),
        run_files.SCENE: json.dumps({"format": run_files.RUN_FORMAT, **asdict(scene)}),
    }


def run_transform(folder: Path) -> SceneTransform | None:
    """The frame of a run's scene; None where the files' frame is the model's."""
    transform = read_scene(folder).transform
    return None if transform is None else SceneTransform.from_json(transform, str(folder / run_files.SCENE))


def scene_differences(old: RunScene, new: RunScene, splits: tuple[str, ...] = ()) -> list[str]:
    """How cameras, image names or sizes differ first between `old` and `new`, of each split; of `splits`, or all."""
    found = (_difference(split, old.splits.get(split), new.splits.get(split)) for split in splits or old.splits)
    return [text for text in found if text]


def n_shared(old: dict[str, Any], new: dict[str, Any]) -> int:
    """How many frames of a split are, with name and camera, among those of another."""
    return sum(any(_same(frame, other) for other in old["frames"]) for frame in new["frames"])


def _difference(split: str, before: dict[str, Any] | None, after: dict[str, Any] | None) -> str:
    if before is None or after is None:
        return f"it has {'no' if after is None else 'new'} {split} views"
    if (size := (after.get("w"), after.get("h"))) != (was := (before.get("w"), before.get("h"))):
        return "{} images are {}x{} instead of {}x{}".format(split, *size, *was)
    if len(after["frames"]) != len(before["frames"]):
        return f"it has {len(after['frames'])} {split} views instead of {len(before['frames'])}"
    for index, (given, is_now) in enumerate(zip(before["frames"], after["frames"], strict=True)):
        keys = [key for key in given if not _same(given[key], is_now.get(key))]
        if keys:
            return f"{split} view {index} ({is_now.get('file_path')}): {', '.join(keys)} differ"
    return ""


def _same(a: Any, b: Any) -> bool:
    """Whether two values of JSON are equal, numbers to six digits."""
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, float | int) and isinstance(b, float | int):
        return math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-6)
    return a == b


def read_scene(folder: Path) -> RunScene:
    """The run's description of its scene; raises RunError if that is missing or broken."""
    scene = run_files.read_scene_as(RunScene, folder)
    for split in scene.splits | scene.paths:
        scene.cameras(split, folder / run_files.SCENE)  # raises SceneError
    return scene


def drop_later_lines(folder: RunFolder, step: int) -> None:
    """Drop lines of the log after a checkpoint's step: those steps are trained and logged again."""
    lines = run_files.read_lines(folder.path)
    earlier = [line for line in lines if line["step"] <= step]
    if len(earlier) < len(lines):
        folder.write(run_files.LOG, "".join(json.dumps(line) + "\n" for line in earlier))
