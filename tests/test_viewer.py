# SPDX-License-Identifier: Apache-2.0
"""The viewer's page, with clients that speak its protocol: images, files, a training, those that leave, an end."""

import asyncio
import gc
import logging
import os
import queue
import socket
import threading
import time
import weakref
from contextlib import suppress

import numpy as np
import pytest
import torch

if os.environ.get("REQUIRE_BROWSER") != "1":
    pytest.importorskip("viser", reason="the viewer is not tested: pip install nerfkit[viewer,viewer-test]")

from msgspec.msgpack import encode as msgpack
from websockets.exceptions import ConnectionClosed

from nerfkit.crop import Crop, read_crop
from nerfkit.device import seed_everything
from nerfkit.errors import UserError
from nerfkit.rendering.image_renderer import ImageRenderer
from nerfkit.rendering.paths import CameraPath, Keyframe, pinholes, read_path
from nerfkit.training.run.folder import RunFolder
from nerfkit.viewer import page as page_module
from nerfkit.viewer import viewer as viewer_module
from nerfkit.viewer.engine import Request
from nerfkit.viewer.frames import OUTPUTS, Look, rotation_of, vertical_fov
from nerfkit.viewer.page import Page, ViewerOptions, bound
from scripts.bench_viewer import FakeBrowser
from tests.toy_scene import small_options
from tests.trainers import make_trainer
from tests.viewing import Browser, new_training, served, vanish, wait_for

pytestmark = pytest.mark.slow

SIZE = (64, 48)
MUCH = os.urandom(24 * 2**20)  # bytes, more than sockets hold


@pytest.fixture(scope="module")
def folder(tmp_path_factory, toy_scene):
    run = tmp_path_factory.mktemp("viewer") / "run"
    make_trainer(small_options(toy_scene)).train(run)
    return run


@pytest.fixture
def viewer(folder):
    with served(folder) as viewer:
        yield viewer


@pytest.fixture
def browser(viewer):
    browser = FakeBrowser(viewer.page.address, SIZE)
    yield browser
    browser.close()


@pytest.fixture
def session(viewer, browser):
    """That of the browser, which has seen an image."""
    at(browser)
    (session,) = viewer.sessions.values()
    return session


def at(browser, position=(2.5, 0.5, 1.0)):
    """Its last image when the camera rests at `position`."""
    browser.send(position)
    image = browser.image()[1]
    while True:
        try:  # a full one may be of where it was before; the last has four rays a pixel
            image = browser.image(timeout=0.3 if image.shape[1::-1] == browser.size else 60.0)[1]
        except queue.Empty:
            return image


def test_an_image_is_what_the_renderer_renders(viewer, browser, session):
    image = at(browser, (2.4, 0.5, 1.0))
    cameras = session.viewpoint().cameras(2 * SIZE[0], 2 * SIZE[1])
    wanted = ImageRenderer(viewer.scene.model, viewer.scene.background)(cameras, 0)["rgb"]
    wanted = wanted.view(SIZE[1], 2, SIZE[0], 2, 3).mean((1, 3)).numpy()
    assert np.abs(image / 255 - wanted).mean() < 0.02 and wanted.std() > 0.03


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


def test_the_training_image_lies_on_the_rendering(viewer, browser, session):
    """At a training camera the split screen shows that image, whatever the field says of depths."""
    view, cameras = 2, viewer.scene.cameras
    pose = cameras.camera_to_world[view].numpy()
    browser.fov = vertical_fov(cameras, view)
    browser.send(pose[:, 3], pose[:, 3] - pose[:, 2])
    session.change(split=0.0)
    time.sleep(0.1)
    while not browser.images.empty():
        browser.image()
    browser.send(pose[:, 3] + 1e-5, pose[:, 3] - pose[:, 2])
    image = at(browser, pose[:, 3])
    assert session.nearest[0] == view and session.nearest[1] < 1e-3
    photo = viewer.scene.photo(view).numpy()
    (width, height), focal, center = cameras.size(view), cameras.focal[view].numpy(), cameras.center[view].numpy()
    scale = height / SIZE[1]  # of pixels there
    row, column = np.mgrid[0 : SIZE[1], 0 : SIZE[0]] + 0.5
    x = (column - SIZE[0] / 2) * scale / focal[1] * focal[0] + center[0]
    y = (row - SIZE[1] / 2) * scale + center[1]
    seen = (x > 1) & (x < width - 1) & (y > 1) & (y < height - 1)
    wanted = photo[np.clip(y.astype(int), 0, height - 1), np.clip(x.astype(int), 0, width - 1)]
    assert seen.mean() > 0.4 and np.abs(image / 255 - wanted)[seen].mean() < 0.06


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
    click = {"type": "ScenePointerMessage", "event_type": "click", "screen_pos": [[0.5, 0.5]], "modifier": None}
    for direction in ([float("nan")] * 3, (-pose[:, 2]).tolist()):
        browser.tell(click | {"ray_origin": pose[:, 3].tolist(), "ray_direction": direction})
    text = wait_for(lambda: "deep" in session.probed.content and session.probed.content)
    cameras = pinholes([pose], [1e-3], (1, 1))
    depth = float(ImageRenderer(scene.model, scene.background)(cameras, 0, ("depth",))["depth_ray"])
    assert f" {depth:.3g}" in text
    browser.tell(click | {"ray_origin": pose[:, 3].tolist(), "ray_direction": pose[:, 2].tolist()})  # backwards
    wait_for(lambda: "nothing" in session.probed.content)


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


