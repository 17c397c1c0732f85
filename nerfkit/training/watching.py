# SPDX-License-Identifier: Apache-2.0
"""What a training writes beside log and checkpoints: images, scores of held-out views, a plot, TensorBoard.

Images of one view while it is trained, and what is made of them at the end, are in RUN/previews:

000500.png                    the view after 500 steps, small
truth.png                     its image
strip.png                     some of the images from first to last, each with its step and time, then the truth
progress.gif                  all of them, one after another

Nothing of the training changes: drawing takes no random numbers and no training time.
"""

import math
import re
import time
from collections.abc import Callable
from dataclasses import replace
from io import BytesIO
from typing import Any

import imageio.v2 as imageio
import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from nerfkit.config import Config
from nerfkit.data.images.pixels import background_color, blend
from nerfkit.data.scene import Scene, Views
from nerfkit.errors import UserError
from nerfkit.metrics import psnr
from nerfkit.rendering.image_renderer import ImageRenderer, in_eval_mode
from nerfkit.rendering.images import beside, moving_bytes, png_bytes, to_uint8
from nerfkit.training.evaluator import SCORES, beside_truth, evenly_chosen, pixels_that_count
from nerfkit.training.run.files import GIF, LOSS_PLOT, PREVIEWS, STRIP, TENSORBOARD, TEST_PSNR, read_log, read_scores
from nerfkit.training.run.folder import RunFolder
from nerfkit.training.trainer import Trainer

TRUTH = "truth.png"
FILE, PREVIEW = "{:06d}.png", re.compile(r"(\d{6,10})\.png")  # of an image, by its step
SIDE = {"cuda": 200, "cpu": 100}  # pixels of the longest side, at most
AUTOMATIC = -1  # preview_every: N_PREVIEWS of them, evenly spaced in the logarithm of the progress from FIRST to 1
N_PREVIEWS, FIRST = 30, 1 / 500
MOST_TIME, FREE = 0.03, 1.0  # the next automatic image waits until those before took so little: a share, and seconds
IN_STRIP = 8  # images
FPS, LAST = 8, 2.0  # images per second of the GIF, seconds for which the last one stays
EVENTS = "events.out.tfevents.*"
SCORED_VIEWS = 8  # of a test split, at a time: training waits for them


class Progress:
    """What the options of `trainer` ask for; of several processes the first does it, and the others wait.

    Images are read at once. Nothing is written before `attach`, which is to be called before training; `finish` after
    it, `close` after scoring.
    """

    def __init__(self, trainer: Trainer, scene: Scene):
        self.trainer, config, split = trainer, trainer.config, trainer.config.eval.split
        self.previews: Previews | None = None
        self.scores: ScoresOverTime | None = None
        self.board: TensorBoard | None = None
        if not trainer.processes.is_first:
            return
        if config.trainer.preview_every:
            try:
                self.previews = Previews(config, shown_view(scene), trainer.device)
            except UserError as error:  # of an image that only scoring would read
                print(f"no images are drawn while training: {error}")
        if config.eval.every and split in scene.views:
            self.scores = ScoresOverTime(config, scene.split(split), trainer.device)
        elif config.eval.every:
            print(f"not scored while training: the scene has no {split} views, only {', '.join(scene.views)}")

    def attach(self, folder: RunFolder) -> None:
        """Write into `folder` while it is trained."""
        self.folder, trainer = folder, self.trainer
        if trainer.config.trainer.tensorboard and trainer.processes.is_first:
            self.board = TensorBoard(folder, trainer.step)
            self.board.attach(trainer, self.previews)
        if self.scores is not None:
            trainer.on_step.append(self.scores.after_step)
        if self.previews is not None:
            self.previews.attach(trainer, folder)

    def finish(self, stopped: bool = False) -> None:
        """Draw what shows the whole training, which has ended, or was `stopped` and has no time to lose."""
        if self.previews is not None:
            self.previews.finish(self.trainer, stopped)

    def close(self, metrics: dict[str, Any] | None = None) -> None:
        if self.trainer.processes.is_first:
            plot_training(self.folder, metrics)
        if self.board is not None:
            if metrics is not None:
                self.board.add_scores(metrics)
            self.board.close()


def shown_view(scene: Scene) -> Views:
    """The view of the images: the first test view, or training view if there is none."""
    return scene.split("test" if "test" in scene.views else "train")[[0]]


def places_passed(progress: float) -> int:
    """How many of the N_PREVIEWS places of automatic images lie at or before a progress from 0 to 1.

    Place k of 0, ..., N_PREVIEWS - 1 is FIRST ** (1 - k / (N_PREVIEWS - 1)): the image changes most at first, and a
    run that is bounded by time does not know how many steps it will take.
    """
    if progress < FIRST:
        return 0
    share = 1 - math.log(min(progress, 1.0)) / math.log(FIRST)
    return int(share * (N_PREVIEWS - 1) + 1e-9) + 1


