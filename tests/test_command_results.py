# SPDX-License-Identifier: Apache-2.0
"""What the commands write, number by number. They are called in this process: each start of Python costs seconds."""

import json
import shlex
from base64 import b64decode
from dataclasses import replace
from html.parser import HTMLParser
from io import BytesIO
from pathlib import Path

import imageio.v2 as imageio
import numpy as np
import pytest
import torch
from PIL import Image

from nerfkit import load_run
from nerfkit.commands import demo, render, report, summary, train
from nerfkit.commands import eval as eval_command
from nerfkit.config import files as config_module
from nerfkit.data.readers.transforms.cameras_json import parse_cameras, read_json
from nerfkit.errors import RunError, SceneError, UserError
from nerfkit.files import OwnFolder
from nerfkit.rendering import paths
from nerfkit.rendering.images import preview
from nerfkit.training.run import checkpoint
from nerfkit.training.run.files import read_config, read_log
from tests.naming import assert_names, raises_mentioning
from tests.posed_captures import call
from tests.processes import run_main
from tests.toy_scene import BOX, STEPS

pytestmark = pytest.mark.slow

UNSCORED = ("--eval.after_training", "false")


def test_a_trained_run_is_complete(trained):
    state, config = checkpoint.load(trained)[1], read_config(trained)
    assert state["step"] == STEPS and state["seconds"] > 0
    assert [line["step"] for line in read_log(trained)] == list(range(3, 61, 3))
    assert all(1 < line["samples_per_ray"] < 100 < line["rays_per_second"] for line in read_log(trained))
    metrics = json.loads((trained / "metrics.json").read_text())
    assert metrics["steps"] == STEPS and metrics["n_views"] == 2 and 10 < metrics["psnr"] < 40
    assert metrics["train_seconds"] == pytest.approx(state["seconds"], abs=0.01)
    protocol, used = metrics["protocol"], set(load_run(trained, "cpu").model.used_ops)
    assert protocol["background"] == [1, 1, 1] and protocol["lens"] == "pinhole" and protocol["ignored_pixels"] == 0
    assert used <= set(metrics["backend"]) and used == set(protocol["backend"])
    assert [file.name for file in (trained / "eval").glob("*.png")] == ["r_0.png"]
    assert config.trainer.steps == STEPS and config.data.format == "nerf_synthetic", "found, not auto"
    assert (trained / "loss.png").stat().st_size > 1000 and (trained / "scene.json").exists()