def test_a_path_is_kept_rendered_and_played(viewer, browser, session, folder):
    panel = viewer.panels.path
    panel.path.fps, panel.path.size = 5, (32, 24)
    for position in ((2.5, 0.6, 1.0), (0.5, 2.5, 1.0)):
        at(browser, position)
        here = session.viewpoint()
        panel.path.keyframes.append(Keyframe(here.matrix, here.fov, 1.0))
    viewer.later(panel.fill)
    viewer.later(lambda: panel.files._save(session, panel.path.copy()))
    file = wait_for(lambda: next(iter(folder.glob("paths/path_*.json")), None))
    assert len(read_path(file, (8, 8))) == 6
    assert "paths/" in RunFolder.existing(folder).names
    viewer.later(lambda: panel.video._start(session))
    assert wait_for(lambda: [m for m in browser.messages if m["type"] == "FileTransferPart"])
    assert wait_for(lambda: panel.video.job is None and not viewer.engine.jobs)
    panel.playing = (session.client.client_id, None)
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


TOO_MUCH = [  # label of a control, value that a client sends, value that is taken; None: as before
    ("Share of training", 0.0, 0.5),
    ("Lowest corner", [float("nan"), 0, 0], (0.5, 0.5, 0.5)),  # of a handle, below
    ("Highest corner", [0, 0], None),
    ("Crop", "yes", None),
    ("Keyframe", "999", None),
    ("Kept", "/etc/passwd", None),
    ("Width", 100000, 8192),
    ("Height", 0, 16),
    ("Frames a second", None, None),
    ("Field of view", "wide", None),
    ("Upload", 1, None),
    ("Background", "pink", None),
    ("Cameras", 2, None),
    ("Largest side", 40000, 2048),
    ("Depths", [-1e9, 1.0], (0.0, 1.0)),
    ("Output", ["nothing"], None),
]


def test_no_value_of_a_client_is_trusted(viewer, browser, session, folder, capfd):
    guis, panel = (viewer.page.server.gui, session.client.gui), viewer.panels.path
    controls = {getattr(c, "label", ""): c for gui in guis for c in gui._gui_input_handle_from_uuid.values()}
    before, nowhere = {label: controls[label].value for label, _, _ in TOO_MUCH}, [float("nan")] * 3
    sent = {"part_count": 0, "size_bytes": 0, "filename": "", "mime_type": "", "transfer_uuid": "a"}
    for label, value, _ in TOO_MUCH:
        uuid, updates = (
            controls[label]._impl.uuid,
            {"value": value, "options": ["999", value], "min": -1e9, "removed": True},
        )
        browser.tell({"type": "GuiUpdateMessage", "uuid": uuid, "updates": updates})
        if label != "Upload":
            browser.tell({"type": "FileTransferStartUpload", "source_component_uuid": uuid, **sent})
    browser.send(nowhere, (1.0, 0.0, 0.0))
    moved = {"type": "TransformControlsUpdateMessage", "name": "/crop/low", "wxyz": [1, 0, 0, 0]}
    for position in (nowhere, [0.0, 0.0], [0.5] * 3):  # the last one is a corner
        browser.tell(moved | {"position": position})
    assert at(browser, (2.5, 0.7, 1.0)).shape == (SIZE[1], SIZE[0], 3)
    for label, _, taken in TOO_MUCH:
        assert controls[label].value == (before[label] if taken is None else taken), label
    assert panel.path.size == (8192, 16) and session.max_side == 2048 and viewer.state.sharing.training == 0.5
    assert viewer.panels.crop.crop == Crop((0.5,) * 3, (0.8,) * 3)
    read_crop(folder, None)  # which fails for one that is not finite
    told = capfd.readouterr().err
    assert "Traceback" not in told and "crop" in told and "camera" in told
    path = CameraPath([Keyframe(np.eye(3, 4), 0.5)] * 2, fps=1000, size=(60000, 4))
    viewer.later(lambda: panel.files._upload(session, path.to_json(None).encode()))
    wait_for(lambda: controls["Frames a second"].value == 120)
    assert (panel.path.size, panel.path.fps, len(panel.path.keyframes)) == ((8192, 16), 120, 2)


