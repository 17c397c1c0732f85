# SPDX-License-Identifier: Apache-2.0
"""Files of camera paths: kept in the run folder, downloaded, uploaded; a view as a command."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from nerfkit.errors import UserError
from nerfkit.reading import typed
from nerfkit.training.run_files import PATHS
from nerfkit.viewer.path import CameraPath, Keyframe, read_camera_path

if TYPE_CHECKING:
    import viser

    from nerfkit.viewer.session import Session
    from nerfkit.viewer.state import State

NOTHING = "no file"
MAX_UPLOAD = 2**26  # bytes


class Editor(Protocol):
    """Where a path is edited."""

    path: CameraPath

    def replace(self, path: CameraPath) -> None:
        """Edit another path."""


class PathFiles:
    """Saves and loads the path of a panel; all files are written and read by the thread that renders."""

    def __init__(self, gui: viser.GuiApi, state: State, panel: Editor):
        self.state, self.panel = state, panel
        with gui.add_folder("Files", expand_by_default=False):
            save = gui.add_button_group("Path", ("Save", "Download"), hint="Save: into the run folder")
            self.listed = gui.add_dropdown("Kept", (NOTHING,))
            load = gui.add_button("Load", hint="The file that is chosen above")
            upload = gui.add_upload_button(
                "Upload", mime_type="application/json", hint="A path of nerfkit or nerfstudio"
            )
        command = gui.add_button(
            "Copy this view as a command", hint="To render it again, from a file in the run folder"
        )
        self._list()

        async def saved(event: Any) -> None:
            do, path = self._save if save.value == "Save" else self._download, self.panel.path.copy()
            self._later(event, lambda session: do(session, path))

        async def loaded(event: Any) -> None:
            self._later(event, self._load)

        async def uploaded(event: Any) -> None:
            content = upload.value.content
            self._later(event, lambda session: self._read(content))

        async def commanded(event: Any) -> None:
            self._later(event, self._command)

        save.on_click(saved)
        load.on_click(loaded)
        upload.on_upload(uploaded)
        command.on_click(commanded)

    def keep(self, stem: str, path: CameraPath) -> Path:
        """Write a path into the run folder under a name that is free."""
        folder = self.state.subject.folder
        if folder is None:
            raise UserError("there is no run folder to keep a path in")
        kept = folder.child(PATHS, "paths")
        number = next(i for i in range(1, 10**6) if not (kept.path / f"{stem}_{i}.json").exists())
        name = f"{stem}_{number}.json"
        kept.write(name, path.to_json(self.state.subject.frame))
        self._list()
        return kept.path / name

    def _later(self, event: Any, do: Callable[[Session], None]) -> None:
        """Have something done for the client of an event; an error is told to it."""
        session = self.state.sessions.get(event.client_id)
        if session is None:
            return

        def call() -> None:
            try:
                do(session)
            except UserError as error:
                session.tell("Not done", str(error))

        self.state.later(call)

    def _save(self, session: Session, path: CameraPath) -> None:
        session.tell("Path saved", str(self.keep("path", path)))

    def _download(self, session: Session, path: CameraPath) -> None:
        content = path.to_json(self.state.subject.frame)
        session.client.send_file_download("camera_path.json", content.encode(), save_immediately=True)

    def _load(self, session: Session) -> None:
        if self.listed.value == NOTHING:
            raise UserError("no path is kept in the run folder yet")
        file = self.state.subject.folder.path / PATHS / self.listed.value
        self.panel.replace(read_camera_path(file, self.state.subject.frame, self.panel.path.size))

    def _read(self, content: bytes) -> None:
        """The path of a file that was uploaded."""
        if len(content) > MAX_UPLOAD:
            raise UserError(f"the file has {len(content)} bytes, more than {MAX_UPLOAD}")
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "uploaded.json"
            file.write_bytes(content)
            self.panel.replace(read_camera_path(file, self.state.subject.frame, self.panel.path.size))

    def _command(self, session: Session) -> None:
        """Show the command that renders what a client sees."""
        here = session.viewpoint()
        view = Keyframe(np.array(here.pose).reshape(3, 4), here.fov)
        file = self.keep("view", CameraPath([view], fps=1, size=session.size()))
        command = typed("nerfkit", "render", self.state.subject.folder.path, "--path", file)
        print(command, flush=True)
        gui = session.client.gui
        with gui.add_modal("This view as a command") as modal:
            gui.add_text("Command", command, multiline=True)
            close = gui.add_button("Close")

            async def closed(event: Any) -> None:
                modal.close()

            close.on_click(closed)

    def _list(self) -> None:
        folder = self.state.subject.folder
        names = sorted(file.name for file in (folder.path / PATHS).glob("*.json")) if folder is not None else []
        self.listed.options = tuple(names) or (NOTHING,)
