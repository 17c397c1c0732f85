# SPDX-License-Identifier: Apache-2.0
"""Images of a field, videos of them, and how near they are to photos."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import imageio_ffmpeg
import numpy as np
import pytest
import torch
import torchmetrics.functional.image.lpips
from torch import nn
from torchmetrics.functional.image import peak_signal_noise_ratio, structural_similarity_index_measure
from tqdm import tqdm

from nerfkit import ops
from nerfkit.data.load import load_scene
from nerfkit.errors import UserError
from nerfkit.metrics import CONVOLUTIONS, LPIPS_MIN_SIDE, Lpips, psnr, ssim
from nerfkit.model.renderer import Renderer
from nerfkit.rendering import images as video
from nerfkit.rendering.image_renderer import ImageRenderer, foretold
from nerfkit.rendering.images import color_bar, colorize, file_stems, png_bytes, preview, to_uint8
from nerfkit.training.evaluator import evaluate
from tests.naming import raises_mentioning
from tests.ops.harness import backend_params
from tests.trainers import make_trainer


@pytest.fixture
def setting(small_config, toy_scene):
    return Renderer(small_config), load_scene(str(toy_scene)).split("test").cameras


def test_views_have_files_of_different_names():
    assert file_stems(["a", "b.x"]) == ["a", "b.x"]
    assert file_stems(["a", "x" * 61, "a/b", "..", "\x1b[2J"]) == ["a", "0001", "0002", "0003", "0004"]
    assert file_stems(["0001", "x" * 61]) == ["0000", "0001"], "the second would be called as the first is"
    assert file_stems(["A", "a"]) == ["0000", "0001"], "one file where case is ignored"


@pytest.mark.parametrize("backend, device", [(None, "cpu"), *backend_params("compact_samples")])
def test_out_of_memory_halves_the_chunk(setting, monkeypatch, backend: str | None, device: str):
    """Also that of any backend's op, which asks for more than any machine has; other errors are not swallowed."""
    renderer, cameras = setting
    rays, t, none = torch.zeros(1, 3, device=device), torch.zeros(0, device=device), torch.zeros(2, device=device)
    image_of = ImageRenderer(renderer, torch.ones(3), chunk=512)
    wanted, plain, sizes = image_of(cameras, 0)["rgb"], image_of.rays, []

    def hungry(cameras, view, start, end, outputs):
        sizes.append(end - start)
        if end - start > 130 and backend is None:
            raise torch.OutOfMemoryError("CUDA out of memory")
        if end - start > 130:
            with ops.backend(backend):
                ops.compact_samples(rays, rays, t, t, none.long(), none.long(), 2**44)
        return plain(cameras, view, start, end, outputs)

    monkeypatch.setattr(image_of, "rays", hungry)
    torch.testing.assert_close(image_of(cameras, 0)["rgb"], wanted, rtol=0, atol=1e-5)
    assert sizes[:3] == [512, 256, 128] and max(sizes[3:]) == 128
    monkeypatch.setattr(image_of, "rays", lambda *a: (_ for _ in ()).throw(RuntimeError("shape mismatch")))
    with pytest.raises(RuntimeError, match="shape mismatch"):
        image_of(cameras, 0)


@pytest.mark.parametrize("seconds, said", [(0.5, ""), (30.0, "frames: about 4 minutes more\n")])
def test_what_takes_long_is_announced(seconds, said, monkeypatch, capsys):
    """By the second of ten frames: the first has to warm up."""
    now = iter([0.0, 100.0, *(100 + seconds * frame for frame in range(1, 20))])
    monkeypatch.setattr("nerfkit.rendering.image_renderer.time", SimpleNamespace(perf_counter=lambda: next(now)))
    assert list(foretold(tqdm(range(10), desc="frames"))) == list(range(10))
    assert capsys.readouterr().out == said


