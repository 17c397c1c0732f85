# SPDX-License-Identifier: Apache-2.0
"""The viewer without a browser: what it draws when, by a clock that only work moves; whom it answers."""

from types import SimpleNamespace
from typing import NamedTuple

import pytest

from nerfkit.viewer.engine import FINE, FULL, MOVING, STILL_AFTER, Engine, Request
from nerfkit.viewer.pacing import AWAITED, CHUNK_SECONDS, JOB, SHOWN, SMALLEST_CHUNK, Sharing
from nerfkit.viewer.page import own_names, policy, refusal

COLOR = SimpleNamespace(output="color")


class Drawn(NamedTuple):
    client: int
    camera: object
    size: tuple[int, int]
    stage: int
    at: float


class World:
    def __init__(self, seconds: float = 0.0, per_ray: float = 1e-6, overhead: float = 0.0, per_chunk: float = 0.0):
        """One in which, if so many seconds have passed, a client has asked for a frame."""
        self.now, self.per_ray, self.overhead, self.per_chunk = 0.0, per_ray, overhead, per_chunk
        self.drawn, self.chunks, self.told = [], [], []
        self.engine = Engine(
            lambda *of: FakeImage(self, *of[:3]),
            lambda client, image, stage: self.drawn.append(Drawn(client, *image, stage, self.now)),
            lambda client, error: self.told.append((client, str(error))),
            lambda: self.now,
        )
        if seconds:
            self.ask()
            self.run(seconds)

    def ask(self, client=0, camera="a", size=(640, 480)):
        self.engine.request(client, Request(camera, size, COLOR))

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            if not self.engine.step():
                self.now += 0.001

    def until_drawn(self, n: int = 1) -> list[Drawn]:
        before = len(self.drawn)
        while len(self.drawn) < before + n:
            self.run(1e-9)
        return self.drawn[before:]


class FakeImage:
    def __init__(self, world, camera, width, height):
        self.world, self.camera, self.size, self.n_rays, self.done = world, camera, (width, height), width * height, 0

    def render(self, start, end):
        assert start == self.done and end > start, "chunks follow one another"
        self.done = end
        seconds = self.world.per_chunk + (end - start) * self.world.per_ray
        self.world.chunks.append(seconds)
        self.world.now += seconds

    def finish(self):
        assert self.done == self.n_rays
        self.world.now += self.world.overhead
        return self.camera, self.size


def test_a_camera_that_moved_gets_a_small_image_then_the_full_one_then_a_fine_one():
    world = World(seconds=5)
    assert [drawn.stage for drawn in world.drawn] == [MOVING, FULL, FINE]
    assert [drawn.size for drawn in world.drawn] == [(64, 48), (640, 480), (1280, 960)]
    assert world.drawn[1].at >= STILL_AFTER
    world.ask()  # the same again
    world.run(1)
    assert len(world.drawn) == 3, "nothing has changed"


def test_an_image_that_takes_long_becomes_finer_step_by_step_and_says_how_far_it_is():
    world, shares = World(per_ray=1e-4), []
    world.ask()
    while len(world.drawn) < 5:
        world.run(1e-9)
        shares.append(world.engine.progress(0))
    assert [drawn.size[0] for drawn in world.drawn] == [64, 163, 327, 640, 1280]
    assert [drawn.stage for drawn in world.drawn] == [MOVING, FULL, FULL, FULL, FINE]
    assert world.drawn[0].at < 0.4 and world.drawn[1].at < 3
    assert ((640, 480), pytest.approx(0.5, abs=0.01)) in shares and world.engine.progress(1) is None


def test_the_newest_request_replaces_a_full_image_at_once():
    world = World()
    world.ask(camera="old")
    world.until_drawn()
    world.run(0.25)  # in the middle of the full image
    assert not world.engine.is_between_frames
    began = world.now
    world.ask(camera="new")
    world.ask(camera="newest")
    (drawn,) = world.until_drawn()
    assert drawn.camera == "newest" and drawn.stage == MOVING and world.now - began < 0.05
    world.run(5)
    assert [drawn.camera for drawn in world.drawn[2:]] == ["newest"] * 2


def test_a_camera_that_never_rests_is_seen():
    world = World(per_ray=1e-5)
    for i in range(200):
        world.ask(camera=i)
        for _ in range(2):
            world.engine.step()
    assert len(world.drawn) > 5 and all(drawn.stage == MOVING for drawn in world.drawn)