class Watcher:
    """What is written beside a training; the first failure ends it, and a line says why: the training goes on."""

    what = ""  # that is no longer done
    failed = False

    def attempt(self, act: Callable[[], object]) -> None:
        if self.failed:
            return
        try:
            act()
        except Exception as error:  # whatever it is: hours of training are worth more
            self.failed = True
            reason = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
            tqdm.write(f"{self.what}: {' '.join(reason.split())[:300]}")


class Previews(Watcher):
    """Draws images of one view into a run folder: `attach` it to a trainer before training, `finish` after it."""

    what = "no more images are drawn"

    def __init__(self, config: Config, view: Views, device: torch.device):
        self.every = config.trainer.preview_every
        self.background = background_color(config.data.background, device)  # [3]
        width, height = view.cameras.size(0)
        scale = min(1.0, SIDE[device.type] / max(width, height))
        small = view.cameras.resized(max(1, round(width * scale)), max(1, round(height * scale)))
        self.cameras = small.to(device)
        self.truth = blend(replace(view, cameras=small).load().image(0), self.background.cpu())  # [H, W, 3]
        self.on_image: list[Callable[[int, Tensor], None]] = []  # called with step and image [H, W, 3]
        self._passed = 0  # automatic places before the last image
        self._spent = 0.0  # seconds that images have taken

    def attach(self, trainer: Trainer, folder: RunFolder) -> None:
        """Draw what `trainer` trains. Images of earlier parts of the run stay, but for steps that come again."""

        def open_folder() -> None:
            self.folder = folder.child(PREVIEWS, PREVIEWS)
            self.folder.clear(FILE.format(step) for step in self.steps() if step > trainer.step)

        trainer.on_step.append(self.after_step)
        self._passed = places_passed(trainer.progress)
        self.attempt(open_folder)

    def after_step(self, trainer: Trainer) -> None:
        if self.every == AUTOMATIC:
            is_due = places_passed(trainer.progress) > self._passed
            is_due = is_due and self._spent <= MOST_TIME * trainer.seconds + FREE
        else:
            is_due = self.every > 0 and trainer.step % self.every == 0
        if is_due:
            self.attempt(lambda: self._draw(trainer))

    def finish(self, trainer: Trainer, stopped: bool = False) -> None:
        """The last image, unless the training was `stopped` by somebody who waits, strip and GIF."""
        self.attempt(lambda: self._finish(trainer, stopped))

    def steps(self) -> list[int]:
        """Steps of the images that there are."""
        found = (PREVIEW.fullmatch(name) for name in self.folder.names if self.folder.owns(name))
        return sorted(int(image[1]) for image in found if image)

    def _draw(self, trainer: Trainer) -> None:
        trainer.settle()
        began = time.perf_counter()
        with in_eval_mode(trainer.model):
            image = ImageRenderer(trainer.model, self.background)(self.cameras, 0)["rgb"]  # [H, W, 3]
        self.folder.write(FILE.format(trainer.step), png_bytes(image))
        for call in self.on_image:
            call(trainer.step, image)
        self._passed = places_passed(trainer.progress)
        self._spent += time.perf_counter() - began

    def _finish(self, trainer: Trainer, stopped: bool) -> None:
        steps = self.steps()
        truth = to_uint8(self.truth)
        if not (stopped and steps) and trainer.step not in steps:
            self._draw(trainer)
        drawn = {step: imageio.imread(self.folder.path / FILE.format(step)) for step in self.steps()}
        images = {step: image for step, image in drawn.items() if image.shape == truth.shape}  # not another device's
        known = [(0, 0.0), *((line["step"], line["seconds"]) for line in read_log(self.folder.path.parent))]
        seconds = np.interp(list(images), *zip(*known, (trainer.step, trainer.seconds), strict=True))
        titles = [f"step {step}\n{time:.1f} s" for step, time in zip(images, seconds, strict=True)]
        self.folder.write(TRUTH, png_bytes(self.truth))
        self.folder.write(STRIP, png_bytes(strip(titles, list(images.values()), truth)))
        self.folder.write(GIF, moving_bytes("GIF", list(images.values()) or [truth], FPS, LAST))