def test_a_video_of_panoramas_says_so(tmp_path):
    """To ffmpeg as to any player, and it has all of its frames."""
    for frame in range(3):
        (tmp_path / f"{frame}.png").write_bytes(video.png_bytes(torch.rand(32, 64, 3)))
    file = tmp_path / "v.mp4"
    file.write_bytes(video.as_panoramas(video.video_bytes(sorted(tmp_path.glob("*.png")), 10)))
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-i", str(file), "-f", "null", "-"]
    said = subprocess.run(command, capture_output=True, text=True).stderr
    assert "equirectangular" in said and "frame=    3" in said, said


def test_a_video_that_fails_keeps_the_frames(tmp_path, monkeypatch):
    frame = tmp_path / "0000.png"
    frame.write_bytes(png_bytes(torch.rand(8, 8, 3)))

    def no_writer(*arguments, **options):
        raise OSError("codec not found")

    monkeypatch.setattr(video.imageio, "get_writer", no_writer)
    assert "codec not found" in video.probe_video()
    with raises_mentioning(UserError, "codec not found", tmp_path):
        video.video_bytes([frame], 10)
    assert frame.exists()


def test_psnr_and_ssim_are_what_they_are_called():
    truth = torch.rand(40, 32, 3)
    render = (truth + 0.1 * torch.randn(40, 32, 3)).clamp(0, 1)
    assert psnr(truth, truth + 0.1) == pytest.approx(20, abs=1e-4)
    batch = [image.movedim(-1, 0)[None] for image in (render, truth)]
    assert ssim(render, truth) == pytest.approx(structural_similarity_index_measure(*batch, data_range=1.0).item())
    assert psnr(render, truth) == pytest.approx(peak_signal_noise_ratio(*batch, data_range=1.0).item())
    assert ssim(truth, truth) == pytest.approx(1, abs=1e-6)


@pytest.mark.cuda
def test_ssim_of_a_gpu_is_that_of_the_cpu():
    render, truth = torch.rand(60, 40, 3), torch.rand(60, 40, 3)
    assert ssim(render, truth, "cuda") == pytest.approx(ssim(render.double(), truth.double()), abs=1e-6)


def test_previews_fade_to_white_where_little_is_seen():
    opacity = torch.tensor([[0.0, 0.5, 1.0]])
    depth = torch.tensor([[0.0, 2.0, 3.0]])
    normal = torch.tensor([[[0.0, 0, 0], [1, 0, 0], [0, 0, -1]]])
    images = {"rgb": torch.rand(1, 3, 3), "opacity": opacity, "depth_ray": depth, "normal": normal}
    shown = {name: preview(name, images, (2.0, 4.0))[0] for name in images}
    assert torch.equal(shown["rgb"], images["rgb"][0])
    assert torch.equal(shown["opacity"], opacity[0][:, None].expand(3, 3))
    torch.testing.assert_close(shown["normal"], torch.tensor([[1.0, 1, 1], [1, 0.75, 0.75], [0.5, 0.5, 0]]))
    colors = colorize(depth, 2.0, 4.0)[0]
    torch.testing.assert_close(shown["depth_ray"], torch.stack([torch.ones(3), colors[1] / 2 + 0.5, colors[2]]))


def test_a_color_bar_has_the_colors_of_depths_with_the_farthest_on_top():
    bar, ends = to_uint8(color_bar("turbo", 1, 6, "depth [m]")), to_uint8(colorize(torch.tensor([1.0, 6.0]), 1, 6))
    nearest, farthest = (np.argwhere((bar == end).all(-1))[:, 0] for end in ends)
    assert farthest.max() + 100 < nearest.min()


# ---- LPIPS, with random weights in the file's place


