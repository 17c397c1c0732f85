# SPDX-License-Identifier: Apache-2.0
"""Features, matches and models of one set of photographs, until enough of them have a pose."""

from __future__ import annotations

import math
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nerfkit.data.sfm import photographs as ph
from nerfkit.data.sfm.model_folder import IMAGES, MODEL, PARTIAL, ModelFolder
from nerfkit.data.sfm.photographs import Photograph
from nerfkit.data.sfm.plan import ATTEMPTS, DATABASE, FEATURES, MAX_IMAGE_SIZE, Outcome, Plan, outcome_of, some
from nerfkit.data.sfm.process import Report, duration, run_stage
from nerfkit.errors import SceneError
from nerfkit.reading import shown

PAIR_SECONDS = 0.4  # of one core, for 4096 features each (measured)
ENOUGH, LEAST = 0.8, 0.5  # shares of photographs: below the one more is tried, below the other it is an error


@dataclass
class Attempts:
    """The stages for one set of photographs."""

    folder: ModelFolder
    images: Path  # their folder
    found: list[Photograph]
    plan: Plan
    pairs: list[tuple[str, str]] | None  # to match; None: all
    report: Report

    def __post_init__(self) -> None:
        self.names = [photo.name for photo in self.found]
        self.threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

    def run(self) -> Outcome:
        """Try until enough photographs have a pose; the best model is in `0`, or in `partial`."""
        if self.plan.mode == "PER_LENS":
            count = len(ph.of_one_lens(self.found, self.plan.mode))
            self.report(f"note: sizes or EXIF of the photographs differ: they are of {count} lenses")
        best, best_name = None, ""
        for name, (title, _, _) in ATTEMPTS.items():
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
            return self._attempt(name, *ATTEMPTS[name])
        except SceneError as error:
            if name == "incremental":
                raise
            self.report(f"note: {error}")
            return None

    def _attempt(self, name: str, title: str, database: str, request: dict) -> dict | None:
        """One attempt; its model is in `work-NAME/best` then."""
        if name == "global":
            self.folder.note(database)
            shutil.copyfile(self.folder.closed(DATABASE), self.folder.path / database)
        else:
            self._features(database, name == "thorough")
            self._matches(database, name == "thorough")
        out = self.folder.fresh(f"work-{name}")
        result = self._stage(title, database, len(self.names), None, out=str(out), **request)
        if database != DATABASE:
            self.folder.remove_database(database)
        return result

    def _features(self, database: str, thorough: bool) -> None:
        """Features of the photographs that have none yet."""
        for name in (database, f"{database}-wal", f"{database}-shm"):
            self.folder.note(name)
        have = self.folder.cameras(database)
        if have:
            self.report(
                f"going on with {shown(self.folder.path / database)}: features of {len(have)} photographs are there"
            )
        if new := [name for name in self.names if name not in have]:
            ph.check_decodable(self.images, new, self.threads)
            self._stage(
                "features", database, len(self.names), "keypoints", stage="extract",
                groups=self._groups(have), model=self.plan.model,
                max_image_size=MAX_IMAGE_SIZE, features=FEATURES, thorough=thorough,
            )  # fmt: skip
        have = self.folder.cameras(database)
        if failed := [shown(self.images / name) for name in self.names if name not in have]:
            raise SceneError(f"pycolmap cannot read {some(failed)}; convert to PNG or JPEG, or remove")

    def _groups(self, cameras: dict[str, int]) -> list[tuple[list[str], int | None, str]]:
        """Photographs that share a camera, with its number in the database if it is there, and COLMAP's mode."""
        groups = ph.of_one_lens(self.found, self.plan.mode)
        alone = [names[0] for names in groups if len(names) == 1]
        shared = [names for names in groups if len(names) > 1]
        known = [next((cameras[name] for name in names if name in cameras), None) for names in shared]
        together = [(names, camera, "SINGLE") for names, camera in zip(shared, known, strict=True)]
        return together + ([(alone, None, "PER_IMAGE")] if alone else [])

    def _matches(self, database: str, thorough: bool) -> None:
        """Matches of the pairs, unless they are there."""
        count = len(self.pairs) if self.pairs is not None else math.comb(len(self.names), 2)
        if self.folder.count(database, "two_view_geometries") >= count:
            return
        if self.pairs is None and len(self.names) > ph.EXHAUSTIVE:
            seconds = count * PAIR_SECONDS / self.threads
            self.report(
                f"note: names of {len(self.names)} photographs that do not count up (or hold spaces): all {count} "
                f"pairs are matched, which takes about {duration(seconds)} on {self.threads} cores"
            )
        pair_file = None
        if self.pairs is not None:
            self.folder.write("pairs.txt", "".join(f"{one} {two}\n" for one, two in self.pairs))
            pair_file = str(self.folder.path / "pairs.txt")
        self._stage(
            "matching pairs", database, count, "two_view_geometries", stage="match",
            pairs=pair_file, block=max(8, 2 * self.threads), thorough=thorough,
        )  # fmt: skip

    def _stage(self, title: str, database: str, total: int, table: str | None, **request) -> Any:
        """Run a stage; the rows of a table of its database say how far it is, or how often it says something."""
        count = (lambda said: self.folder.count(database, table)) if table else len
        path = self.folder.path / database
        request |= {"database": str(path), "images": str(self._readable()), "threads": self.threads}
        return run_stage(request, title, total, count, self.report)

    def _readable(self) -> Path:
        """The photographs' folder, or one of links in which those that pycolmap does not read, or not upright, are
        written anew under the same names."""
        anew = {photo.name for photo in self.found if photo.is_turned or photo.name.lower().endswith(".webp")}
        if not anew:
            return self.images
        mirror = self.folder.path / IMAGES
        self.folder.note(f"{IMAGES}/")
        for name in self.names:
            target = mirror / name
            if os.path.lexists(target):
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            if name in anew:
                aside = target.with_name(f".{target.name}.tmp")
                ph.save_upright(self.images / name, aside)
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
            place = MODEL if outcome.registered >= LEAST * total else PARTIAL
            self.folder.place(self.folder.path / f"work-{best_name}" / "best", place)
        self.folder.closed(DATABASE)
        self.folder.remove_work()
        return outcome


def _quality(model: dict) -> tuple[int, int]:
    return len(model["registered"]), model["points"]