def test_foreign_pages_are_refused_and_nobody_is_asked_for_a_tunnel(viewer, browser, session, monkeypatch, capfd):
    import requests
    from websockets.exceptions import InvalidStatus
    from websockets.sync.client import connect

    url = viewer.page.address.replace("http", "ws")
    for headers in ({"origin": "http://evil.example"}, {"additional_headers": {"Host": "evil.example"}}):
        with pytest.raises(InvalidStatus, match="403"):
            connect(url, **headers)
    answer = http_get(viewer.page.port, "evil.example")
    assert b" 403 " in answer and b"evil.example" in answer
    assert capfd.readouterr().err.count("--viewer.names evil.example") == 2, "of Host and of Origin, each once"
    assert b"Content-Security-Policy" in http_get(viewer.page.port, "localhost")
    asked = []
    monkeypatch.setattr(requests, "request", lambda *a, **k: asked.append(a))
    monkeypatch.setattr(requests, "get", lambda *a, **k: asked.append(a))
    browser.tell({"type": "ShareUrlRequest"})
    time.sleep(0.2)
    assert not asked and viewer.sessions


def test_a_proxy_is_let_through_by_its_name():
    page = Page(ViewerOptions(port=0, names=("Viewer.example.org",)), "test")
    answer = http_get(page.port, "localhost", "Origin: https://viewer.example.org\r\n")
    page.stop()
    assert b" 200 " in answer and b"wss://viewer.example.org" in answer
    assert "Viewer.example.org" in page.how_to_reach() and "Upgrade" in page.how_to_reach()


MALFORMED = [  # messages on a websocket
    b"", b"\xc1", b"\xff" * 100, "text", msgpack([1]), msgpack({}), msgpack({"type": "Nothing"}), msgpack({"type": 1}),
    msgpack({"type": "GuiUpdateMessage"}), msgpack({"type": "GuiUpdateMessage", "uuid": [], "updates": {"value": 1}}),
    msgpack({"type": "ViewerCameraMessage", "wxyz": "w"}), msgpack({"type": "ScenePointerMessage"}),
    msgpack({"type": "CommandTriggerMessage", "uuid": "\x1b[31m" + "x" * 10000}),
]  # fmt: skip


def send_malformed(viewer) -> None:
    """By one client each, with a camera, unless it is hung up on before."""
    for message in MALFORMED:
        hostile = FakeBrowser(viewer.page.address, (40000, 40000))
        with suppress(ConnectionClosed):
            hostile.connection.send(message)
            hostile.send((1.0, 0.5, 1.0))
        hostile.close()


def test_what_is_not_understood_is_told_in_a_line_and_others_see_on(viewer, browser, capfd, monkeypatch):
    monkeypatch.setattr(logging.getLogger("websockets.client"), "disabled", True)  # of the test's own clients
    at(browser)
    send_malformed(viewer)
    for path in ("/" + "x" * 300, "/%00", "/\xff", "/?" + "y" * 5000):
        assert http_get(viewer.page.port, "localhost", path=path).startswith(b"HTTP/1.1 ")
    assert at(browser, (2.5, 0.7, 1.0)).shape == (SIZE[1], SIZE[0], 3)
    gc.collect()  # of tasks that failed
    lines = capfd.readouterr().err.splitlines()
    assert lines and all(line.startswith("viewer: ") and len(line) < 400 and line.isprintable() for line in lines)