def test_no_chunk_takes_longer_than_eight_milliseconds():
    world = World(5, per_ray=2e-6, per_chunk=1e-3)
    assert max(world.chunks[3:]) <= CHUNK_SECONDS
    assert sorted(world.chunks)[len(world.chunks) // 2] > CHUNK_SECONDS / 2, "nor much shorter: each costs something"
    world.per_ray, before = 1e-6, len(world.chunks)
    world.ask(camera="b")
    world.run(5)
    assert max(world.chunks[before:]) <= CHUNK_SECONDS
    assert World(5, per_ray=1e-4).engine.chunk.rays == SMALLEST_CHUNK


@pytest.mark.parametrize("overhead", [0.0, 0.02])
def test_images_of_a_moving_camera_take_the_time_they_may(overhead):
    world = World(2, overhead=overhead)
    for i in range(60):
        world.ask(camera=i)
        began = world.now
        world.until_drawn()
    assert 0.4 / 15 < world.now - began <= 1.05 / 15
    assert len({drawn.size for drawn in world.drawn[-50:]}) == 1, "and they do not shrink"


def test_who_moves_comes_before_who_rests_and_clients_take_turns():
    world = World()
    world.ask(client=0)
    world.until_drawn()
    world.run(0.2)  # in the middle of the full image
    world.ask(client=1)
    assert [drawn.client for drawn in world.until_drawn(2)] == [0, 1], "what has begun is finished"
    clients = []
    for i in range(10):
        world.ask(client=0, camera=i)
        world.ask(client=1, camera=i)
        clients += [drawn.client for drawn in world.until_drawn()]
    assert sorted(clients) == [0] * 5 + [1] * 5


def test_an_error_ends_one_image_and_is_told():
    """A request that comes while an image fails is drawn."""
    world = World()

    def start(camera, *rest):
        if camera == "bad":
            world.ask(client=3, camera="good")
        return FakeImage(world, camera, 4, 4) if camera != "bad" and camera != "worse" else 1 / 0

    world.engine.start = start
    for client, camera in ((3, "bad"), (4, "good"), (5, "worse")):
        world.ask(client, camera)
    world.run(1)
    assert world.told == [(3, "division by zero"), (5, "division by zero")]
    assert {drawn.client for drawn in world.drawn} == {3, 4}


def test_jobs_wait_for_images():
    world, done = World(), []

    def job():
        for i in range(3):
            done.append(i)
            yield

    world.ask()
    world.engine.add_job(job())
    world.engine.step()
    assert not done
    world.run(3)
    assert done == [0, 1, 2] and not world.engine.jobs


def test_what_is_trained_on_is_drawn_again_but_not_fine():
    world = World()
    world.ask()
    world.engine.fine = False
    world.run(2)
    assert [drawn.stage for drawn in world.drawn] == [MOVING, FULL] and world.engine.next() is None
    world.engine.refresh()
    due = world.engine.next()
    assert due == SHOWN
    world.run(1)
    assert [drawn.stage for drawn in world.drawn] == [MOVING, FULL, FULL] and world.engine.clients[0].stage == FINE


def trained(sharing: Sharing, frame: float, step: float, seconds: float, *kinds: str) -> list[float]:
    """Share of the time that drawing of each kind gets, where frames are due all the time."""
    now, drawing = 0.0, dict.fromkeys(kinds, 0.0)
    while now < seconds:
        now += step
        sharing.add_training(step, JOB in kinds)
        if kind := next((kind for kind in kinds if sharing.has_budget(kind)), None):
            now += frame
            drawing[kind] += frame
            sharing.add_time(kind, frame)
    return [seconds / now for seconds in drawing.values()]


@pytest.mark.parametrize("image, step", [(0.03, 0.003), (1.5, 0.02)])
def test_a_client_that_only_looks_on_costs_what_it_may_and_one_that_moves_half_of_the_time(image, step):
    sharing = Sharing()
    (share,) = trained(sharing, image, step, 300.0, SHOWN)
    assert 0.5 * (1 - sharing.training) < share < 1.1 * (1 - sharing.training) < 0.05
    assert trained(Sharing(), 0.06, 0.003, 60.0, AWAITED) == [pytest.approx(0.5, abs=0.03)]


# ---- whose requests are answered

LOCAL = own_names("127.0.0.1")


ALLOWED = [  # Host, Origin
    ("LOCALHOST:8080", "http://localhost:8080"),
    ("localhost:9000", "http://localhost:9000"),  # through ssh -L 9000:localhost:8080
    ("[::1]:8080", "http://[::1]:8080"),
    ("192.168.1.5:8080", None),
    ("localhost", "https://localhost"),  # behind a proxy
]
PROXIED = [  # the same, with --viewer.names viewer.example.org
    ("viewer.example.org", "https://viewer.example.org"),
    ("viewer.example.org:443", "https://viewer.example.org"),  # a proxy that adds the port
    ("127.0.0.1:8080", "https://VIEWER.example.org:8443"),  # one that puts the viewer's address in place of its name
]
REFUSED = [  # all of Host, all of Origin
    (["evil.example:8080"], ["http://evil.example:8080"]),  # its name leads here: DNS rebinding
    (["127.0.0.1.evil.example"], []),
    (["localhost:8080"], ["http://evil.example"]),  # a page of a foreign site
    (["localhost:8080"], ["http://localhost:8081"]),  # of another server on this computer
    (["localhost:8080"], ["null"]),
    (["localhost:8080"], ["http://localhost:8080", "http://evil.example"]),
    (["user@localhost:8080"], []),
    (["localhost:8080", "evil.example"], []),
    ([], []),
]


def test_its_own_page_is_answered_and_others_are_refused():
    for host, origin in ALLOWED:
        assert refusal([host], [origin] if origin else [], LOCAL) is None, host
    public = frozenset({"viewer.example.org"})
    names = own_names("127.0.0.1", public)
    for host, origin in PROXIED:
        assert refusal([host], [origin], names, public) is None, host
        assert "--viewer.names v" in refusal([host], [origin], LOCAL).lower()
    for hosts, origins in REFUSED:
        assert refusal(hosts, origins, LOCAL) and refusal(hosts, origins, names, public), (hosts, origins)
    assert "gpu7" in refusal(["gpu7:8080"], [], LOCAL)
    assert refusal(["gpu7:8080"], [], own_names("127.0.0.1", ("GPU7",))) is None  # --viewer.names


def test_the_page_loads_nothing_from_elsewhere():
    text = policy("localhost:8080")
    assert "default-src 'self'" in text and "ws://localhost:8080" in text and "http:" not in text and "*" not in text
    assert "wss://viewer.example.org:*" in policy("127.0.0.1:8080", ["viewer.example.org"])
