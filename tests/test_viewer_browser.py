# SPDX-License-Identifier: Apache-2.0
"""Viewer and exported page in a real browser: what they show is what the renderer renders, and the mouse moves it."""

import base64
import math
import os
import shutil
import time

import imageio.v3 as imageio
import numpy as np
import pytest
import torch

from nerfkit.crop import Crop
from nerfkit.export.webfield import as_shown
from nerfkit.model.cropping import cropped
from nerfkit.rendering.image_renderer import ImageRenderer
from nerfkit.rendering.paths import pinholes
from nerfkit.training.run.load import load_run

if os.environ.get("REQUIRE_BROWSER") != "1":
    pytest.importorskip("playwright", reason="the viewer is not tested: pip install nerfkit[viewer,viewer-test]")
    if shutil.which("chromium") is None:
        pytest.skip("the viewer is not tested in a browser: chromium is not installed", allow_module_level=True)

from playwright.sync_api import sync_playwright  # noqa: E402

from nerfkit.viewer.frames import rotation_of  # noqa: E402
from tests.sphere_field import call  # noqa: E402
from tests.toy_scene import small_options  # noqa: E402
from tests.trainers import make_trainer  # noqa: E402
from tests.viewing import served, wait_for  # noqa: E402

pytestmark = pytest.mark.slow

ARGUMENTS = (
    "--no-sandbox --disable-quic --no-first-run --disable-background-networking --disable-component-update "
    "--use-angle=swiftshader --enable-unsafe-swiftshader"
).split()
WINDOW = {"width": 800, "height": 400}  # a narrow one has its panel below the image


@pytest.fixture(scope="module")
def viewer(tmp_path_factory, toy_scene):
    folder, config = tmp_path_factory.mktemp("viewer") / "a run", small_options(toy_scene)
    config.trainer.steps = 150
    make_trainer(config).train(folder)
    with served(folder) as viewer:
        yield viewer


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def page(viewer, browser):
    """The viewer's page, whose image is there."""
    context = browser.new_context(viewport=WINDOW, permissions=["clipboard-read", "clipboard-write"])
    page = context.new_page()
    page.asked, page.errors = [], []
    context.on("request", lambda request: page.asked.append(request.url))
    page.on("pageerror", lambda error: page.errors.append(error))
    page.goto(viewer.page.address)
    wait_for(lambda: viewer.sessions)
    rest(viewer)
    yield page
    assert not page.errors
    context.close()
    wait_for(lambda: not viewer.sessions and not viewer.engine.clients)


@pytest.fixture
def client(viewer, page):
    return next(iter(viewer.sessions.values())).client


def requested(viewer):
    (client,) = viewer.engine.clients.values()
    return client.request.camera


def rest(viewer) -> None:
    wait_for(lambda: viewer.engine.clients and all(c.stage > 2 for c in viewer.engine.clients.values()))


def seen(viewer, page, pose) -> np.ndarray:
    """What the window shows from a pose, beside the panel."""
    (session,) = viewer.sessions.values()
    # It is sent again until it is there: this is not viser's thread, and a message of the browser may come in between.
    wait_for(lambda: np.allclose(requested(viewer).matrix, pose, atol=1e-3) or session.go(pose, requested(viewer).fov))
    rest(viewer)
    before, image = None, window(page)
    while not np.array_equal(before, image):  # until the browser has drawn it
        time.sleep(0.3)
        before, image = image, window(page)
    return image


def window(page) -> np.ndarray:
    image = page.screenshot(clip={"x": 0, "y": 160, "width": 400, "height": 200})
    return imageio.imread(image)[..., :3] / 255


def tab(page, name: str) -> None:
    page.get_by_role("tab", name=name).click()


def drag(page, right: int, down: int) -> None:
    page.mouse.move(100, 160)
    page.mouse.down()
    page.mouse.move(100 + right, 160 + down, steps=4)
    page.mouse.up()


def shown(client, width: int = 160, height: int = 120) -> np.ndarray:
    """What the browser shows besides its panels, [H, W, 3] in [0, 1]."""
    return client.get_render(height, width, timeout=30) / 255