def http_get(port: int, host: str, more: str = "", path: str = "/") -> bytes:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n{more}Connection: close\r\n\r\n".encode())
        return connection.makefile("rb").read(4096)


def test_a_port_that_is_taken_is_named_and_not_another_one_used():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"(?s){port}.*--viewer.port"):
            Page(ViewerOptions(port=port), "test")


def test_an_end_leaves_no_thread_and_no_port(folder):
    before = set(threading.enumerate())
    with served(folder) as viewer:
        port, browser = viewer.page.port, FakeBrowser(viewer.page.address, SIZE)
        browser.send((2.5, 0.5, 1.0))
        browser.image()
    browser.close()
    assert not [thread for thread in threading.enumerate() if thread not in before and "tqdm" not in thread.name]
    bound("127.0.0.1", port).close()


# ---- browsers that leave, vanish or freeze: nothing of them stays, and others see on


def come(viewer) -> Browser:
    """A browser that sees the scene."""
    browser = Browser(viewer)
    browser.drag(0.1)
    browser.images.get(timeout=20)
    return browser


def test_browsers_that_vanish_leave_no_session_and_no_thread_and_are_freed_at_once(viewer, monkeypatch):
    freed, left = [], []
    give_back = viewer_module.give_back
    monkeypatch.setattr(viewer_module, "give_back", lambda: freed.append(give_back()))
    monkeypatch.setattr(viewer_module, "FREE_AFTER", 0.5)
    one, two, three = (come(viewer) for _ in range(3))
    vanish(one)
    vanish(two)
    three.close()
    wait_for(lambda: not viewer.sessions and freed)
    threads = set(threading.enumerate())
    browsers = [come(viewer) for _ in range(2)]
    for session in viewer.sessions.values():
        left.extend(map(weakref.ref, (session, session.client, session.client._websock_connection._state)))
    del session
    for browser in browsers:
        vanish(browser)
    wait_for(lambda: not viewer.sessions and len(freed) > 1)
    time.sleep(0.7)
    assert len(left) == 6 and not any(thing() for thing in left) and len(freed) == 2
    assert not viewer.engine.clients and set(threading.enumerate()) <= threads


def test_a_frozen_browser_is_hung_up_on_and_another_sees_on(viewer, monkeypatch):
    monkeypatch.setattr(page_module, "PING_SECONDS", 0.3)
    monkeypatch.setattr(page_module, "FROZEN_SECONDS", 8.0)  # others have as long to answer on a busy machine
    still = come(viewer)
    (session,) = viewer.sessions.values()
    other = come(viewer)
    still.freeze()
    session.client.send_file_download("much", MUCH)  # there is no room to send a ping
    seen = other.images.qsize()
    wait_for(lambda: other.drag(0.1) or other.images.qsize() >= seen + 5)
    other.close()
    wait_for(lambda: not viewer.sessions, 40)
    assert still.is_hung_up()


def test_an_end_does_not_wait_for_a_frozen_browser(viewer):
    browser = come(viewer)
    browser.freeze()
    (session,) = viewer.sessions.values()
    session.client.send_file_download("much", MUCH)
    time.sleep(0.5)
    began = time.monotonic()
    viewer.page.stop()
    assert time.monotonic() - began < 3 and not viewer.page.server._websock_server._server_thread.is_alive()
    assert browser.is_hung_up()


class FakeConnection:
    """Never answers; `read` bytes of what was sent are read each time that somebody looks."""

    def __init__(self, read: int):
        self.transport, self.read, self.unread, self.aborted = self, read, 10, False

    async def ping(self):
        return asyncio.get_running_loop().create_future()

    def get_write_buffer_size(self) -> int:
        self.unread = max(self.unread - self.read, 0)
        return self.unread

    def abort(self) -> None:
        self.aborted = True


def test_a_slow_browser_that_reads_is_waited_for(monkeypatch):
    monkeypatch.setattr(page_module, "PING_SECONDS", 0.0)
    monkeypatch.setattr(page_module, "FROZEN_SECONDS", 0.05)

    async def seconds(read: int) -> float:
        connection, began = FakeConnection(read), time.monotonic()
        await page_module.hang_up_when_frozen(connection)
        assert connection.aborted
        return time.monotonic() - began

    assert asyncio.run(seconds(0)) < 0.2 < asyncio.run(seconds(1))


# ---- a training


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
