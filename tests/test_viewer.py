# SPDX-License-Identifier: Apache-2.0
"""The viewer's page, with clients that speak its protocol: images, panels, files, a training."""

import json
import threading
import time
from functools import partial

import numpy as np
import pytest
import torch

from nerfkit.crop import Crop, read_crop
from nerfkit.device import seed_everything
from nerfkit.export.scale import SCALE
from nerfkit.rendering.camera_path import read_path
from nerfkit.rendering.image_renderer import ImageRenderer
from nerfkit.rendering.paths import pinholes
from nerfkit.training.run.folder import RunFolder
from nerfkit.viewer.engine import Request
from nerfkit.viewer.frames import OUTPUTS, Look, rotation_of
from nerfkit.viewer.page import Page, ViewerOptions
from tests.viewing import SIZE, FakeBrowser, at, controls_of, new_training, press, wait_for

pytestmark, pytest_plugins = pytest.mark.slow, "tests.viewing"
CLICK = {"type": "ScenePointerMessage", "event_type": "click", "screen_pos": [[0.5, 0.5]], "modifier": None}


def test_every_output_is_drawn(viewer, browser, session):
    images = {}
    session.go_to(0)
    for output in OUTPUTS:
        session.change(output=output)
        time.sleep(0.05)
        images[output] = at(browser, viewer.scene.cameras.positions[0].tolist())
    means = {name: image.astype(float).mean((0, 1)) for name, image in images.items()}
    assert len({tuple(mean.round(1)) for mean in means.values()}) == len(OUTPUTS)
    assert np.abs(images["opacity"].astype(int) - images["opacity"][..., :1]).max() < 30, "gray, but for JPEG"


def test_two_clients_have_cameras_and_looks_of_their_own(viewer, browser):
    first = at(browser)
    other = FakeBrowser(viewer.page.address, SIZE)
    second = at(other, (-2.0, 1.5, 0.5))
    assert len(viewer.sessions) == 2 and np.abs(first.astype(int) - second).mean() > 1
    other.close()
    wait_for(lambda: len(viewer.sessions) == 1 and len(viewer.engine.clients) == 1)
    assert np.abs(at(browser, (2.5, 0.5, 1.1)).astype(int) - first).mean() < 8


def test_a_click_on_a_training_camera_goes_there_and_next_goes_on(viewer, browser, session):
    browser.click("/cameras/1")
    poses, camera = viewer.scene.cameras.camera_to_world.numpy(), session.client.camera
    wait_for(lambda: np.abs(camera.position - poses[1, :, 3]).max() < 1e-3)
    wait_for(lambda: np.abs(rotation_of(camera.wxyz) * [1, -1, -1] - poses[1, :, :3]).max() < 1e-3)
    names = [message["type"] for message in browser.messages]
    assert "SetCameraPositionMessage" in names and "SetCameraLookAtMessage" in names
    session.go_to(3)
    browser.send(poses[3, :, 3] + 1e-6)  # as a browser says where it is
    wait_for(lambda: session.nearest[1] < 1e-3)
    assert session.current_view() == 3
    browser.send(poses[7, :, 3] + 1e-2)
    wait_for(lambda: session.nearest[0] == 7)
    assert session.current_view() == 7


def test_a_click_says_how_deep_it_is_there(viewer, browser, session):
    scene, pose = viewer.scene, viewer.scene.cameras.camera_to_world[1]
    for direction in ([float("nan")] * 3, (-pose[:, 2]).tolist()):
        browser.tell(CLICK | {"ray_origin": pose[:, 3].tolist(), "ray_direction": direction})
    text = wait_for(lambda: "deep" in session.probed.content and session.probed.content)
    cameras = pinholes([pose], [1e-3], (1, 1))
    depth = float(ImageRenderer(scene.model, scene.background)(cameras, 0, ("depth",))["depth_ray"])
    assert f" {depth:.4g}" in text
    browser.tell(CLICK | {"ray_origin": pose[:, 3].tolist(), "ray_direction": pose[:, 2].tolist()})  # backwards
    wait_for(lambda: "nothing" in session.probed.content)


def test_two_clicks_and_their_distance_give_meters(viewer, browser, session, folder):
    cameras, controls = viewer.scene.cameras, controls_of(viewer, session)
    press(browser, controls["Keep"])
    wait_for(lambda: "click two places" in str(browser.messages))
    for count, view in enumerate((1, 6), 1):
        pose = cameras.camera_to_world[view]
        browser.tell(CLICK | {"ray_origin": pose[:, 3].tolist(), "ray_direction": (-pose[:, 2]).tolist()})
        wait_for(partial(lambda count: len(session.picked) == count, count))
    press(browser, controls["Distance [m]"], 3.0)
    press(browser, controls["Keep"])
    kept = wait_for(lambda: (folder / SCALE).exists() and json.loads((folder / SCALE).read_text()))
    one, other = np.reshape(kept["measured"][:6], (2, 3))
    assert kept["meters_per_unit"] == pytest.approx(3 / np.linalg.norm(other - one))
    assert f"{np.linalg.norm(other - one):.4g} from the place clicked before" in session.probed.content
    (folder / SCALE).unlink()


