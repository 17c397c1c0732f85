# SPDX-License-Identifier: Apache-2.0
"""Scores on held-out views, with the protocol that makes them comparable."""

import json
import math
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import Lock
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from nerfkit import metrics
from nerfkit.config import Config
from nerfkit.data.cameras.cameras import Cameras
from nerfkit.data.images.batch import ImagePool
from nerfkit.data.images.pixels import background_color, blend
from nerfkit.data.scene import Views, format_sizes
from nerfkit.device import device_name
from nerfkit.errors import RunError, SceneError
from nerfkit.files import OwnFolder
from nerfkit.model.base import Model
from nerfkit.parallel import SINGLE_PROCESS, Processes
from nerfkit.rendering.image_renderer import ImageRenderer, in_eval_mode
from nerfkit.rendering.images import comparison_image, file_stems, png_bytes
from nerfkit.safe_io import printable
from nerfkit.training.run.files import METRICS, OTHER_SCORES, OWN_SCORES, score_name
from nerfkit.training.run.folder import RunFolder
from nerfkit.training.step.adjustments import in_light, moved, moved_cameras, radius_of, without_gradients
from nerfkit.version import versions

SCORES = ("psnr", "ssim", "lpips", *OTHER_SCORES)
STEPS, RAYS = 100, 1024  # of Adam on the pose of a view, and of random pixels in each
FIRST_RATE, LAST_RATE = 2e-3, 2e-5  # radians a step, about, and shares of the radius of data.box
LIGHT_RATE = 1e-2
DRAWN_AT_ONCE = 4  # comparison images
ALIGNED_DEFINITION = (
    f"psnr after {STEPS} steps of Adam on the view's pose, from the given one, each on {RAYS} random pixels of its own "
    "image, with the field frozen (as in BARF, arXiv:2104.06405)"
)


def evaluate(
    model: Model,
    config: Config,
    views: Views,
    state: dict[str, Any],
    folder: RunFolder,
    device: torch.device,
    other_scene: str = "",
    processes: Processes = SINGLE_PROCESS,
) -> dict[str, Any]:
    """Render every view of a split, compare it with the truth, and write scores and comparison images.

    Several processes share the views out; all return the scores, the first writes them: to the run folder for the test
    views, to eval/<split> for another split, to eval/on_<scene> for views of `other_scene`. `state` is the
    checkpoint's: steps and training time. Raises RunError for a score that is not finite; earlier scores are then
    unchanged. Where views were trained with a light or a pose of their own, PSNR is there with these fitted, too: see
    `other_scores`.
    """
    check_scorable(views)
    lpips = metrics.Lpips(config.eval.lpips, device) if config.eval.lpips else None
    images = views.load(progress_bar=processes.is_first)
    background = background_color(config.data.background, device)
    image_of = ImageRenderer(model, background)
    cameras = views.cameras.to(device)
    split = config.eval.split
    n_comparisons = len(cameras) if config.eval.comparison_images < 0 else config.eval.comparison_images
    stems = file_stems(views.names)
    compared = {view: f"{stems[view]}.png" for view in evenly_chosen(len(cameras), n_comparisons)}
    name = score_name(split, other_scene)
    comparisons = processes.rank0_first(lambda: _comparison_folder(folder, name, set(compared.values())))
    rows, n_ignored, n_pixels = [], 0, views.n_pixels()
    bar = tqdm(processes.shard(len(cameras)), desc="evaluating", unit="view", disable=not processes.is_first)

    def compare(view: int, truth: Tensor, render: Tensor, score: float, counts: Tensor | None) -> tuple[str, bytes]:
        with drawing:  # matplotlib is not made for threads
            image = comparison_image(truth, render, printable(views.names[view], 60), score, counts)
        return compared[view], png_bytes(image)

    drawing = Lock()
    with ThreadPoolExecutor(DRAWN_AT_ONCE, "comparisons") as artists:  # draw some, while the next views are rendered
        drawn: deque[Future[tuple[str, bytes]]] = deque()
        for view in bar:
            truth, rendered, counts = beside_truth(image_of, images, views, cameras, view)
            render = rendered["rgb"]  # [H, W, 3]
            n_ignored += 0 if counts is None else int((~counts).sum())
            others = other_scores(image_of, config, cameras, view, rendered, truth, counts)
            rows.append(scores(render, truth, counts, lpips, device) | others | {"view": views.names[view]})
            if broken := [name for name in SCORES if not math.isfinite(rows[-1].get(name) or 0.0)]:
                what = f"{split} view {views.names[view]}: {broken[0]} is {rows[-1][broken[0]]}"
                raise RunError(
                    f"{what}, as the model's colors are not finite. "
                    "No scores are written; is the checkpoint damaged, or did training diverge?"
                )
            bar.set_postfix_str(f"mean PSNR {means(rows)['psnr']:.2f} dB", refresh=False)
            if view in compared and comparisons is not None:
                if len(drawn) == DRAWN_AT_ONCE:
                    comparisons.write(*drawn.popleft().result())
                drawn.append(artists.submit(compare, view, truth, render, rows[-1]["psnr"], counts))
        for image in drawn:
            comparisons.write(*image.result())
    shares = processes.all_gather([rows, n_ignored])
    rows, n_ignored = in_order([rows for rows, _ in shares]), sum(n for _, n in shares)
    result = {
        **means(rows),
        "train_seconds": round(state["seconds"], 2),
        "steps": state["step"],
        "backend": state.get("backend", {}),  # of the training; that of the scoring is in the protocol
        "comparisons": 0 if comparisons is None else len(compared),
        "share_of_pixels": round(1 - n_ignored / n_pixels, 4),  # that are scored: not masked, and known to the lens
        "protocol": protocol(model, config, views, background, device, n_ignored),
        "views": rows,
    }
    if processes.is_first:
        owner = folder if name == OWN_SCORES else comparisons
        owner.write(METRICS, json.dumps(result, indent=1) + "\n")
    return result


