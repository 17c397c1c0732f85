# SPDX-License-Identifier: Apache-2.0
"""Viewer: a scene on a page, drawn by whoever calls `serve`; TrainingViewer: drawn between two training steps.

All rendering and all files belong to the thread of that caller. The page's own thread, in which clicks arrive, only
changes what is wanted, and leaves the rest to `later`.
"""

import ctypes
import gc
import math
import queue
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import numpy as np
import viser
from PIL import Image

from nerfkit.rendering.image_renderer import in_eval_mode
from nerfkit.training.trainer import Trainer
from nerfkit.viewer.engine import FINE, MOVING, Engine
from nerfkit.viewer.frames import ModelFrame
from nerfkit.viewer.limits import keep_limits
from nerfkit.viewer.pacing import JOB
from nerfkit.viewer.page import Page
from nerfkit.viewer.panels import Panels
from nerfkit.viewer.scene import ViewerScene
from nerfkit.viewer.session import Session, State

IDLE_SECONDS = 0.1  # of a wait for requests, after which clocks are looked at
FREE_AFTER = 5.0  # seconds after a browser has left, in which others may leave, too
FRAME_SECONDS = {"cuda": 1 / 30, "cpu": 1 / 9}  # of a frame while the camera moves
QUALITY = {True: 60, False: 85}  # of JPEG, while the camera moves and when it rests
LONGEST_FRAME = 0.5  # seconds for which training stands still at most, about
MOVING_SHARE = 0.5  # of wall time for drawing, while a camera moves beside a training


