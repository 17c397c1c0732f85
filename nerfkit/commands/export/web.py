# SPDX-License-Identifier: Apache-2.0
"""`nerfkit export RUN web`."""

from nerfkit.commands import command_line
from nerfkit.commands import options as cli
from nerfkit.commands.eval import find_scene
from nerfkit.commands.export.common import about, keep, opened, report
from nerfkit.errors import UserError
from nerfkit.export import scale, webfield
from nerfkit.export.distil import distilled
from nerfkit.metrics import psnr
from nerfkit.model.base import Model
from nerfkit.rendering.image_renderer import ImageRenderer
from nerfkit.training.evaluator import beside_truth, evenly_chosen
from nerfkit.training.run.load import Run

COMPARED = 4  # views on which a page is compared with the run


def export_web(run: Run, options: cli.WebOptions) -> None:
    """Write a page, of the run's model or of a smaller one that has learned from it."""
    output, cut, unit = opened(run, options, "web", ("html",), ("html",))
    scene = {
        "name": run.scene.name,
        "up": list(run.scene.up),
        "background": run.background.tolist(),
        "view": webfield.start_view(run.cameras("train"), run.scene.up, run.config.data.box),
        "crop": None if cut is None else cut.to_cube().flatten().tolist(),
        "meters": 0.0 if unit is None else scale.in_meters(run.transform, unit).distance_to_input(1.0),
    }
    shown, why, seen_by = run, webfield.why_not(run.model), run.seeing_cameras("train")
    content = b"" if why else webfield.page(run.model, seen_by, scene)
    if len(content) > options.size * 1e6:
        why = f"its page would have {len(content) / 1e6:.1f} MB, --size is {options.size:g}"
    if why:
        print(f"the run's model does not fit: {why}. A smaller one learns what it renders, for {options.seconds:g} s")
        shown = distilled(run, options.size, options.seconds)
        content = webfield.page(shown.model, seen_by, scene)
        print(f"the smaller one is a run of its own; to score it: {command_line('eval', shown.folder)}")
        if len(content) > options.size * 1e6:
            print(f"note: its page has {len(content) / 1e6:.2f} MB; no model fits into --size {options.size:g}")
    counts = {"bytes": len(content)}
    report(output.write({"html": content}, about(run, options, cut, unit, counts=counts)), counts)
    keep(run, options, unit)
    print(web_cost(run, webfield.as_shown(shown.model)))


def web_cost(run: Run, shown: Model) -> str:
    """What a page's model loses against the run's, by the scene's images where they are at hand."""
    try:
        scene = find_scene(None, run.config, run.transform)
        split = run.config.eval.split if run.config.eval.split in scene.views else "train"
        views = scene.split(split)[evenly_chosen(len(scene.split(split).files), COMPARED)]
        images, cameras = views.load(progress_bar=False), views.cameras.to(run.device)
    except (UserError, OSError) as error:
        return f"note: how much quality the page loses is not known, as the scene's images were not read ({error})"
    means = []
    for model in (run.model, shown):
        image_of = ImageRenderer(model, run.background)
        compared = [beside_truth(image_of, images, views, cameras, view) for view in range(len(cameras))]
        scores = [psnr(rendered["rgb"], truth, counts) for truth, rendered, counts in compared]
        means.append(sum(scores) / len(scores))
    of_run, of_page = means
    lost, on = round(of_run - of_page, 2) + 0.0, f"on {len(views.files)} {split} views"
    return f"the page costs {lost:.2f} dB: PSNR {of_page:.2f} dB, of the run's own model {of_run:.2f} dB, {on}"