def evenly_chosen(n: int, most: int) -> list[int]:
    """Numbers of `most` of n views, evenly spread from the first on; of all if there are not more."""
    most = min(most, n)
    return [i * n // most for i in range(most)]


def means(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Scores of a split from those of its views; None where views have none."""
    found = {}
    for name in SCORES:
        if name in rows[0]:
            values = [row[name] for row in rows]
            found[name] = None if None in values else sum(values) / len(values)
    return found | {"n_views": len(rows)}


def beside_truth(
    image_of: ImageRenderer, images: ImagePool, views: Views, cameras: Cameras, view: int
) -> tuple[Tensor, dict[str, Tensor], Tensor | None]:
    """Truth [H, W, 3], rendering and `pixels_that_count` of one view; `cameras` are on the model's device."""
    truth = blend(images.image(view), image_of.background.cpu())
    return truth, image_of(cameras, view), pixels_that_count(images, views, view)


def pixels_that_count(images: ImagePool, views: Views, view: int) -> Tensor | None:
    """Pixels [H, W] of one view that are scored, bool, or None for all; raises RunError if none is."""
    known, ignored = views.cameras.known_image(view), images.mask(view)
    counts = known
    if ignored is not None:
        counts = ~ignored if known is None else known & ~ignored
    if counts is not None and not counts.any():
        raise RunError(f"view {views.names[view]}: its mask leaves no pixel to be scored; leave the image out")
    return counts


def in_order(shares: list[list[Any]]) -> list[Any]:
    """Items that were dealt out to processes in turn, in their order before."""
    return [shares[i % len(shares)][i // len(shares)] for i in range(sum(map(len, shares)))]


def scores(
    render: Tensor, truth: Tensor, counts: Tensor | None, lpips: metrics.Lpips | None, device: torch.device
) -> dict[str, float | None]:
    """PSNR, SSIM and LPIPS of an image [H, W, 3], None without its network; where pixels do not count (`counts` [H, W]
    bool) PSNR leaves them out, and the others see the truth."""
    compared = render if counts is None else torch.where(counts[..., None], render, truth)
    distance = lpips(compared, truth) if lpips is not None else None
    similarity = metrics.ssim(compared, truth, device)
    return {"psnr": metrics.psnr(render, truth, counts), "ssim": similarity, "lpips": distance}


def other_scores(
    image_of: ImageRenderer,
    config: Config,
    cameras: Cameras,
    view: int,
    rendered: dict[str, Tensor],
    truth: Tensor,
    counts: Tensor | None,
) -> dict[str, float]:
    """PSNR of an image where what was learned of the training views alone is fitted to this one: names of OTHER_SCORES.

    `rendered` is rgb [H, W, 3] and opacity [H, W] at the given pose. With data.appearance colors are fitted, with
    data.pose_optimization the pose; `psnr` itself stays that without both.
    """
    background, found = image_of.background, {}
    refined, in_its_light = config.data.pose_optimization, config.data.appearance == "affine"
    shown = {"": rendered}
    if refined:
        camera = aligned(image_of.model, config, cameras, view, truth, counts, background)
        shown["_aligned"] = image_of(camera, 0)
        found["psnr_aligned"] = metrics.psnr(shown["_aligned"]["rgb"], truth, counts)
    for name, images in shown.items() if in_its_light else ():
        corrected = metrics.color_corrected(images["rgb"], images["opacity"], truth, background.cpu(), counts)
        found[f"psnr{name}_cc"] = metrics.psnr(corrected, truth, counts)
    return found


def aligned(
    model: Model, config: Config, cameras: Cameras, view: int, truth: Tensor, counts: Tensor | None, background: Tensor
) -> Cameras:
    """The camera of one view [1], from where a frozen field looks most like its image.

    Where poses are refined, field and given poses may differ by what refinement did: a score at the given pose of a
    test view then measures that pose, too. The search starts at the given pose: the mean of the corrections is 0.

    `truth` [H, W, 3] is over `background` [3]; `counts` [H, W] bool are the pixels that count, all if it is None. With
    data.appearance the light of the image is fitted beside the pose, and then forgotten. Global random numbers are not
    used. Source: BARF (arXiv:2104.06405), section 4: test-time photometric pose optimization.
    """
    device, unit = cameras.focal.device, radius_of(config.data.box)
    scale = torch.tensor([1.0] * 3 + [unit] * 3, device=device)  # of a move, in radians and model units
    width, _ = cameras.size(view)
    colors = truth.flatten(0, 1)
    pixels = torch.arange(len(colors)) if counts is None else counts.flatten().nonzero()[:, 0]  # [P] row by row
    generator = torch.Generator().manual_seed(view)
    move = torch.zeros(6, device=device, requires_grad=True)  # axis-angle, translation in radii
    light = torch.zeros(3, 4, device=device, requires_grad=config.data.appearance == "affine")
    optimizer = torch.optim.Adam([{"params": [move]}, {"params": [light], "lr": LIGHT_RATE}], FIRST_RATE, eps=1e-15)
    with frozen(model), in_eval_mode(model), torch.enable_grad():
        for step in range(STEPS):
            drawn = pixels[torch.randint(len(pixels), (RAYS,), generator=generator)]  # [R]
            pixel = drawn.to(device)
            rays = cameras.rays(torch.full_like(pixel, view), pixel % width, pixel // width)
            rotation, translation = (scale * move).expand(RAYS, 6).split(3, -1)  # [R, 3] each
            rendering = model(moved(rays, rotation, translation), background)
            color = in_light(rendering.color, rendering.opacity, background, light.expand(RAYS, 3, 4))
            if not rendering.color.requires_grad:
                raise without_gradients(model)
            optimizer.zero_grad()
            # The sum, not the mean: gradients in half precision would underflow.
            (color - colors[drawn].to(device)).square().sum().backward()
            fall = (LAST_RATE / FIRST_RATE) ** (step / STEPS)
            for group, rate in zip(optimizer.param_groups, (FIRST_RATE, LIGHT_RATE), strict=True):
                group["lr"] = rate * fall
            optimizer.step()
    return moved_cameras(cameras[[view]], (scale * move.detach())[None])


@contextmanager
def frozen(model: Model) -> Iterator[None]:
    trained = [p for p in model.parameters() if p.requires_grad]
    model.requires_grad_(False)
    try:
        yield
    finally:
        for p in trained:
            p.requires_grad_(True)


def check_scorable(views: Views) -> None:
    smallest = min(views.cameras.sizes(), key=min)
    if min(smallest) < (least := metrics.MIN_SIDE):
        raise SceneError(
            f"images of {smallest[0]}x{smallest[1]} pixels are too small to be scored: SSIM needs {least}x{least}; "
            "lower data.downscale if it is above 1, or leave scoring out with --eval.after_training false"
        )


def _comparison_folder(folder: RunFolder, name: str, files: set[str]) -> OwnFolder | None:
    """Where comparison images go, and scores but for OWN_SCORES; None, with a line, if somebody else's files are there
    and scores go elsewhere: they matter more."""
    try:
        if name != OWN_SCORES:
            folder.child(OWN_SCORES, "scores")  # its parent folder
        found = folder.child(name, "scores")
        earlier = {file for file in found.names if file.endswith(".png")} - files  # of another checkpoint
        if earlier:  # the first process has removed them: the others do not disturb it
            print(f"{len(earlier)} images of an earlier scoring are removed from {found.path}")
            found.clear(earlier)
        return found
    except RunError as error:
        if name != OWN_SCORES:
            raise
        print(f"no comparison images are written: {error}")
        return None


def protocol(
    model: Model, config: Config, views: Views, background: Tensor, device: torch.device, n_ignored: int = 0
) -> dict[str, Any]:
    """Everything that changes a score without changing the field."""
    has_light, has_pose = config.data.appearance == "affine", config.data.pose_optimization
    return {
        "split": config.eval.split,
        "background": background.tolist(),
        "size": format_sizes(views.cameras.sizes()),
        "lens": "as in the images" if views.cameras.lenses else "pinhole",
        "masks": config.data.masks,
        "ignored_pixels": n_ignored,  # by masks and lenses: not in PSNR, and as the truth in SSIM
        "downscale": config.data.downscale,
        "downscale_filter": "area, colors weighted by alpha",
        "color_space": "sRGB values as stored",
        "quantisation": "truth 8 bit, render float32 clamped to [0, 1]",
        "psnr": f"-10 log10(MSE) per view, at most {metrics.MAX_PSNR:g}, mean over views",
        **({"psnr_cc": metrics.CORRECTED_DEFINITION} if has_light else {}),
        **({"psnr_aligned": ALIGNED_DEFINITION} if has_pose else {}),
        **({"psnr_aligned_cc": "psnr_cc of the view that psnr_aligned is of"} if has_light and has_pose else {}),
        "ssim": metrics.SSIM_DEFINITION,
        "lpips": metrics.LPIPS_DEFINITION if config.eval.lpips else None,
        "versions": versions(),
        "device": device_name(device),
        "backend": {op: resolved.backend for op, resolved in model.resolved(device).items()},
    }
