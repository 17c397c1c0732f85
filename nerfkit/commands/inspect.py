# SPDX-License-Identifier: Apache-2.0
"""`nerfkit inspect`: what a scene is, what to mend in it, and how to train it; with a drawing of its cameras."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from nerfkit.commands import command_line
from nerfkit.commands.drawing import draw
from nerfkit.commands.options import InspectOptions
from nerfkit.config import Config, DataConfig, check
from nerfkit.data import assemble
from nerfkit.data.cameras.cameras import Cameras
from nerfkit.data.cameras.lens import Lens
from nerfkit.data.cameras.lens_models import MODELS
from nerfkit.data.cameras.plausible import refused_lens
from nerfkit.data.capture import Capture, PosedImage, as_warnings, notes_of, texts
from nerfkit.data.images.pixels import MaskKind, look_into, read_mask
from nerfkit.data.judging import Judged, judge
from nerfkit.data.load import load_capture, look_at, poses_beside
from nerfkit.data.readers.folders import beside
from nerfkit.data.scene import Scene, Views, format_sizes
from nerfkit.data.scene_transform.diagnostics import (
    mask_diagnostics,
    number_diagnostics,
    outlines_an_object,
    pixel_diagnostics,
)
from nerfkit.data.scene_transform.rig import evenly, half_angles
from nerfkit.data.scene_transform.transform import SceneTransform
from nerfkit.data.sfm import INSTALL, plan, root_of
from nerfkit.device import pick_device
from nerfkit.errors import SceneError, UserError
from nerfkit.files import OwnFolder
from nerfkit.metrics import MIN_SIDE
from nerfkit.rendering.image_renderer import duration
from nerfkit.safe_io import first_of, printable
from nerfkit.threads import cores
from nerfkit.training.trainer import Trainer

PAGE, DRAWING = "inspect.txt", "inspect.png"
SAMPLED_IMAGES = 8  # evenly spaced, whose pixels are looked at
MAX_THREADS = 16
READY, DOUBTED, REFUSED = "Ready to train.", "It can be trained. Look at this first:", "Mend this, or training stops:"
MAX_NAMES = 3  # of images in one line
MAX_LENSES = 12  # lines; the rest are counted
TRIED_SIDE, TRIED_VIEWS = 128, 8  # pixels of a side, and views, with which steps are tried
LATER = 1000  # the step that is the first tried one: when the occupancy grid is updated seldom
UNTIMED_STEPS, TIMED_STEPS = 4, 16  # a GPU records its graph in the fourth
SAMPLES_PER_RAY = 16  # about, once the field knows which cells are empty
LEAST_SIDE = 128  # pixels: most images are not proposed to be smaller


def main(options: InspectOptions) -> int:
    data = options.data
    check(Config(data=data))  # raises ConfigError for what training would refuse
    folder = OwnFolder(options.out, "inspection") if options.out else None
    if folder is not None:
        folder.claim(only_check=True)  # fails, if it does, before anything is read
    source, formats = look_at(data.path, data.format)
    if not (formats or data.sfm_dir or (root_of(source) / "sparse").exists()):
        return without_poses(source, data)
    inspection = examine(load_capture(data.path, data.format, data.sfm_dir), data)
    command: list[str] = []
    if not inspection.refused:
        try:
            command = ["", *next_command(inspection, data)]
        except (UserError, RuntimeError) as error:  # such as out of memory
            inspection = replace(inspection, errors=[f"a trial of some steps failed: {error}"])
    lines = [*inspection.verdict(), *command]
    print("\n".join([*lines, "", inspection.page() if options.verbose else "add -v for all numbers"]))
    if folder is not None:
        folder.claim()
        folder.write(PAGE, "\n".join([*lines, "", inspection.page(), ""]))
        there = inspection.capture.of_images([image for image, _ in inspection.there])
        folder.write(DRAWING, draw(there, inspection.transform, inspection.splits))
        print(f"\nthis report and a drawing of the cameras: {folder.path / PAGE}, {folder.path / DRAWING}")
    return 1 if inspection.problems() else 0


def without_poses(source: Path, data: DataConfig) -> int:
    """Print what training would do with photos or a video; nothing is written."""
    if beside := poses_beside(source):
        print(f"warning: {beside}")
    what, seconds = plan(source, print)
    limit = Config().resolved().trainer.max_seconds
    print(
        f"{printable(source)}: {what}, without camera poses.\n"
        f"nerfkit train finds the poses first, in about {duration(seconds)} on this machine, saves them in the folder "
        f"'{printable(root_of(source))}', and then trains{f' for {duration(limit)} at most' if limit else ''}.\n"
    )
    if find_spec("pycolmap") is None:
        print(f"Not ready: the poses are found by pycolmap, which is not installed: {INSTALL}")
        return 1
    typed = as_options(data)
    print(f"To train:\n  {command_line('train', *typed)}")
    typed += ["--data.sfm_dir", "DIR"]
    print(f"To find only the poses, save them in DIR, and judge them:\n  {command_line('inspect', *typed)}")
    print(f"To train with them:\n  {command_line('train', *typed)}")
    return 0


def next_command(inspection: Inspection, data: DataConfig) -> list[str]:
    """The command that trains, with a data.downscale at which each pixel is drawn about once, and how long it takes."""
    names = set(inspection.splits["train"])
    images = [image for image in inspection.trained if image.name in names]
    n_rays, seconds, device = forecast(inspection.transform, data, images)
    downscale, lenses = data.downscale, [image.lens for image in images]
    if downscale == 1:
        wanted = math.log2(sum(lens.width * lens.height for lens in lenses) / n_rays) / 2
        sides = [min(lens.width, lens.height) for lens in lenses]
        most = math.log2(min(np.median(sides) / LEAST_SIDE, min(sides) / MIN_SIDE))
        downscale = 2.0 ** max(0, min(round(wanted), math.floor(most)))
    smaller = f", with images 1/{downscale:g} as wide" * (downscale != 1)
    if inspection.n_outlines == len(inspection.there):
        data = replace(data, masks="alpha")
    return [
        f"To train, in about {duration(seconds)} on this machine ({device}{smaller}):",
        f"  {command_line('train', *as_options(replace(data, downscale=downscale)))}",
    ]


def forecast(transform: SceneTransform, data: DataConfig, images: list[PosedImage]) -> tuple[float, float, str]:
    """Rays and seconds of a training with the default options, and its device: some steps are tried, on gray images."""
    chosen = evenly(len(images), TRIED_VIEWS)
    poses = transform.to_model(np.stack([images[k].camera_to_world for k in chosen]))
    lenses = [images[k].lens.resized(TRIED_SIDE, TRIED_SIDE) for k in chosen]
    cameras = Cameras.from_lenses(torch.tensor(poses, dtype=torch.float32), lenses)
    scene = Scene("", "", {"train": Views(cameras, [], [])}, tuple(transform.up.tolist()), transform)
    gray = torch.full((len(chosen), TRIED_SIDE, TRIED_SIDE, 3), 128, dtype=torch.uint8)
    trainer = Trainer(Config(data=data), cameras, gray, scene=scene, device=pick_device("auto"))
    settings, trainer.step = trainer.config.trainer, LATER
    for n_steps in (UNTIMED_STEPS, TIMED_STEPS):
        began = time.perf_counter()
        for _ in range(n_steps):
            trainer.train_step()
        trainer.settle()
    step = (time.perf_counter() - began) / TIMED_STEPS
    trainer.training_step.release_graph()
    n_steps = min(settings.steps, settings.max_seconds / step) if settings.max_seconds else settings.steps
    return n_steps * settings.samples_per_step / SAMPLES_PER_RAY, n_steps * step, str(trainer.device)


def as_options(data: DataConfig) -> list[str]:
    """What to type so that training reads the scene in the same way."""
    words = [data.path]
    for option in fields(data):
        value = getattr(data, option.name)
        if option.name != "path" and value != option.default:
            values = value if isinstance(value, tuple) else [value]
            words += [f"--data.{option.name}", *(f"{x:.12g}" if isinstance(x, float) else x for x in values)]
    return words


def examine(capture: Capture, data: DataConfig) -> Inspection:
    alpha_masks = data.masks == "alpha"
    candidates = [image for image in capture.images if image.found is not None]

    def on_disk(image: PosedImage, problem: str) -> OnDisk:
        header = judged.headers.get(image.name)
        ignored, outlines_object, inverted = None, False, False
        if header is None:
            return OnDisk(0, 0, problem=problem)
        try:
            lens = assemble.fitted_lens(image, header, data.downscale)
            if image.mask is not None:
                mask = read_mask(image.mask, (header.width, header.height), judged.masks) == capture.white_ignores
                ignored, outlines_object = None if alpha_masks else float(mask.mean()), outlines_an_object(mask)
                inverted = alpha_masks and outlines_an_object(~mask)
        except SceneError as error:
            return OnDisk(0, 0, problem=str(error))
        has_alpha = header.has_alpha or (alpha_masks and image.mask is not None)
        return OnDisk(lens.width, lens.height, has_alpha, ignored, outlines_object, inverted, problem)

    with ThreadPoolExecutor(min(cores(), MAX_THREADS)) as pool:
        sampled = set(evenly(len(candidates), SAMPLED_IMAGES))
        is_sampled = [index in sampled for index in range(len(candidates))]
        looks = pool.map(look_into, [image.found for image in candidates], is_sampled)
        looks = list(tqdm(looks, "images", len(candidates), unit="image", leave=False))
        pairs = zip(candidates, looks, strict=True)
        headers = {
            image.name: assemble.turned_for(image.lens, header) for image, (header, *_) in pairs if header is not None
        }
        training = [image.name for image in assemble.split_names(capture, candidates)[0].get("train", [])]
        refused = []
        try:
            judged = judge(capture, headers, training, data)
        except SceneError as error:  # the rest is looked at all the same
            refused, judged = [str(error)], Judged(headers, MaskKind(), {}, alpha_masks, ())
        files = list(pool.map(on_disk, candidates, [problem for _, problem, _ in looks]))
    samples = [
        pixels.reshape(-1, 4)
        for image, (header, _, pixels) in zip(candidates, looks, strict=True)
        if pixels is not None and header.bits == judged.headers[image.name].bits
    ]
    pairs = list(zip(candidates, files, strict=True))
    present = [(image, file) for image, file in pairs if file.width]
    there = [image for image, _ in present]
    chosen, rule = assemble.split_names(capture, there)
    splits = {split: [image.name for image in images] for split, images in chosen.items()}
    transform = assemble.choose_transform(capture, splits.get("train", []), judged, data.box)
    broken = [(image, file.problem) for image, file in pairs if file.problem]
    refused += [problem for _, problem in broken[:MAX_NAMES]]
    if others := [printable(image.name, 60) for image, _ in broken[MAX_NAMES:]]:
        refused.append(f"and {len(others)} more images that cannot be used: {', '.join(others)}")
    refused += refused_lens(image.lens.resized(file.width, file.height) for image, file in present)
    diagnostics = [] if refused else pixel_diagnostics(samples, data.background or "white")
    notes = []
    if alpha_masks:
        notes.append(assemble.CUT_OUT)
        refused += assemble.cut_out_diagnostics(there, judged.headers)
    if data.downscale != 1:
        notes.append(f"data.downscale {data.downscale:g}: sizes are those of the images that are trained")
    transform = replace(transform, notes=(*transform.notes, *as_warnings(diagnostics)))
    capture = replace(capture, notes=notes_of(*capture.notes, *judged.notes, *notes))
    found = {image.name: file for image, file in pairs}
    return Inspection(capture, transform, [found.get(image.name) for image in capture.images], splits, rule, refused)


@dataclass(frozen=True)
class OnDisk:
    width: int  # pixels; 0 where it cannot be read
    height: int
    has_alpha: bool = False  # or is cut out by its mask
    ignored: float | None = None  # share of pixels that its mask ignores; none without a mask
    outlines_object: bool = False  # its mask ignores the border of the image and keeps the middle
    inverted: bool = False  # it is cut out by a mask that keeps the border and not the middle
    problem: str = ""  # why it cannot be read, or not whole


@dataclass(frozen=True)
class Inspection:
    capture: Capture
    transform: SceneTransform
    found: Sequence[OnDisk | None]  # of each image of the capture, none without a file
    splits: dict[str, list[str]]  # names of images that exist
    rule: str  # by which they were chosen
    errors: Sequence[str] = ()  # that training would end with

    @property
    def there(self) -> list[tuple[PosedImage, OnDisk]]:
        pairs = zip(self.capture.images, self.found, strict=True)
        return [(image, file) for image, file in pairs if file and file.width]

    @property
    def trained(self) -> list[PosedImage]:
        """Those images, with lenses of the size that is trained."""
        return [replace(image, lens=image.lens.resized(file.width, file.height)) for image, file in self.there]

    @property
    def missing(self) -> list[PosedImage]:
        return [image for image, file in zip(self.capture.images, self.found, strict=True) if file is None]

    @property
    def ignored(self) -> list[float]:
        """Shares of pixels that masks ignore, of the images that have one."""
        return [file.ignored for _, file in self.there if file.ignored is not None]

    def verdict(self) -> list[str]:
        counts = {split: len(names) for split, names in self.splits.items()}
        about = assemble.sentences(self.capture, [image.lens for image in self.trained], counts, self.transform.kind)
        problems = self.problems()
        verdict = REFUSED if self.refused else DOUBTED if problems else READY
        return [*about, verdict, *(f"- {problem}" for problem in problems)]

    def page(self) -> str:
        capture = self.capture
        sections = {
            "scene": [
                f"{printable(capture.name)}, read as {printable(capture.format)}",
                *(printable(str(note)) for note in capture.notes),
            ],
            "images": self._images(),
            "lenses": _lenses([image.lens for image, _ in self.there]),
            "split": [
                printable(self.rule),
                *(f"{printable(name)}: {len(names)} ({first_of(names)})" for name, names in self.splits.items()),
            ],
            "transform": texts(self.transform.notes, "info"),
        }
        lines = [(name * (k == 0), line) for name, lines in sections.items() for k, line in enumerate(lines)]
        return "\n".join(f"{title:8} {line}" for title, line in lines)

    @property
    def refused(self) -> list[str]:
        """What training would end with."""
        refused, missing = [*self.errors], self.missing
        if assemble.are_most(missing, self.capture):
            refused.append(f"{self._gone()}, more than half: is their folder the right one?{beside(missing[0].file)}")
        if len(self.ignored) == len(self.there) and min(self.ignored, default=0) == 1:
            refused.append("the masks leave no pixel of any image; correct them, or take them away to use all pixels")
        return refused if self.splits.get("train") else [*refused, "there are no training images"]

    @property
    def n_outlines(self) -> int:
        return sum(file.outlines_object for _, file in self.there)

    def problems(self) -> list[str]:
        """What to change before training: errors first, then warnings."""
        problems = [*self.refused, *texts(self.capture.notes, "warning")]
        if self.missing and not assemble.are_most(self.missing, self.capture):
            problems.append(f"{self._gone()}: left out; put them back, or remove them from the scene's file")
        problems += self.transform.warnings()
        n_there, n_masks = len(self.there), len(self.ignored)
        if 0 < n_masks < n_there:
            what = f"{n_there - n_masks} of {n_there} images lack a mask"
            problems.append(f"{what}, so all of their pixels are used; give them one, or remove them")
        problems += mask_diagnostics(self.ignored, self.n_outlines, self.capture.white_ignores)
        if 2 * (n_inverted := sum(file.inverted for _, file in self.there)) > n_there:
            problems.append(f"masks cut out the middle of {n_inverted} images and keep the border; invert them")
        problems += number_diagnostics(len(self.splits.get("train", [])))
        alpha = sum(file.has_alpha for _, file in self.there)
        if 0 < alpha < n_there and not self.errors:
            problems.append(f"{alpha} images have alpha and the others do not; give all of them alpha, or none")
        return problems

    def _gone(self) -> str:
        missing = self.missing
        names, is_are = first_of([image.name for image in missing]), "is" if len(missing) == 1 else "are"
        return f"{len(missing)} of {len(self.found)} listed images {is_are} missing ({names})"

    def _images(self) -> list[str]:
        files, n_missing = [file for _, file in self.there], len(self.missing)
        lines = [f"{len(self.found)} listed, {len(self.found) - n_missing} exist, {n_missing} missing"]
        if n_broken := len(self.found) - n_missing - len(files):
            lines.append(f"cannot be used (image or mask): {n_broken}")
        if files:
            lines.append(f"sizes: {format_sizes([(file.width, file.height) for file in files])}")
        lines.append(f"with alpha: {sum(file.has_alpha for file in files)}, with mask: {len(self.ignored)}")
        if self.ignored:
            color = "white" if self.capture.white_ignores else "black"
            lines.append(f"masks: {color} is ignored, {np.mean(self.ignored):.1%} of the pixels of images with a mask")
        return lines


def _lenses(lenses: list[Lens]) -> list[str]:
    counts = Counter(lenses).most_common()
    lines = []
    for lens, count in counts[:MAX_LENSES]:
        across, down = (2 * math.degrees(angle) for angle in half_angles(lens))
        values = " ".join(f"{n} {x:.5g}" for n, x in zip(MODELS[lens.model].names, lens.params, strict=True))
        view = f"about {across:.0f} x {down:.0f} degrees"
        lines.append(f"{lens.model} {lens.width}x{lens.height}, {view}, {values}: {count} image{'s' * (count != 1)}")
    rest = [lens for lens, _ in counts[MAX_LENSES:]]
    for model, count in Counter(lens.model for lens in rest).most_common():
        focals = [lens.params[0] for lens in rest if lens.model == model]
        lines.append(f"and {count} more of {model}, focal {min(focals):.6g} to {max(focals):.6g}")
    return lines