def test_the_crop_is_drawn_and_kept(viewer, browser, folder):
    whole = at(browser)
    panel = viewer.panels.crop
    panel.on.value = True
    panel._set(np.array([[-0.8, -0.8, -0.8], [0.8, 0.8, -0.5]]))  # below everything
    assert at(browser, (2.5, 0.5, 1.01)).mean() > whole.mean() + 0.5
    wanted = Crop((-0.8, -0.8, -0.8), (0.8, 0.8, -0.5))
    wait_for(lambda: read_crop(folder, None) == (wanted, True))
    assert panel.outline.visible and panel.high.value == wanted.high and panel.handles[1].position[2] == -0.5
    panel.on.value = False
    panel._set(np.array([[-0.8, -0.8, -0.8], [0.8, 0.8, 0.8]]))
    wait_for(lambda: (read_crop(folder, None) or (0, 1))[1] is False)


def test_a_path_is_kept_and_played_and_a_flood_of_clicks_keeps_one(viewer, browser, session, folder):
    panel, controls = viewer.panels.path, controls_of(viewer, session)
    panel.path.fps, panel.path.size = 5, (32, 24)
    for n, position in enumerate([(2.5, 0.6, 1.0), (1.5, 2.5, 1.0)], 1):
        at(browser, position)
        press(browser, controls["Add this view"])
        wait_for(lambda n=n: len(panel.path.keyframes) == n)
    panel.path.keyframes[0].seconds, panel.path.keyframes[1].seconds = 1.0, 0.7
    at(browser, (0.5, 2.5, 1.0))
    press(browser, panel.actions, "Replace")
    wait_for(lambda: np.allclose(panel.path.keyframes[1].pose[:, 3], (0.5, 2.5, 1.0)))
    assert [key.seconds for key in panel.path.keyframes] == [1.0, 0.7], "as long to the next as before"
    go_on = threading.Event()
    viewer.later(go_on.wait)
    for _ in range(20):
        press(browser, controls["Save path"])
    wait_for(lambda: sum("already" in str(message) for message in browser.messages) == 19)
    go_on.set()
    wait_for(lambda: any("Path saved" in str(message) for message in browser.messages))
    (file,) = folder.glob("paths/path_*.json")
    assert len(read_path(file, (8, 8))) == 6 and "paths/" in RunFolder.existing(folder).names
    press(browser, controls["Preview"], "Play")
    wait_for(lambda: panel.playing)
    wait_for(lambda: panel.playing is None)
    assert np.allclose(session.client.camera.position, (0.5, 2.5, 1.0), atol=0.2)


def test_presets_go_about_the_scene_or_through_its_views(viewer):
    panel, positions = viewer.panels.path, viewer.scene.cameras.positions.numpy()
    middle = viewer.scene.box.mean(0)
    for preset, loop in (("Orbit", True), ("Spiral", True), ("Views", False)):
        panel._start(preset)
        eyes = panel.path.cameras().positions.numpy()
        assert panel.path.loop is loop and panel.actions.visible and len(eyes) > 60
        way = np.linalg.norm(positions - middle, axis=1).mean()
        assert not loop or np.linalg.norm(eyes - middle, axis=1) == pytest.approx(way, rel=1e-3)
    assert np.allclose(eyes[[0, -1]], positions[[0, -1]], atol=1e-4)


def test_an_error_in_a_panel_is_told_and_the_viewer_goes_on(viewer, browser, capfd):
    viewer.panels.crop.tick = lambda now: 1 / 0
    assert at(browser, (2.5, 0.7, 1.0)).shape == (SIZE[1], SIZE[0], 3)
    assert capfd.readouterr().err.count("division by zero") == 1


def trained(config, out, with_viewer: bool):
    """Parameters and random states after a deterministic training, and how many images were seen meanwhile."""
    config.trainer.deterministic, config.trainer.steps = True, 60
    seed_everything(0)
    page = Page(ViewerOptions(port=0), "test") if with_viewer else None
    trainer, folder, viewer = new_training(config, out, page)
    if page is None:
        trainer.train(folder)
        return trainer, 0
    browser, moves = FakeBrowser(page.address, SIZE), [0]
    browser.send((2.5, 0.5, 1.0))
    wait_for(lambda: viewer.awake)

    def move(trainer):  # the camera moves with every step
        moves[0] += 1
        browser.send((2.5, 0.5, 1.0 + 0.01 * moves[0]))

    trainer.on_step.append(move)
    trainer.train(folder)
    viewer.detach(trainer)
    wait_for(lambda: not browser.images.empty())
    n_images = browser.images.qsize()
    browser.close()
    page.stop()
    return trainer, n_images


def test_an_error_of_the_viewer_does_not_end_a_training(small_config, tmp_path, capfd):
    small_config.trainer.steps, page = 5, Page(ViewerOptions(port=0), "test")
    trainer, folder, viewer = new_training(small_config, tmp_path / "run", page)
    viewer.awake, viewer.sharing.add_training = True, lambda *_: 1 / 0
    viewer.engine.request(0, Request(None, SIZE, Look()))
    trainer.train(folder)
    page.stop()
    assert trainer.step == 5 and capfd.readouterr().err.count("viewer: division by zero") == 1


def test_a_training_that_is_looked_at_has_the_same_bits(small_config, tmp_path):
    plain, _ = trained(small_config, tmp_path / "plain", with_viewer=False)
    plain_random = torch.get_rng_state(), np.random.get_state()[1].tolist()
    seen, n_images = trained(small_config, tmp_path / "seen", with_viewer=True)
    assert n_images > 3
    for name, value in plain.model.state_dict().items():
        assert torch.equal(value, seen.model.state_dict()[name]), name
    assert torch.equal(plain_random[0], torch.get_rng_state())
    assert plain_random[1] == np.random.get_state()[1].tolist()
    assert seen.model.training == plain.model.training