def test_the_image_is_what_the_renderer_renders_and_the_mouse_moves_it(viewer, page, client):
    wait_for(lambda: shown(client).std() > 0.05)  # not of one color
    image, (session,) = shown(client), viewer.sessions.values()
    wanted = ImageRenderer(viewer.scene.model, viewer.scene.background)(session.viewpoint().cameras(160, 120), 0)
    wanted = wanted["rgb"].numpy()
    assert np.abs(image.mean((0, 1)) - wanted.mean((0, 1))).max() < 0.02
    assert np.abs(image - wanted).mean() < 0.04
    was = client.camera.position.copy()
    drag(page, 80, 10)
    wait_for(lambda: np.abs(client.camera.position - was).max() > 0.1)
    wait_for(lambda: np.abs(shown(client) - image).mean() > 0.01)
    foreign = [url for url in page.asked if not url.startswith((viewer.page.address, "blob:", "data:"))]
    assert page.asked and not foreign


def test_the_camera_flies_has_an_up_and_a_field_of_view_of_its_own(viewer, page, client):
    seen(viewer, page, viewer.scene.cameras.camera_to_world[1].double().numpy())
    camera, axes = client.camera, lambda: rotation_of(client.camera.wxyz).T
    ahead, was = axes()[2], camera.position.copy()
    page.get_by_role("button", name="Fly").click()
    wait_for(lambda: np.linalg.norm(camera.look_at - was) < 0.3)
    time.sleep(0.3)  # until the page has heard of it
    drag(page, 0, 60)
    wait_for(lambda: axes()[2] @ ahead < 0.97)
    assert np.abs(camera.position - was).max() < 0.1, "it looks around where it is"
    page.keyboard.down("w")
    wait_for(lambda: (camera.position - was) @ axes()[2] > 0.2)
    page.keyboard.up("w")
    page.get_by_role("button", name="New up").click()
    rest(viewer)
    down, ahead = axes()[1:]
    drag(page, 60, 0)
    wait_for(lambda: axes()[2] @ ahead < 0.97)
    assert axes()[1] @ down > 0.999, "it turns about the new up"
    page.get_by_role("slider").last.press("End")  # the field of view
    wait_for(lambda: requested(viewer).fov == pytest.approx(np.radians(170)))


def test_cameras_are_shown_to_who_wants_them_but_not_in_front_of_their_own_image(viewer, page):
    pose = viewer.scene.cameras.camera_to_world[2].double().numpy()
    behind = pose + np.pad(pose[:, 2:3], ((0, 0), (3, 0)))
    at_it, from_behind = [seen(viewer, page, place) for place in (pose, behind)]
    for view, frustum in viewer.panels.cameras.frusta.items():
        frustum.visible = view == 2
    tab(page, "Scene")
    page.get_by_label("Cameras", exact=True).click()
    wait_for(lambda: not viewer.engine.jobs)  # thumbnails are there
    wait_for(lambda: np.abs(seen(viewer, page, behind) - from_behind).mean() > 0.002)
    assert np.abs(seen(viewer, page, pose) - at_it).mean() < 0.002
    page.get_by_label("Cameras", exact=True).click()
    wait_for(lambda: np.abs(seen(viewer, page, behind) - from_behind).mean() < 0.001)


def test_what_is_rendered_is_kept_and_saved_by_the_browser_and_the_command_is_copied(viewer, page):
    def kept(name: str) -> bytes | None:
        file = viewer.scene.folder.path / "render" / name
        return file.read_bytes() if file.exists() else None

    assert "a run" in page.title()
    tab(page, "Path")
    for label, value in (("Width", "40"), ("Height", "30"), ("Frames a second", "5")):
        page.get_by_label(label).fill(value)
        page.keyboard.press("Enter")
    with page.expect_download() as saved:
        page.get_by_role("button", name="Render this view").click()
    wait_for(lambda: kept("still_1/color.png") == saved.value.path().read_bytes())
    page.get_by_role("button", name="Orbit").click()
    with page.expect_download() as saved:
        page.get_by_role("button", name="Render video").click()
    wait_for(lambda: kept("video_1/color.mp4") == saved.value.path().read_bytes())
    page.get_by_role("button", name="Copy this view as a command").click()
    wait_for(lambda: "nerfkit render" in page.evaluate("navigator.clipboard.readText()"))