def test_the_demo_needs_nothing_and_leaves_what_is_there(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("runs/demo").mkdir(parents=True)
    Path("runs/demo/mine.txt").write_text("mine")
    assert run_main(demo, "--steps", 30, "--frames", 2, "--device", "cpu") == 0
    said = capsys.readouterr().out
    video, image, scores = (Path("runs/demo_2", name) for name in ("render/orbit/rgb.mp4", "eval", "metrics.json"))
    assert_names(said, "50 to train on", "10 test views: PSNR", video, image, "view runs/demo_2", "inspect")
    assert "next:" not in said, "what comes next is said in the end, and once"
    labels = [line[:25] for line in said.splitlines() if line.startswith("  ") and "runs/demo_2" in line]
    assert len(set(labels)) == len(labels) > 4, "each file has words of its own"
    assert video.stat().st_size > 1000 and json.loads(scores.read_text())["psnr"] > 12
    assert len(said.split(" step")[0].splitlines()) < 8, "what was decided is in the run folder"
    assert_names(Path("runs/demo_2/setup.txt").read_text(), "grid_encode", "kind object", "sampling.cone_angle")
    assert [file.name for file in Path("runs/demo").iterdir()] == ["mine.txt"]
    with raises_mentioning(SceneError, "data/orrery", "checkout", "demo"):
        run_main(train, "--config", "orrery_cpu", "--out", "another")


def test_the_seed_decides(options, tmp_path, monkeypatch):
    """The same seed gives the same field, another one another; without --out the run goes where it belongs."""
    monkeypatch.chdir(tmp_path)
    tables = []
    few = ("--trainer.steps", 2, "--trainer.deterministic", "true", *UNSCORED)
    for name, seed in (("runs/scene", 3), ("b", 3), ("c", 4)):
        out = () if name == "runs/scene" else ("--out", name)
        call(train, "--config", options, "--seed", seed, *out, *few)
        tables.append(checkpoint.load(Path(name))[0]["model.grid.table"])
    assert torch.equal(tables[0], tables[1]) and not torch.equal(tables[0], tables[2])
    assert not Path("runs/scene/metrics.json").exists(), "scoring was left out"


def test_a_resumed_run_takes_the_steps_that_are_left(run, capsys):
    seconds, more = checkpoint.load(run)[1]["seconds"], ("--trainer.steps", STEPS + 3, *UNSCORED)
    call(train, "--resume", run, "--trainer.max_seconds", 600, *more)
    state = checkpoint.load(run)[1]
    assert state["step"] == STEPS + 3 and seconds < state["seconds"] < seconds + 60
    with pytest.raises(RunError):
        call(train, "--resume", run, "--trainer.steps", STEPS)
    capsys.readouterr()
    for limit, option in (
        (more, "--trainer.steps"),
        (("--trainer.steps", STEPS + 9, "--trainer.max_seconds", 1e-3, *UNSCORED), "--trainer.max_seconds"),
    ):
        call(train, "--resume", run, *limit)
        assert option in capsys.readouterr().out, "it is what ended the run"
        assert checkpoint.load(run)[1]["step"] == STEPS + 3


def test_scores_of_a_split_are_of_that_split(run, capsys):
    first = json.loads((run / "metrics.json").read_text())
    call(eval_command, run, "--split", "train", "--comparison_images", 3, "--device", "cpu")
    assert_names(capsys.readouterr().out, "for all of them", "--split train --comparison_images -1")
    metrics = json.loads((run / "eval" / "train" / "metrics.json").read_text())
    assert metrics["n_views"] == 12 and metrics["protocol"]["split"] == "train" and metrics["steps"] == STEPS
    assert len(list((run / "eval" / "train").glob("*.png"))) == 3
    assert json.loads((run / "metrics.json").read_text()) == first, "those of the test views stay"
    with raises_mentioning(UserError, "vgg.pth"):
        call(eval_command, run, "--device", "cpu", "--lpips", "vgg.pth")


@pytest.fixture(scope="module")
def frames(trained) -> Path:
    out = trained.parent / "frames"
    call(
        render, trained, "--frames", 3, "--size", 11, 9, "--fps", 5, "--outputs", "rgb,depth,opacity,normal", "--out",
        out, "--device", "cpu",
    )  # fmt: skip
    return out


NAMES = ("rgb", "depth_ray", "depth_z", "opacity", "normal")


def file_of(name: str, view: int, extension: str = "png") -> str:
    return f"{view:04d}.{extension}" if name == "rgb" else f"{name}_{view:04d}.{extension}"


def test_frames_are_what_the_model_sees_on_an_orbit(trained, frames):
    """Around the middle of the box, at the mean distance of the training cameras, up being up."""
    run = load_run(trained, "cpu")
    got = parse_cameras(read_json(frames / "path.json"), frames / "path.json")
    middle = torch.tensor(BOX).view(2, 3).mean(0)
    wanted = paths.orbit(run.cameras(), middle, torch.tensor([0.0, 0, 1]), 3)
    scale = 9 / 13  # the training images are 15x13
    center = scale * wanted.center + torch.tensor([(11 - 15 * scale) / 2, 0])
    wanted = replace(wanted, focal=scale * wanted.focal, center=center, width=11, height=9)
    for name in ("camera_to_world", "focal", "center"):
        torch.testing.assert_close(getattr(got, name), getattr(wanted, name), rtol=1e-5, atol=1e-5, msg=name)
    assert {file.name for file in frames.glob("legend*")} == {"legend_depth_ray.png", "legend_depth_z.png"}
    rendered = [run.render(wanted, view, ("rgb", "depth", "opacity", "normal")) for view in range(3)]
    depths = torch.cat([images["depth_ray"][images["opacity"] > 0.5] for images in rendered])
    nearly_all = torch.quantile(depths, torch.tensor([0.01, 0.99])).tolist()
    for view, images in enumerate(rendered):
        for name in NAMES:
            shown = imageio.imread(frames / file_of(name, view))
            assert shown.shape == (9, 11, 3)
            seen = preview(name, images, nearly_all)
            np.testing.assert_allclose(shown / 255, seen.numpy(), atol=0.02, err_msg=name)
            if name != "rgb":
                values = np.load(frames / file_of(name, view, "npz"))[name]
                assert values.dtype == np.float32
                np.testing.assert_allclose(values, images[name].numpy(), atol=1e-4, err_msg=name)


def test_a_video_has_the_frames_in_their_order(frames):
    """At their rate, padded to even sizes by their edge."""
    reader = imageio.get_reader(frames / "rgb.mp4")
    assert reader.get_meta_data()["fps"] == 5 and reader.get_meta_data()["size"] == (12, 10)
    shown = [np.asarray(image, dtype=float) for image in reader]
    images = [imageio.imread(frames / file_of("rgb", view)).astype(float) for view in range(3)]
    images = [np.pad(image, ((0, 1), (0, 1), (0, 0)), mode="edge") for image in images]
    assert len(shown) == 3
    distances = [[np.abs(a - b).mean() for b in images] for a in shown]
    assert [int(np.argmin(row)) for row in distances] == [0, 1, 2]


def test_frames_that_are_there_are_kept_on_request(run, monkeypatch):
    few = ("--frames", 2, "--size", 6, 5, "--device", "cpu")
    call(render, run, *few)
    folder = run / "render" / "orbit"
    assert len(list(folder.glob("0*.png"))) == 2
    whole = (folder / "0001.png").read_bytes()
    (folder / "0001.png").unlink()
    before = (folder / "0000.png").stat().st_mtime_ns
    call(render, run, *few, "--resume")
    assert (folder / "0001.png").read_bytes() == whole and (folder / "0000.png").stat().st_mtime_ns == before
    call(render, run, *few)
    assert (folder / "0000.png").stat().st_mtime_ns > before
    load_run = render.load_run
    state = {"step": STEPS, "seconds": 987.6}  # of another training, of as many steps
    monkeypatch.setattr(render, "load_run", lambda *given: replace(load_run(*given), state=state))
    with raises_mentioning(RunError, folder, "another training", "--overwrite", "--out"):
        call(render, run, *few, "--resume")
    with raises_mentioning(RunError, folder, f"2 frames of step {STEPS}", "3 frames", "--overwrite", "--out"):
        call(render, run, "--frames", 3, *few[2:])
    assert (folder / "0001.png").read_bytes() == whole, "out of date, but nobody asked"
    call(render, run, "--frames", 3, *few[2:], "--overwrite")
    assert len(list(folder.glob("0*.png"))) == 3


def test_a_crop_is_left_out_on_request_and_half_a_frame_is_rendered_again(run):
    few = ("--frames", 1, "--size", 6, 5, "--device", "cpu", "--outputs", "rgb,opacity")
    (run / "crop.json").write_text('{"min": [9, 9, 9], "max": [10, 10, 10], "frame": "model", "on": true}')
    call(render, run, *few)
    opacity, image = (run / "render" / "orbit" / f"opacity_0000.{kind}" for kind in ("npz", "png"))
    assert np.load(opacity)["opacity"].max() == 0, "nothing is in the crop"
    call(render, run, *few, "--crop", "none", "--overwrite")
    assert np.load(opacity)["opacity"].max() > 0.1
    image.unlink()
    call(render, run, *few, "--crop", "none", "--resume")
    assert image.exists()


def test_other_outputs_add_to_frames_and_other_frames_replace_them_on_request(run, tmp_path, monkeypatch):
    """In the working folder; nothing is beside it, and frames of another path do not pass for this path's."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    asked = (run, "--size", 6, 5, "--out", ".", "--device", "cpu")
    for outputs in ("opacity", "depth"):
        call(render, *asked, "--frames", 2, "--outputs", outputs)
    assert np.load("opacity_0001.npz")["opacity"].shape == (5, 6) and Path("depth_z_0001.npz").exists()
    assert Path("opacity.mp4").exists() and Path("depth_ray.mp4").exists()
    assert {path.name for path in tmp_path.iterdir()} == {"here", "run"}
    kept = OwnFolder(run / "render" / "video_1", "rendering")  # by the viewer
    kept.claim()
    kept.write("color.mp4", b"")
    for out in (".", kept.path):
        with raises_mentioning(RunError, "another rendering", "--overwrite", "--out"):
            call(render, *asked, "--frames", 3, "--out", out)
    assert Path("depth_z_0001.npz").exists() and kept.owns("color.mp4"), "nothing is lost by an accident"
    call(render, *asked, "--frames", 3, "--overwrite")
    assert not Path("depth_z_0001.npz").exists()


@pytest.mark.parametrize(
    "command, stopped, named", [(render, "in_files", "--resume"), (train, "evaluate", "nerfkit eval")]
)
def test_what_is_stopped_says_how_it_goes_on(options, run, tmp_path, monkeypatch, capsys, command, stopped, named):
    def stop(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, stopped, stop)
    monkeypatch.setattr("sys.argv", ["nerfkit"])
    asked = {render: (run, "--frames", 2), train: ("--config", options, "--trainer.steps", 2)}
    with pytest.raises(KeyboardInterrupt):
        call(command, *asked[command], "--out", tmp_path / "out")
    assert_names(capsys.readouterr().out, tmp_path / "out", named)
    assert command is render or load_run(tmp_path / "out", "cpu").state["step"] == 2, "what was trained is saved"


def test_a_spiral_is_around_the_middle_of_the_box_and_a_path_between_cameras_meets_the_held_out_ones(run):
    loaded, made = load_run(run, "cpu"), {}
    for path, n in ("spiral", 2), ("interpolate", 4):
        call(render, run, "--cameras", path, "--frames", n, "--size", 7, 5, "--device", "cpu")
        file = run / "render" / path / "path.json"
        made[path] = parse_cameras(read_json(file), file).camera_to_world
    middle = torch.tensor(BOX).view(2, 3).mean(0)
    wanted = paths.spiral(loaded.cameras(), middle, torch.tensor([0.0, 0, 1]), 2)
    torch.testing.assert_close(made["spiral"], wanted.camera_to_world, rtol=1e-5, atol=1e-5)
    held_out = loaded.cameras("test").camera_to_world
    torch.testing.assert_close(made["interpolate"][::2], held_out, rtol=0, atol=1e-5)


def test_a_summary_has_the_runs_numbers(run, capsys):
    call(render, run, "--frames", 1, "--size", 6, 5, "--device", "cpu")
    metrics = json.loads((run / "metrics.json").read_text())
    changed = {"psnr": 23.456, "ssim": 0.78912, "n_views": 17, "steps": 4321, "train_seconds": 98.6, "psnr_cc": 24.567}
    (run / "metrics.json").write_text(json.dumps(metrics | changed))
    call(summary, run)
    output = capsys.readouterr().out
    for number in ("PSNR 23.46", "24.57 dB", "SSIM 0.7891", "17 test", "15x13", "4321 steps", "99 s"):
        assert number in output
    assert all(str(run / name) in output for name in ("render/orbit/rgb.mp4", "eval", "loss.png"))
    (run / "metrics.json").unlink()  # then it tells how far the run is
    call(summary, run)
    output, last = capsys.readouterr().out, read_log(run)[-1]
    assert_names(output, f"step {STEPS}", f"{last['seconds']:.0f} s", f"loss {last['loss']:.3g}", f"eval {run}")


class Page(HTMLParser):
    """What a browser finds in a run's report."""

    def __init__(self, run: Path):
        super().__init__()
        self.tags, self.sources, self.texts, self.codes = set(), [], [], []
        self.feed((run / "report.html").read_text())

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.sources += [value for name, value in attributes if name in ("src", "href")]

    def handle_data(self, text):
        (self.codes if self.lasttag == "pre" and text.strip() else self.texts).append(text)


def test_a_report_has_scores_images_and_decisions_and_what_repeats_the_run(run, monkeypatch):
    monkeypatch.setattr("sys.argv", ["nerfkit"])
    call(render, run, "--frames", 3, "--size", 8, 6, "--outputs", "depth,rgb", "--device", "cpu")
    call(report, run)
    page = Page(run)
    images = [Image.open(BytesIO(b64decode(uri.removeprefix("data:image/webp;base64,")))) for uri in page.sources]
    turntable, comparison, curves, strip = images
    assert (turntable.n_frames, turntable.size) == (3, (8, 6))
    for image, file in ((comparison, "eval/r_0.png"), (curves, "loss.png"), (strip, "previews/strip.png")):
        assert image.size == Image.open(run / file).size
    for row in json.loads((run / "metrics.json").read_text())["views"]:
        assert {row["view"], f"{row['psnr']:.4f}", f"{row['ssim']:.4f}"} <= set(page.texts)
    for option, decision in json.loads((run / "decisions.json").read_text()).items():
        assert {option, decision["by"], decision["why"]} <= set(page.texts)
    assert f"Rendering: orbit, at step {STEPS}" in page.texts, "the training may go on"
    options, command = page.codes
    assert shlex.split(command)[:5] == ["nerfkit", "train", "SCENE", "--config", "again.toml"]
    assert str(run.parent) not in "".join([*page.texts, *page.codes]), "nobody else's business"
    (run.parent / "again.toml").write_text(options)
    again, before = config_module.merged([run.parent / "again.toml"]), read_config(run)
    assert again.trainer.steps == before.trainer.steps and again.sampling.near is None, "which the scene decided"


def test_a_report_shows_the_names_of_others_as_texts_and_is_small(run, tmp_path):
    evil, noise = "<script>alert('&amp;')<", np.random.default_rng(0).integers(0, 256, (700, 1000, 3), dtype=np.uint8)
    run = run.rename(tmp_path / evil)
    for name in ("metrics.json", "decisions.json", "config.toml"):
        text = (run / name).read_text().replace('loss = ""', f"loss = '''{evil}'''")
        (run / name).write_text(text.replace("r_1", evil).replace("size is small", evil).replace("pinhole", evil))
    compared = OwnFolder(run / "eval", "scores")
    compared.claim()
    for view in range(9):
        compared.write(f'{view}">{evil}.png', imageio.imwrite(imageio.RETURN_BYTES, noise, format="png"))
    call(report, run)
    page = Page(run)
    assert "script" not in page.tags and all(source.startswith("data:image/webp") for source in page.sources)
    assert page.texts.count(evil) >= 4 and evil in page.codes[0] and len(page.sources) == 10
    assert (run / "report.html").stat().st_size < 5_000_000


def test_a_device_or_backend_that_is_asked_for_is_taken_or_an_error(options, run, tmp_path):
    new = ("--config", options, "--out", tmp_path / "new")
    for command, words in ((render, (run,)), (eval_command, (run,)), (train, new)):
        for asked in (("--device", "meta"), ("--device", "cpu", "--ops.backend", "cuda")):
            with pytest.raises(UserError):
                call(command, *words, *asked)
    assert not (tmp_path / "new").exists()
