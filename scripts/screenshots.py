#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The screenshots of docs/viewer.md, of a run whose scene has its images; needs playwright and chromium.

python scripts/screenshots.py RUN --out docs
"""

from __future__ import annotations

import io
import shutil
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

WINDOW = {"width": 960, "height": 620}
ARGUMENTS = ["--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"]
LONGEST = 600.0  # seconds for one of them


@dataclass
class Options:
    """Take the screenshots of the viewer's page."""

    run: Annotated[Path, tyro.conf.Positional]  # run folder
    out: Path = Path("docs")  # folder of the screenshots
    view: int = 0  # training view from which they are taken
    device: str = "auto"  # cpu, cuda, cuda:1, ...


def main(options: Options) -> None:
    from playwright.sync_api import sync_playwright

    from nerfkit.training.run.load import load_run
    from nerfkit.viewer.page import Page, ViewerOptions
    from nerfkit.viewer.scene import ViewerScene
    from nerfkit.viewer.viewer import Viewer

    page, over = Page(ViewerOptions(port=0), "nerfkit"), threading.Event()
    viewer = Viewer(ViewerScene.from_run(load_run(options.run, options.device)), page)
    thread = threading.Thread(target=viewer.serve, args=(over.is_set,))
    thread.start()
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=ARGUMENTS)
            draw(viewer, browser.new_page(viewport=WINDOW), options)
            browser.close()
    finally:
        over.set()
        thread.join()
        page.stop()


def draw(viewer, window, options: Options) -> None:
    """Go through the viewer as a person does, and save what is seen."""

    def save(name: str) -> None:
        window.mouse.move(5, WINDOW["height"] - 5)  # no hint is open
        time.sleep(1.0)  # until the browser has said where it is
        end = time.monotonic() + LONGEST
        while any(client.stage <= 2 for client in viewer.engine.clients.values()) and time.monotonic() < end:
            time.sleep(0.1)
        time.sleep(1.0)
        image = Image.open(io.BytesIO(window.screenshot())).convert("RGB")
        image.quantize(256, dither=Image.Dither.NONE).save(options.out / name, optimize=True)
        print(options.out / name, flush=True)

    def click(role: str, name: str) -> None:
        window.get_by_role(role, name=name, exact=True).first.click()

    def choose(output: str) -> None:
        window.get_by_label("Output").click()
        click("option", output)

    window.goto(viewer.page.address)
    while not viewer.sessions:
        time.sleep(0.1)
    (session,) = viewer.sessions.values()
    window.locator(".mantine-Notification-closeButton").first.click()  # that there is no GPU for the browser
    session.go_to(options.view)
    window.get_by_label("Split screen").click()
    save("viewer.png")
    window.get_by_label("Split screen").click()
    choose("error")
    save("viewer_error.png")
    choose("color")
    click("tab", "Path")
    click("button", "Orbit")
    session.reset()
    save("viewer_path.png")


if __name__ == "__main__":
    main(tyro.cli(Options))
