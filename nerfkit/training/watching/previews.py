# SPDX-License-Identifier: Apache-2.0
"""Images of one view while it is trained, and what is made of them at the end, in RUN/previews.

000500.png                    the view after 500 steps, small
truth.png                     its image
strip.png                     some of the images from first to last, each with its step and time, then the truth
progress.gif                  all of them, one after another

Nothing of the training changes: drawing takes no random numbers and no training time.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from dataclasses import replace

import imageio.v2 as imageio
import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from nerfkit.config import Config
from nerfkit.data.images.pixels import background_color, blend
from nerfkit.data.scene import Scene, Views
from nerfkit.errors import UserError
from nerfkit.rendering.image_renderer import ImageRenderer, in_eval_mode
from nerfkit.rendering.images import beside, moving_bytes, png_bytes, to_uint8
from nerfkit.training.run.files import GIF, PREVIEWS, STRIP, read_log
from nerfkit.training.run.folder import RunFolder
from nerfkit.training.trainer import Trainer

TRUTH = "truth.png"
PREVIEW = re.compile(r"(\d{6,10})\.png")
SIDE = {"cuda": 200, "cpu": 100}  # pixels of the longest side, at most
AUTOMATIC = -1  # preview_every: N_PREVIEWS of them, evenly spaced in the logarithm of the progress from FIRST to 1
N_PREVIEWS, FIRST = 30, 1 / 500
MOST_TIME, FREE = 0.03, 1.0  # the next automatic image waits until those before took so little: a share, and seconds
IN_STRIP = 8  # images
FPS, LAST = 8, 2.0  # images per second of the GIF, seconds for which the last one stays


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
        """Do something, unless that failed before."""
        if self.failed:
            return
        try:
            act()
        except Exception as error:  # whatever it is: hours of training are worth more
            self.failed = True
            reason = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
            tqdm.write(f"{self.what}: {' '.join(reason.split())[:300]}")


class Previews(Watcher):
    """Draws images into a run folder: `attach` it to a trainer before training, `finish` after it.

    Args:
        config: of the run; uses data.background and trainer.preview_every.
        view: the one view of the images, such as `shown_view`.
        device: of the model.
    """

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
            self.folder.clear(_file_name(step) for step in self.steps() if step > trainer.step)

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
        self.folder.write(_file_name(trainer.step), png_bytes(image))
        for call in self.on_image:
            call(trainer.step, image)
        self._passed = places_passed(trainer.progress)
        self._spent += time.perf_counter() - began

    def _finish(self, trainer: Trainer, stopped: bool) -> None:
        steps = self.steps()
        truth = to_uint8(self.truth)
        if not (stopped and steps) and trainer.step not in steps:
            self._draw(trainer)
        images = self._drawn(truth)
        known = [(0, 0.0), *((line["step"], line["seconds"]) for line in read_log(self.folder.path.parent))]
        seconds = np.interp(list(images), *zip(*known, (trainer.step, trainer.seconds), strict=True))
        titles = [f"step {step}\n{time:.1f} s" for step, time in zip(images, seconds, strict=True)]
        self.folder.write(TRUTH, png_bytes(self.truth))
        self.folder.write(STRIP, png_bytes(strip(titles, list(images.values()), truth)))
        self.folder.write(GIF, moving_bytes("GIF", list(images.values()) or [truth], FPS, LAST))

    def _drawn(self, truth: np.ndarray) -> dict[int, np.ndarray]:
        """The images of the size of the truth by step; those that another device drew may have another."""
        drawn = {step: imageio.imread(self.folder.path / _file_name(step)) for step in self.steps()}
        return {step: image for step, image in drawn.items() if image.shape == truth.shape}


def strip(titles: list[str], images: list[np.ndarray], truth: np.ndarray) -> Tensor:
    """Some of the images [H, W, 3] uint8 from first to last, and the truth, each below its title: [H', W', 3]."""
    n = min(len(images), IN_STRIP - 1)
    chosen = [i * (len(images) - 1) // max(n - 1, 1) for i in range(n)]
    parts = [*((titles[i], images[i]) for i in chosen), ("truth", truth)]
    return beside([(title, torch.from_numpy(image) / 255) for title, image in parts])


def _file_name(step: int) -> str:
    return f"{step:06d}.png"