def strip(titles: list[str], images: list[np.ndarray], truth: np.ndarray) -> Tensor:
    """Some of the images [H, W, 3] uint8 from first to last, and the truth, each below its title: [H', W', 3]."""
    n = min(len(images), IN_STRIP - 1)
    chosen = [i * (len(images) - 1) // max(n - 1, 1) for i in range(n)]
    parts = [*((titles[i], images[i]) for i in chosen), ("truth", truth)]
    return beside([(title, torch.from_numpy(image) / 255) for title, image in parts])


class ScoresOverTime:
    """Scores some views, evenly spread, every eval.every steps: `after_step` is for `trainer.on_step`.

    That is no training time, and takes no random numbers. PSNR is that of `evaluate`.
    """

    def __init__(self, config: Config, views: Views, device: torch.device):
        self.every = config.eval.every
        self.background = background_color(config.data.background, device)  # [3]
        self.views = views[evenly_chosen(len(views.cameras), SCORED_VIEWS)]
        self.cameras, self.images = self.views.cameras.to(device), self.views.load()
        for view in range(len(self.cameras)):
            pixels_that_count(self.images, self.views, view)  # fails, if it does, before anything is trained

    def after_step(self, trainer: Trainer) -> None:
        if trainer.step % self.every:
            return
        trainer.settle()
        score = self.score(trainer)
        if math.isfinite(score):  # if it is not, the training says so itself
            trainer.log({TEST_PSNR: score})

    def score(self, trainer: Trainer) -> float:
        scores = []
        with in_eval_mode(trainer.model):
            image_of = ImageRenderer(trainer.model, self.background)
            for view in range(len(self.cameras)):
                truth, rendered, counts = beside_truth(image_of, self.images, self.views, self.cameras, view)
                scores.append(psnr(rendered["rgb"], truth, counts))
        return sum(scores) / len(scores)


def summary_writer() -> Any:
    """torch's SummaryWriter; UserError that says how to get the package that it needs."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UserError(
            'trainer.tensorboard needs the package tensorboard: pip install "nerfkit[tensorboard]", or leave it out '
            "with --trainer.tensorboard false"
        ) from None
    return SummaryWriter


class TensorBoard(Watcher):
    """Writes what is logged: `train/...`, scores of held-out views on the way and at the end, and images.

    A run that goes on continues its curves: what an earlier part wrote of later steps is dropped by TensorBoard.
    """

    what = "nothing more is written for TensorBoard"

    def __init__(self, folder: RunFolder, step: int):
        def open_folder() -> None:
            own = folder.child(TENSORBOARD, TENSORBOARD)
            before = set(own.path.glob(EVENTS))
            self.writer = summary_writer()(str(own.path), purge_step=step + 1)
            for file in set(own.path.glob(EVENTS)) - before:
                own.note(file.name, is_there=True)

        self.attempt(open_folder)

    def attach(self, trainer: Trainer, previews: Previews | None = None) -> None:
        trainer.on_log.append(self.add_line)
        if previews is not None:
            previews.on_image.append(lambda step, image: self._add("image", "preview", image, step, dataformats="HWC"))
            self._add("image", "truth", previews.truth, trainer.step, dataformats="HWC")

    def add_line(self, line: dict[str, float]) -> None:
        for name, value in line.items():
            if name != "step":
                self._add("scalar", "test/psnr" if name == TEST_PSNR else f"train/{name}", value, line["step"])

    def add_scores(self, metrics: dict[str, Any]) -> None:
        for name in SCORES:
            if metrics.get(name) is not None:
                self._add("scalar", f"test/final_{name}", metrics[name], metrics["steps"])

    def close(self) -> None:
        self.attempt(lambda: self.writer.close())

    def _add(self, kind: str, *values: Any, **options: Any) -> None:
        self.attempt(lambda: getattr(self.writer, f"add_{kind}")(*values, **options))


def plot_training(folder: RunFolder, metrics: dict[str, Any] | None = None) -> None:
    """Draw metrics.jsonl as loss.png, and the score of the trained model; nothing if nothing was logged yet."""
    from matplotlib.figure import Figure  # slow to import; not pyplot, whose backend is the caller's

    lines, scores = read_log(folder.path), read_scores(folder.path)
    if not lines and not scores:
        return
    seconds = [line["seconds"] for line in lines]
    figure = Figure(figsize=(10, 4))  # with margins of its own: a layout that fits is drawn twice
    left, right = figure.subplots(1, 2)
    figure.subplots_adjust(left=0.07, right=0.98, bottom=0.13, top=0.92, wspace=0.17)
    left.semilogy(seconds, [line["loss"] for line in lines], color="tab:blue")
    left.set(xlabel="training time [s]", ylabel="loss", title="loss")
    right.plot(seconds, [line.get("psnr", float("nan")) for line in lines], color="tab:orange", label="training rays")
    if scores:
        held_out = [[line[key] for line in scores] for key in ("seconds", TEST_PSNR)]
        right.plot(*held_out, color="tab:green", marker=".", label="held-out views")
    if metrics is not None:
        label = f"in the end, {metrics['n_views']} held-out views: {metrics['psnr']:.2f} dB"
        right.plot(metrics["train_seconds"], metrics["psnr"], "*", color="tab:red", markersize=10, label=label)
    right.set(xlabel="training time [s]", ylabel="PSNR [dB]", title="PSNR")
    right.legend()
    for axes in (left, right):
        axes.grid(alpha=0.3)
    content = BytesIO()
    figure.savefig(content, dpi=100)
    folder.write(LOSS_PLOT, content.getvalue())
