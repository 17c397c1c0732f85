# SPDX-License-Identifier: Apache-2.0
"""Names of the files of a run, and its text files read: options, log, scores. Nothing here needs torch."""

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from os.path import exists  # which is False, too, for what cannot be a path
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from nerfkit import config as config_module
from nerfkit.config import Config
from nerfkit.config.files import read_toml
from nerfkit.errors import RunError
from nerfkit.safe_io import missing_hint, printable, read_json, read_regular

RUN_FORMAT = 1  # of all files of a run, in its scene.json; frozen: every nerfkit from 0.2.0 on reads it
CONFIG, SCENE, LOG, METRICS = "config.toml", "scene.json", "metrics.jsonl", "metrics.json"
NEWEST, PREVIOUS = "checkpoint.safetensors", "checkpoint.previous.safetensors"
PATHS = "paths"  # camera paths that were made by hand, in the frame of the scene's files
LOSS_PLOT, REPORT = "loss.png", "report.html"
SETUP = "setup.txt"
PREVIEWS, TENSORBOARD = "previews", "tensorboard"  # folders
OWN_SCORES = "eval"  # of the test views, whose scores lie in the run folder itself
STRIP, GIF = "strip.png", "progress.gif"  # in PREVIEWS
TEST_PSNR = "test_psnr"  # of a line of the log that scores held-out views
HELD_BACK_PSNR, DRAWN_PSNR = "held_back_psnr", "drawn_psnr"  # of a line with a check of views that count late
MUCH_WORSE, USELESS = 3.5, 20.0  # dB that the one is below the other, and below in all, where there is fog
MAX_LOG, MAX_SCENE = 2**32, 2**30  # bytes
MOST_PIXELS = 0.9  # share of them, below which a score says that it is of a part
OTHER_SCORES = {  # where training views had a light or pose of their own: what is fitted to each view before its PSNR
    "psnr_cc": "with its light fitted",
    "psnr_aligned": "with its pose fitted",
    "psnr_aligned_cc": "with pose and light fitted",
}


T = TypeVar("T")


def check_is_run(folder: Path) -> None:
    """Raise RunError for a folder that holds no run, or one of another format than `RUN_FORMAT`."""
    if not exists(folder):
        raise RunError(f"the run folder '{printable(folder)}' {missing_hint(folder)}")
    for name in (CONFIG, SCENE):
        if not exists(folder / name):
            raise RunError(f"'{printable(folder)}' is no run: it has no {name}; give a folder that nerfkit train wrote")
    found = read_scene_as(dict[str, Any], folder).get("format")
    if found != RUN_FORMAT:
        raise RunError(
            f"{printable(folder)} has {'no run format' if found is None else f'run format {printable(str(found))}'}; "
            f"this nerfkit reads format {RUN_FORMAT}: train again, or use the nerfkit that made it"
        )


def read_scene_as(kind: type[T], folder: Path) -> T:
    """What a run's scene.json holds; raises RunError if that is missing or broken."""
    content = read_regular(folder / SCENE, MAX_SCENE, "the run's scene", RunError)
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise RunError(f"{folder / SCENE} is not what nerfkit writes ({error}); was it edited?") from None


def read_config(folder: Path) -> Config:
    check_is_run(folder)
    return config_module.from_dict(read_toml(folder / CONFIG), printable(folder / CONFIG))


def has_checkpoint(folder: Path) -> bool:
    return any((folder / name).exists() for name in (NEWEST, PREVIOUS))


def read_log(folder: Path) -> list[dict[str, Any]]:
    return read_lines(folder, "loss")


def read_scores(folder: Path) -> list[dict[str, Any]]:
    return read_lines(folder, TEST_PSNR)


def warn_of_run(lines: list[dict[str, Any]]) -> None:
    """Warn if the last check of views that count late speaks against a training, and say what to do."""
    checks = [line for line in lines if {HELD_BACK_PSNR, DRAWN_PSNR} <= line.keys()]
    held_back, drawn = (checks[-1][key] if checks else 0.0 for key in (HELD_BACK_PSNR, DRAWN_PSNR))
    if drawn - held_back > MUCH_WORSE and held_back < USELESS:
        warnings.warn(
            f"two training views had a PSNR of at most {held_back:.1f} dB while they were held back, others at least "
            f"{drawn:.1f} dB: there is fog before the cameras, or poses are wrong, and other views will look wrong; "
            "train again with another --seed or a larger --sampling.near",
            stacklevel=2,
        )


def read_lines(folder: Path, *keys: str) -> list[dict[str, Any]]:
    """Lines of the log, of either kind, that have numbers as step, seconds and `keys`."""
    log = folder / LOG
    content = read_regular(log, MAX_LOG, "the log", RunError) if log.exists() else b""
    lines = []
    for text in content.decode(errors="replace").splitlines():
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(line, dict) and all(_is_number(line.get(key)) for key in ("step", "seconds", *keys)):
            lines.append({key: value for key, value in line.items() if _is_number(value)})
    return lines


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and abs(value) < 1e300  # NaN is not


def score_name(split: str, other_scene: str = "") -> str:
    """Folder of a split's comparison images, in the run folder; its scores lie beside them, but for OWN_SCORES."""
    if other_scene:
        return f"{OWN_SCORES}/on_{other_scene}/{split}"
    return OWN_SCORES if split == "test" else f"{OWN_SCORES}/{split}"


def scores_file(folder: Path, split: str, other_scene: str = "") -> Path:
    name = score_name(split, other_scene)
    return folder / METRICS if name == OWN_SCORES else folder / name / METRICS


def in_one_line(metrics: dict[str, Any]) -> str:
    """The scores of `evaluate` for people."""
    lpips = "" if metrics["lpips"] is None else f", LPIPS {metrics['lpips']:.4f}"
    others = "".join(f", {metrics[name]:.2f} dB {text}" for name, text in OTHER_SCORES.items() if name in metrics)
    share = metrics.get("share_of_pixels", 1)
    of = "" if share > MOST_PIXELS else f" of the {share:.0%} of pixels that count"
    return f"PSNR {metrics['psnr']:.2f} dB{of}{others}, SSIM {metrics['ssim']:.4f}{lpips}"


@contextmanager
def metrics_in(file: Path) -> Iterator[dict[str, Any]]:
    """The scores in a file; raises RunError if that, or what the block makes of it, shows that it was edited."""
    try:
        yield read_json(file, RunError, "the scores")
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise RunError(f"{file} is not what nerfkit writes ({error}); score the run again") from None


def of_scores(file: Path) -> str:
    """The scores in a file, and after which training, in a line."""
    with metrics_in(file) as metrics:
        protocol = metrics["protocol"]
        return (
            f"{in_one_line({'lpips': None} | metrics)} on {metrics['n_views']} {protocol['split']} "
            f"views of {protocol['size']}, after {metrics['steps']} steps in {metrics['train_seconds']:.0f} s"
        )
