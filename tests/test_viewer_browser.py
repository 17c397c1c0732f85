# SPDX-License-Identifier: Apache-2.0
"""The viewer in a real browser: what it shows is what the renderer renders, and the mouse moves it."""

import os
import shutil

import numpy as np
import pytest

from nerfkit.rendering.image_renderer import ImageRenderer

if os.environ.get("REQUIRE_BROWSER") != "1":
    pytest.importorskip("viser", reason="the viewer is not tested: pip install nerfkit[viewer,viewer-test]")
    pytest.importorskip("playwright", reason="the viewer is not tested: pip install nerfkit[viewer,viewer-test]")
    if shutil.which("chromium") is None:
        pytest.skip("the viewer is not tested in a browser: chromium is not installed", allow_module_level=True)

from playwright.sync_api import sync_playwright  # noqa: E402

from tests.trainers import make_trainer  # noqa: E402
from tests.viewing import served, wait_for  # noqa: E402

pytestmark = pytest.mark.slow

ARGUMENTS = (
    "--no-sandbox --disable-quic --no-first-run --disable-background-networking --disable-component-update "
    "--use-angle=swiftshader --enable-unsafe-swiftshader"
).split()
WINDOW = {"width": 800, "height": 400}  # a narrow one has its panel below the picture


@pytest.fixture
def browser():
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=ARGUMENTS)
        yield browser
        browser.close()


def shown(client, width: int = 160, height: int = 120) -> np.ndarray:
    """What the browser shows besides its panels, [H, W, 3] in [0, 1]."""
    return client.get_render(height, width, timeout=30) / 255


def test_the_viewer_in_a_browser(small_config, tmp_path, browser):
    small_config.trainer.steps = 300
    make_trainer(small_config).train(tmp_path / "run")
    with served(tmp_path / "run") as viewer:
        asked = []
        context = browser.new_context(viewport=WINDOW)
        context.on("request", lambda request: asked.append(request.url))
        page = context.new_page()
        page.goto(viewer.page.address)
        (session,) = wait_for(lambda: list(viewer.sessions.values()))
        client = session.client
        wait_for(lambda: viewer.engine.clients and all(c.stage > 2 for c in viewer.engine.clients.values()))

        wait_for(lambda: shown(client).std() > 0.05)  # not of one color
        image = shown(client)
        wanted = ImageRenderer(viewer.scene.model, viewer.scene.background)(session.viewpoint().cameras(160, 120), 0)
        wanted = wanted["rgb"].numpy()
        assert np.abs(image.mean((0, 1)) - wanted.mean((0, 1))).max() < 0.02
        assert np.abs(image - wanted).mean() < 0.04

        was = client.camera.position.copy()
        page.mouse.move(100, 160)
        page.mouse.down()
        page.mouse.move(180, 170, steps=4)
        page.mouse.up()
        wait_for(lambda: np.abs(client.camera.position - was).max() > 0.1)
        wait_for(lambda: np.abs(shown(client) - image).mean() > 0.01)

        foreign = [url for url in asked if not url.startswith((viewer.page.address, "blob:", "data:"))]
        assert asked and not foreign
        context.close()
        wait_for(lambda: not viewer.sessions and not viewer.engine.clients)