class Viewer:
    def __init__(self, scene: ViewerScene, page: Page):
        self.scene, self.page = scene, page
        self.engine = Engine(partial(ModelFrame, scene), self._deliver, self._failed)
        self.awake = False  # whether a client is here, or work is left
        self._leavings_since: float | None = None  # when the first one left of the browsers whose things are not freed
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._told: set[str] = set()  # errors
        self._set_limits(trains=False)
        keep_limits(page.server.gui)
        names = dict.fromkeys((scene.folder.path.resolve().name, scene.name))  # once where they are the same
        page.entitle(f"{', '.join(names)}: nerfkit")
        self.state = State(scene, self.engine, self.later)
        self.sessions = self.state.sessions  # of clients
        self.panels = Panels(page.server, self.state)
        page.server.on_client_connect(self._connected)
        page.server.on_client_disconnect(self._left)

    def later(self, call: Callable[[], None]) -> None:
        self._calls.put(call)
        self.awake = True
        self.engine.wake()

    def serve(self, should_stop: Callable[[], bool]) -> None:
        while not should_stop():
            self.work_or_wait()
        self.drop_jobs()

    def drop_jobs(self) -> None:
        """End what is not done, such as a video, with its files and its process."""
        for job in list(self.engine.jobs):
            self._try(partial(self.engine.drop_job, job))

    def work_or_wait(self) -> None:
        """Work for a moment, or wait for something to do for one."""
        self.tick()
        if not self.engine.step():
            self.engine.wait(IDLE_SECONDS)

    def tick(self) -> None:
        """Do what was left to this thread, let the panels do what is due, and free what browsers have left behind."""
        for _ in range(self._calls.qsize()):  # what comes meanwhile waits for the next time
            self._try(self._calls.get())
        now = time.perf_counter()
        if self._leavings_since is not None and now - self._leavings_since >= FREE_AFTER:
            self._leavings_since = None
            give_back()
        self._try(lambda: self.panels.tick(now))
        for session in list(self.sessions.values()):
            self.state.attempt(session, Session.tell_status, now)

    def _try(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:  # such as a run folder that cannot be written
            self._failed(-1, error)

    async def _connected(self, client: viser.ClientHandle) -> None:
        keep_limits(client.gui)
        session = Session(client, self.state)
        self.sessions[client.client_id] = session
        self.panels.greet(session)
        self.awake = True

    async def _left(self, client: viser.ClientHandle) -> None:
        self._leavings_since = self._leavings_since or time.perf_counter()  # first: a viewer with nobody falls asleep
        self.sessions.pop(client.client_id, None)
        self.engine.forget(client.client_id)
        self.awake = True

    def _deliver(self, client: int, image: np.ndarray, stage: int) -> None:
        session = self.sessions.get(client)
        if session is not None:
            image = np.asarray(Image.fromarray(image).reduce(2)) if stage == FINE else image  # of four rays a pixel
            session.show(image, QUALITY[stage == MOVING])

    def _failed(self, client: int, error: Exception) -> None:
        """Tell of an error where it is seen, once; what is looked at goes on."""
        session, text = self.sessions.get(client), " ".join(str(error).split()) or type(error).__name__
        if client >= 0 and client not in self.page.server.get_clients():
            return  # it has left meanwhile, and viser has removed its controls
        if session is not None:
            session.tell("Not done", text)
        if text not in self._told:
            self._told.add(text)
            print(f"viewer: {text}", file=sys.stderr)

    def _set_limits(self, trains: bool) -> None:
        engine, seconds = self.engine, FRAME_SECONDS[self.scene.background.device.type]
        engine.frame_seconds = seconds * MOVING_SHARE if trains else seconds
        engine.full_seconds, engine.fine = (LONGEST_FRAME, False) if trains else (math.inf, True)


class TrainingViewer(Viewer):
    """A viewer that a trainer calls, in its thread, for a share of the time: `attach` it before training, `detach` it
    after.

    Nothing of the training changes: drawing takes no random numbers and no training time, and no frame mixes the
    parameters of two steps. A pause ends where training `should_stop`.
    """

    def __init__(self, scene: ViewerScene, page: Page, should_stop: Callable[[], bool] = lambda: False):
        super().__init__(scene, page)
        self.sharing, self.should_stop = self.state.sharing, should_stop
        self._left_at = time.perf_counter()  # end of the last call

    def attach(self, trainer: Trainer) -> None:
        self.state.training = trainer
        self._set_limits(trains=True)
        trainer.on_step.append(self.after_step)
        trainer.on_log.append(self._log)

    def detach(self, trainer: Trainer) -> None:
        """The training has ended; what it has trained stays in sight."""
        trainer.on_step.remove(self.after_step)
        trainer.on_log.remove(self._log)
        self._follow(trainer)  # it has moved on since the last line
        self.state.training = None
        self._set_limits(trains=False)
        self.engine.refresh()

    def _log(self, line: dict[str, float]) -> None:
        self.scene.history.append(line)
        self._try(lambda: self._follow(self.state.training))

    def _follow(self, trainer: Trainer) -> None:
        """Training views stand where training has moved them, but for their frusta on the page."""
        if trainer.adjustments.poses is not None:
            self.scene.cameras = trainer.adjustments.cameras(trainer.cameras).to("cpu")

    def after_step(self, trainer: Trainer) -> None:
        if not self.awake:
            return
        try:
            with in_eval_mode(self.scene.model):
                self._between_steps(trainer)
        except Exception as error:
            self._failed(-1, error)
        finally:
            self._left_at = time.perf_counter()

    def _between_steps(self, trainer: Trainer) -> None:
        now = time.perf_counter()
        self.awake = False  # before the look: who comes or leaves meanwhile wakes it again
        if self.engine.clients or self.engine.jobs or self.sessions or self._leavings_since is not None:
            self.awake = True
        if not self.sessions:
            self.state.paused = False  # else a run whose browser was closed would never end
        self.tick()
        due = self.engine.next()
        self.sharing.add_training(now - self._left_at, bool(self.engine.jobs))
        if self.state.paused:
            self._pause(trainer)
        elif due is not None and self.sharing.has_budget(due):
            self._draw(trainer, due, lambda: self.engine.step() and not self.engine.is_between_frames)
        else:
            if due is None:
                self.engine.refresh()
            if self.engine.jobs and self.sharing.has_budget(JOB):
                end = time.perf_counter() + self.sharing.credit[JOB]
                self._draw(trainer, JOB, lambda: self.engine.step_job() and time.perf_counter() < end)

    def _draw(self, trainer: Trainer, kind: str, step: Callable[[], bool]) -> None:
        """Draw until a step says that this is enough, or training is to stop."""
        trainer.settle()
        began = time.perf_counter()
        while step() and not self.should_stop():
            pass
        self.sharing.add_time(kind, time.perf_counter() - began)

    def _pause(self, trainer: Trainer) -> None:
        """Draw as if the training had ended, until it is to go on."""
        trainer.settle()
        self._set_limits(trains=False)
        self.engine.refresh()
        while self.state.paused and self.sessions and not self.should_stop():
            self.work_or_wait()
        self._set_limits(trains=True)


def give_back() -> None:
    """Free viser's things of a browser, in 0.2 s: they refer to one another in circles, which Python seldom seeks."""
    gc.collect()
    with suppress(AttributeError, OSError, TypeError):  # only glibc has it; elsewhere memory stays with the process
        ctypes.CDLL(None).malloc_trim(0)