CHANNELS = (3, 64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512)


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> Path:
    """A file as torchvision's, of random weights that keep features from dying out."""
    torch.manual_seed(0)
    state = {}
    for n, n_in, n_out in zip(CONVOLUTIONS, CHANNELS[:-1], CHANNELS[1:], strict=True):
        state[f"features.{n}.weight"] = torch.randn(n_out, n_in, 3, 3) * (2 / (9 * n_in)) ** 0.5
        state[f"features.{n}.bias"] = 0.1 * torch.randn(n_out)
    file = tmp_path_factory.mktemp("vgg") / "vgg16.pth"
    torch.save(state, file)
    return file


def images() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    truth = torch.rand(40, 33, 3)
    return truth, truth + 0.1 * torch.randn_like(truth)


def test_values_are_those_of_the_equation(weights):
    """VGG-16 as its authors draw it, pixel by pixel over lengths and weights."""
    blocks, layers = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512)), []
    widths, compared = iter(zip(CHANNELS[:-1], CHANNELS[1:], strict=True)), []
    for block in blocks:
        layers += [layer for _ in block for layer in (nn.Conv2d(*next(widths), 3, padding=1), nn.ReLU())]
        compared.append(len(layers) - 1)
        layers.append(nn.MaxPool2d(2))
    state = torch.load(weights, weights_only=True)
    features = nn.Sequential(*layers[:-1])
    features.load_state_dict({name.removeprefix("features."): value for name, value in state.items()})
    linear = Path(torchmetrics.functional.image.lpips.__file__).parent / "lpips_models" / "vgg.pth"
    fitted = torch.load(linear, map_location="cpu", weights_only=True)
    mean, deviation = torch.tensor([-0.030, -0.088, -0.188]), torch.tensor([0.458, 0.448, 0.450])
    truth, noisy = images()
    x, y = (((image * 2 - 1 - mean) / deviation).movedim(-1, 0)[None] for image in (truth, noisy))
    wanted = 0.0
    with torch.no_grad():
        for index, layer in enumerate(features):
            x, y = layer(x), layer(y)
            if index in compared:
                difference = x / x.norm(dim=1, keepdim=True) - y / y.norm(dim=1, keepdim=True)
                weight = fitted[f"lin{compared.index(index)}.model.1.weight"]
                wanted += (weight * difference.nan_to_num() ** 2).sum(1).mean().item()
    lpips = Lpips(weights)
    assert lpips(noisy, truth) == pytest.approx(wanted, rel=1e-4) and lpips(truth, truth) == 0
    assert lpips(truth[: LPIPS_MIN_SIDE - 1], truth[: LPIPS_MIN_SIDE - 1]) is None


def test_a_file_without_such_weights_is_refused(weights, tmp_path):
    (tmp_path / "text.pth").write_text("no weights")
    os.mkfifo(tmp_path / "pipe.pth")  # that nobody writes to
    for name in ("none.pth", "text.pth", "pipe.pth"):
        with raises_mentioning(UserError, "eval.lpips", tmp_path / name):
            Lpips(tmp_path / name)
    state = torch.load(weights, weights_only=True)
    torch.save({name: value for name, value in state.items() if "21" not in name}, tmp_path / "part.pth")
    with raises_mentioning(UserError, "eval.lpips", "features.21.weight"):
        Lpips(tmp_path / "part.pth")


@pytest.mark.parametrize("given", [False, True])
def test_scores_hold_it_or_null(weights, small_config, tmp_path, given: bool):
    trainer = make_trainer(small_config)
    trainer.save(tmp_path / "run")
    small_config.eval.lpips = str(weights) if given else ""
    views = load_scene(small_config.data.path).split("test")
    state = {"seconds": 1.0, "step": 0}
    metrics = evaluate(trainer.model, small_config, views, state, trainer.folder, torch.device("cpu"))
    written = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert written["lpips"] == metrics["lpips"]
    assert (metrics["lpips"] is not None) == given and (metrics["protocol"]["lpips"] is not None) == given
    if given:
        assert metrics["lpips"] == pytest.approx(sum(row["lpips"] for row in metrics["views"]) / len(views.files))