def drawn(page) -> np.ndarray:
    """The canvas of an exported page, when it is complete."""
    page.wait_for_timeout(100)
    page.wait_for_selector("canvas[data-state=still]", timeout=20_000)
    url = page.evaluate("document.querySelector('canvas').toDataURL()")
    return imageio.imread(base64.b64decode(url.partition(",")[2]))[..., :3]


def wanted(page, run, crop) -> np.ndarray:
    """What the renderer renders of the page's model, as the view in the address says."""
    page.click("#link")
    numbers = np.array(page.evaluate("location.hash").partition("=")[2].split(","), dtype=float)
    pose = np.concatenate([numbers[3:12].reshape(3, 3).T, numbers[:3, None]], axis=1)
    size = tuple(page.evaluate("[document.querySelector('canvas').width, document.querySelector('canvas').height]"))
    model = as_shown(run.model)
    with cropped(model, crop):
        image = ImageRenderer(model, run.background)(pinholes([pose], [math.radians(numbers[12])], size), 0)["rgb"]
    return (image.numpy() * 255 + 0.5).astype(np.uint8)


@pytest.mark.parametrize("kind", ["box", "contracted"])
def test_an_exported_page_shows_the_field_itself_without_a_network(kind, browser, toy_scene, tmp_path):
    config = small_options(toy_scene)
    config.sampling.kind, config.sampling.far, config.sampling.cone_angle = kind, 100.0, 0.02
    trainer, generator = make_trainer(config), torch.Generator().manual_seed(0)
    with torch.no_grad():  # every stage matters, and which cells are occupied follows nothing
        for parameter in trainer.model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.4)
        trainer.model.decoder.density_net.layers()[-1][1][0] = 3.0
        for net in (trainer.model.decoder.density_net, trainer.model.decoder.color_net):
            net.layers()[0][1][::3] = -50.0  # units that nothing wakes: a page does without
        trainer.model.sampler.occupancy.copy_(torch.rand(24, 24, 24, generator=generator) < 0.1)
        trainer.model.sampler.threshold.fill_(0.01)
    trainer.save(tmp_path / "run")
    run, (low, high) = load_run(tmp_path / "run", "cpu"), ((-0.7, -0.7, -0.7), (0.3, 0.8, 0.8))
    crop = Crop(low, high) if kind == "contracted" else None
    corners = ["--crop", *low, *high] if crop else []
    call(tmp_path / "run", "web", "--out", tmp_path / "a page.html", *corners)
    page, asked, told = browser.new_page(viewport={"width": 480, "height": 320}), [], []
    page.on("request", lambda request: asked.append(request.url))
    for event in ("pageerror", "console"):
        page.on(event, lambda what: told.append(str(what)))

    def check() -> np.ndarray:
        image = drawn(page)
        off = np.abs(image.astype(int) - wanted(page, run, crop))  # of 255
        assert image.std() > 3 and (off <= 2).mean() >= 0.999, off.max()
        return image

    page.goto((tmp_path / "a page.html").as_uri())
    page.select_option("#quality", "0.25")
    at_start = check()
    page.mouse.move(140, 140)
    page.mouse.down()
    page.mouse.move(260, 110, steps=3)
    page.mouse.up()
    moved = check()
    assert np.abs(moved.astype(int) - at_start).mean() > 2
    page.set_viewport_size({"width": 440, "height": 360})
    assert check().shape == (90, 110, 3)
    page.select_option("#quality", "1")  # not drawn at once
    assert check().shape == (360, 440, 3)
    page.select_option("#quality", "0.25")
    page.evaluate("lost = document.querySelector('canvas').getContext('webgl2').getExtension('WEBGL_lose_context')")
    page.evaluate("lost.loseContext()")
    page.wait_for_selector("canvas[data-state=lost]")
    assert "graphics memory" in page.inner_text("#said")
    page.evaluate("lost.restoreContext()")
    check()
    assert not page.is_visible("#said") and not told and asked == [(tmp_path / "a page.html").as_uri()]
    page.close()
