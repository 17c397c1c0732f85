# SPDX-License-Identifier: Apache-2.0
"""Pictures of one view while it is trained, and what is made of them at the end, in RUN/previews.

000500.png                    the view after 500 steps, its longest side SIDE pixels at most
truth.png                     its image
strip.png                     some of the pictures from first to last, then the truth
progress.gif, progress.mp4    all of them, one after another

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
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from nerfkit.config import Config
from nerfkit.data.images.pixels import background_color, blend
from nerfkit.data.scene import Scene, Views
from nerfkit.errors import UserError
from nerfkit.rendering.image_renderer import ImageRenderer, in_eval_mode
from nerfkit.rendering.images import gif_bytes, png_bytes, to_uint8, video_bytes
from nerfkit.training.run.files import GIF, PREVIEWS, STRIP, VIDEO
from nerfkit.training.run.folder import RunFolder
from nerfkit.training.trainer import Trainer

TRUTH = "truth.png"
PICTURE = re.compile(r"(\d{6,10})\.png")
SIDE = 200  # pixels of the longest side, at most
AUTOMATIC = -1  # preview_every: PICTURES of them, evenly spaced in the logarithm of the progress from FIRST to 1
PICTURES, FIRST = 30, 1 / 500
MOST_TIME, FREE = 0.03, 1.0  # automatic pictures take about that share of the training time, and so many seconds
WAITED = 1.0  # seconds for the last picture, at most, where a signal has stopped the training
COARSE = 5  # pixels each way for which a coarse picture has one
IN_STRIP, GAP = 8, 4  # pictures, white pixels between two
FPS, LAST = 8, 2.0  # pictures per second of the videos, seconds for which the last one stays


def shown_view(scene: Scene) -> Views:
    """The view of the pictures: the first test view, or training view if there is none."""
    return scene.split("test" if "test" in scene.views else "train")[[0]]


def places_passed(progress: float) -> int:
    """How many of the PICTURES places of automatic pictures lie at or before a progress from 0 to 1.

    Place k of 0, ..., PICTURES - 1 is FIRST ** (1 - k / (PICTURES - 1)): the picture changes most at first, and a
    run that is bounded by time does not know how many steps it will take.
    """
    if progress < FIRST:
        return 0
    share = 1 - math.log(min(progress, 1.0)) / math.log(FIRST)
    return int(share * (PICTURES - 1) + 1e-9) + 1


class Previews:
    """Draws pictures into a run folder: `attach` it to a trainer before training, `finish` after it.

    A picture that fails ends no training: a line says why, and there are no more of them.

    Args:
        config: of the run; uses data.background and trainer.preview_every.
        view: the one view of the pictures, such as `shown_view`.
        device: of the model.
    """

    def __init__(self, config: Config, view: Views, device: torch.device):
        self.every = config.trainer.preview_every
        self.background = background_color(config.data.background, device)  # [3]
        width, height = view.cameras.size(0)
        scale = min(1.0, SIDE / max(width, height))
        small = view.cameras.resized(max(1, round(width * scale)), max(1, round(height * scale)))
        coarse = small.resized(*(-(-side // COARSE) for side in small.size(0)))
        self.cameras, self.coarse = small.to(device), coarse.to(device)
        self.truth = blend(replace(view, cameras=small).load().image(0), self.background.cpu())  # [H, W, 3]
        self.on_picture: list[Callable[[int, Tensor], None]] = []  # called with step and picture [H, W, 3]
        self._passed = 0  # automatic places before the last picture
        self._spent = 0.0  # seconds that pictures have taken
        self._whole_at = -1  # step of the last picture that is not a coarse one
        self._given_up = False

    def attach(self, trainer: Trainer, folder: RunFolder) -> None:
        """Draw what `trainer` trains. Pictures of earlier parts of the run stay, but for steps that come again."""

        def open_folder() -> None:
            self.folder = folder.child(PREVIEWS, PREVIEWS)
            self.folder.clear(_file_name(step) for step in self.steps() if step > trainer.step)

        trainer.on_step.append(self.after_step)
        self._passed = places_passed(trainer.progress)
        self._attempt(open_folder)

    def after_step(self, trainer: Trainer) -> None:
        if self.every == AUTOMATIC:
            is_due = places_passed(trainer.progress) > self._passed
        else:
            is_due = self.every > 0 and trainer.step % self.every == 0
        if is_due:
            self._attempt(lambda: self._draw(trainer, self._most_seconds(trainer)))

    def finish(self, trainer: Trainer, stopped: bool = False) -> None:
        """The last picture, strip and videos, of a training that has ended, or was `stopped` by somebody who waits."""
        self._attempt(lambda: self._finish(trainer, WAITED if stopped else math.inf))

    def steps(self) -> list[int]:
        """Steps of the pictures that there are."""
        found = (PICTURE.fullmatch(name) for name in self.folder.names if self.folder.owns(name))
        return sorted(int(picture[1]) for picture in found if picture)

    def _draw(self, trainer: Trainer, most: float) -> None:
        """Draw and keep a picture; of few rays, enlarged, where all would take more than `most` seconds."""
        trainer.settle()
        began = time.perf_counter()
        image_of, size = ImageRenderer(trainer.model, self.background), self.cameras.size(0)
        picture = None
        with in_eval_mode(trainer.model):
            if most < math.inf:
                coarse = image_of(self.coarse, 0)["rgb"]  # [H, W, 3]
                seconds = time.perf_counter() - began
                if seconds * math.prod(size) > most * math.prod(self.coarse.size(0)):
                    planes = coarse.movedim(-1, 0)[None]  # [1, 3, H, W]
                    smooth = F.interpolate(planes, size[::-1], mode="bilinear", align_corners=False)
                    picture = smooth[0].movedim(0, -1)
            if picture is None:
                picture, self._whole_at = image_of(self.cameras, 0)["rgb"], trainer.step
        self.folder.write(_file_name(trainer.step), png_bytes(picture))
        for call in self.on_picture:
            call(trainer.step, picture)
        self._passed = places_passed(trainer.progress)
        self._spent += time.perf_counter() - began

    def _most_seconds(self, trainer: Trainer) -> float:
        """How long the next picture, and each after it, may take.

        On a CPU, early pictures would cost seconds, for nothing is known to be empty yet; they are coarse until the
        time that is left is enough for all that come.
        """
        if self.every != AUTOMATIC:
            return math.inf
        whole = trainer.seconds / trainer.progress  # training time at the end, as far as one can tell now
        places_left = PICTURES + 1 - places_passed(trainer.progress)  # this one included
        return (MOST_TIME * whole + FREE - self._spent) / places_left

    def _finish(self, trainer: Trainer, most: float) -> None:
        if self._whole_at != trainer.step:
            self._draw(trainer, most)
        truth = to_uint8(self.truth)
        files = [self.folder.path / _file_name(step) for step in self.steps()]
        pictures = {file: picture for file in files if (picture := imageio.imread(file)).shape == truth.shape}
        self.folder.write(TRUTH, png_bytes(self.truth))
        self.folder.write(STRIP, png_bytes(strip([*pictures.values()], truth)))
        self.folder.write(GIF, gif_bytes([*pictures.values()], FPS, LAST))
        try:
            self.folder.write(VIDEO, video_bytes([*pictures, *[files[-1]] * round(FPS * LAST)], FPS))
        except UserError as error:  # no ffmpeg
            print(error)

    def _attempt(self, act: Callable[[], None]) -> None:
        if self._given_up:
            return
        try:
            act()
        except Exception as error:  # whatever it is: hours of training are worth more than a picture
            self._given_up = True
            reason = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
            tqdm.write(f"no more pictures are drawn: {' '.join(reason.split())[:300]}")


def strip(pictures: list[np.ndarray], truth: np.ndarray) -> Tensor:
    """Some of the pictures [H, W, 3] uint8 from first to last, and the truth, side by side: [H, W', 3] in [0, 1]."""
    n = min(len(pictures), IN_STRIP - 1)
    chosen = [pictures[i * (len(pictures) - 1) // max(n - 1, 1)] for i in range(n)]
    gap = np.full((len(truth), GAP, 3), 255, dtype=np.uint8)
    parts = [part for picture in (*chosen, truth) for part in (gap, picture)][1:]
    return torch.from_numpy(np.concatenate(parts, axis=1)).float() / 255


def _file_name(step: int) -> str:
    return f"{step:06d}.png"
