# SPDX-License-Identifier: Apache-2.0
"""`nerfkit export RUN mesh|points|cameras|depth|splats|web`: a run for other programs, in its files' frame."""

import dataclasses
import json
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from msgspec import to_builtins
from tqdm import tqdm

from nerfkit.commands import command_line
from nerfkit.commands import options as cli
from nerfkit.commands.eval import find_scene
from nerfkit.crop import Crop, active_crop, crop_of
from nerfkit.data.readers.transforms.writer import path_from
from nerfkit.data.scene import Views as Images
from nerfkit.data.scene_transform.transform import SceneTransform, corner_text
from nerfkit.device import check_memory
from nerfkit.errors import UserError
from nerfkit.export import cameras, mesh, points, scale, texture, webfield, writing
from nerfkit.export.distil import distilled
from nerfkit.export.grid import BLOCK, Grid, domain
from nerfkit.export.views import Views
from nerfkit.metrics import psnr
from nerfkit.model.base import Model
from nerfkit.rendering.image_renderer import ImageRenderer, duration
from nerfkit.rendering.images import file_stems
from nerfkit.safe_io import chosen, printable
from nerfkit.training.evaluator import beside_truth, evenly_chosen
from nerfkit.training.run.folder import RunFolder
from nerfkit.training.run.load import Run, load_run

POINTS_OF_A_CELL = 20  # that are colored, of a square of cells: vertices and faces of a surface of a few sides
ON_THE_HOST = 2e-4  # seconds a square of a cell, whatever the device: triangles, loose parts, holes, unwrapping
POINTS_A_SECOND = {"cpu": 1e7, "cuda": 5e8}  # that a view colors, or of which it sees that it does not
OUTER = 0.02  # of positions, along each axis, on each side of the crop that is named
USUAL_CELLS = 256  # for which it was measured how soft a surface may be
MOST_GAPS = 0.05  # of what the photos show, without a warning
COMPARED = 4  # views on which a page is compared with the run
THRESHOLDS = {"min_opacity": points.MIN_OPACITY, "depths_agree_within": points.AGREE, "other_views": points.OTHERS}


def main(options: cli.ExportOptions) -> int:
    if isinstance(options, cli.MeshOptions) and options.source == "depth" and options.level != cli.LEVEL:
        raise UserError(f"--level {options.level:g} is for --from density; leave it out with --from depth")
    run = load_run(options.run, options.device, options.module, options.ops)
    began = time.perf_counter()
    EXPORTS[type(options)](run, options)
    print(f"{time.perf_counter() - began:.1f} s")
    return 0


def target_transform(run: Run, options: cli.ExportOptions) -> SceneTransform | None:
    """The frame whose inverse leads to the wanted coordinates; None where these are the model's."""
    return run.transform if options.frame == "files" else None


def opened(
    run: Run, options: cli.GeometryOptions, name: str, formats: tuple[str, ...], known: tuple[str, ...]
) -> tuple[writing.Output, Crop | None, scale.Scale | None]:
    """Where an export of geometry goes, and the crop and scale of the options, or else the run's."""
    is_model = options.frame == "model"
    if is_model and (options.scale or options.measure):
        raise UserError("--scale and --measure need --frame files; leave out --frame model")
    output = writing.Output(run.folder, options.out, name, formats, known)
    output.check(options.overwrite)
    unit = None if is_model else scale.scale_of(run, options.scale, options.measure)
    if options.crop is None:
        cut = active_crop(run.folder, run.transform)
    else:
        cut = crop_of(options.crop[:3], options.crop[3:], options.frame, "--crop").placed(run.transform)
    if is_middle(run, cut) and name != "web":
        print("exporting the middle of the place (data.box of the run); --crop chooses another part")
    if unit is not None:
        why = "" if options.scale or options.measure else f", as {scale.SCALE} of the run says"
        print(f"in meters: a unit of the scene's files is {unit.meters_per_unit:g} m{why}")
    elif not is_model and name != "web":
        print(
            "note: lengths are in the unit of the scene's files, which may be any; for meters give --scale or --measure"
        )
    return output, cut, unit


def about(
    run: Run, options: cli.ExportOptions, cut: Crop | None, unit: scale.Scale | None = None, **more: Any
) -> dict[str, Any]:
    """What the JSON beside an output says; `cut` and `unit` are what it was made with, whatever the run has now."""
    matrix = np.eye(4) if run.transform is None else run.transform.matrix()
    given = dataclasses.asdict(options) | {"run": str(options.run)}
    return {
        "frame": options.frame,
        "files_to_model": matrix.tolist(),
        "crop": None if cut is None else json.loads(cut.to_json()),
        "scale": None if unit is None else to_builtins(unit),
        "checkpoint_step": run.state["step"],
        "options": {name: value for name, value in given.items() if name != "ops"},
        **more,
    }


def key(run: Run, **more: Any) -> dict[str, Any]:
    """What an unfinished export is of: it goes on only with the same."""
    return {"step": run.state["step"], "seconds": run.state["seconds"], "scene": run.scene.name, **more}


def where(run: Run, options: cli.GeometryOptions, cut: Crop | None) -> str:
    """Advice for a crop in which nothing is."""
    transform = target_transform(run, options)
    eyes = run.cameras("train").positions.double().cpu().numpy()
    eyes = eyes if transform is None else transform.to_input(eyes)
    return (
        f"{'give a --crop' if cut is None else f'change {cut.where}'}. The training cameras are within "
        f"{corner_text(np.stack([eyes.min(axis=0), eyes.max(axis=0)]))}, in the coordinates of --frame {options.frame}"
    )


def is_middle(run: Run, cut: Crop | None) -> bool:
    return cut is None and run.config.sampling.kind == "contracted"


def note_rest(run: Run, options: cli.GeometryOptions, shown: np.ndarray) -> None:
    """Say how much of the positions [P, 3] the middle of a place holds, and which crop would hold most of them."""

    def inside(box: np.ndarray) -> float:
        return ((shown >= box[0]) & (shown <= box[1])).all(axis=1).mean()

    if not len(shown):
        return
    in_middle, transform = inside(np.array(run.config.data.box).reshape(2, 3)), target_transform(run, options)
    shown = shown if transform is None else transform.to_input(shown)
    larger = np.quantile(shown, (OUTER, 1 - OUTER), axis=0)
    larger = larger.round(2 - math.floor(math.log10(np.ptp(larger, axis=0).max() or 1.0)))
    more = f"; --crop {' '.join(f'{x:.12g}' for x in larger.flatten())} has {inside(larger):.0%}"
    print(f"note: that is {in_middle:.0%} of what the photos show{more * bool(inside(larger) > in_middle)}")


def export_mesh(run: Run, options: cli.MeshOptions) -> None:
    known = mesh.TEXTURED if options.texture else mesh.FORMATS
    asked = "--formats" if options.texture else "--formats (without --texture)"
    formats = chosen(asked, options.formats, known) if options.formats else ()
    size = options.texture
    for module in ("trimesh", *["fast_simplification"] * bool(options.faces or size), *["xatlas"] * bool(size)):
        writing.optional(module, "this mesh")  # said before minutes of work
    if 0 < size < texture.SMALLEST:
        raise UserError(f"--texture must be 0 or from {texture.SMALLEST} to 16384, got {size}")
    for device in {run.device, torch.device("cpu")}:  # both hold a part of it
        check_memory(size * size * texture.BYTES_PER_TEXEL, f"a --texture of {size} x {size}", device)
    output, cut, unit = opened(run, options, "mesh", formats, known)
    grid = Grid.over(domain(run.model, run.config, cut, run.transform), options.resolution)
    transform = scale.in_meters(target_transform(run, options), unit)
    length = 1.0 if transform is None else transform.distance_to_input(1.0)
    wide = f"{grid.cell * length:.3g} {'units' if unit is None else 'm'}"
    print(f"cells are {wide} wide; a smaller --crop or a larger --resolution makes them smaller")
    in_blocks = [grid.origin.tolist(), grid.cell, grid.cells, BLOCK]
    settings = {"level": options.level, "grid": in_blocks, "blocks": "seen"}
    image_of = ImageRenderer(run.model, run.background)
    with writing.Work(output.file(output.formats[0]), key(run, **settings)) as work:
        views = Views(image_of, run.seeing_cameras(), work, grid, run.device)
        images = photos(run) if size else None
        print(f"this takes about {duration(mesh_seconds(run, options, views))}")
        is_auto = options.source == "auto" and options.level == cli.LEVEL
        is_density, density = options.source != "depth", mesh.DensityField(run.model, options.level, views)
        try:
            if is_density and density.is_empty(grid, cut):
                is_density = False
                if not is_auto or cut is not None:
                    raise writing.EmptyError("there is no surface: the opacity is below --level everywhere")
            views.render()
            shown = views.shown()
            if is_middle(run, cut):
                note_rest(run, options, shown)
            low, high = grid.origin, grid.origin + grid.cell * np.array(grid.cells)
            shown = shown[((shown > low) & (shown < high)).all(axis=1)]
            shown = shown if cut is None else shown[cut.inside(torch.from_numpy(shown)).numpy()]
            # Finer cells have less opacity: that does not make depth better.
            usual = max(grid.cell, float((high - low).max()) / USUAL_CELLS)
            is_density = is_density and not (is_auto and density.is_soft(shown, usual))
            if is_auto and not is_density:
                print("note: the opacity is below --level at much of the surface; so this is --from depth")
            source = density if is_density else mesh.DepthField(views)
            shape = mesh.cropped(mesh.surface(grid, source, work), cut)
        except writing.EmptyError as error:
            other = "take --from depth, lower --level, or " if is_density else ""
            raise writing.EmptyError(f"{error}; {other}{where(run, options, cut)}") from None
        if not len(shape.faces):
            raise writing.EmptyError(f"no surface lies in the crop; {where(run, options, cut)}")
        shape, n_small = mesh.without_small_parts(shape, options.min_part)
        if not len(shape.faces):
            raise UserError(f"every part has less than {options.min_part:g} of all faces; lower --min_part")
        shape, n_unseen = mesh.colored(shape, views, grid.cell, run.device)
        shape, n_shreds = mesh.without_small_parts(shape, options.min_part)  # seen faces alone may be loose
        shape, n_filled = mesh.filled(shape, options.holes * grid.cell)
        gaps = mesh.gaps(shape, shown, grid.cell)
        most = max(size * size // texture.TEXELS_OF_A_FACE, 4) if size else len(shape.faces)
        shape = mesh.simplified(shape, options.faces or most)
        if not len(shape.faces):
            raise UserError(f"no face is left of a mesh of --faces {options.faces or most}; give more")
        more = {}
        if size:
            print(f"unwrapping {len(shape.faces)} faces")
            shape = texture.unwrapped(shape)
            shape, share = texture.painted(shape, size, views, images, grid.cell)
            more["share_of_texture_from_images"] = share if images is not None else 0.0
        counts = {"vertices": len(shape.vertices), "faces": len(shape.faces), "faces_in_holes": n_filled}
        counts |= {"small_parts": n_small + n_shreds, "unseen_faces": n_unseen}
        content = mesh.mesh_bytes(shape.in_files(transform), output.formats, output.stem.name)
        thresholds = {
            "cell": grid.cell * length,
            "from": "density" if is_density else "depth",
            "level": options.level,
            "truncation_cells": mesh.TRUNCATION,
            "seen_within_cells": mesh.TOLERANCE,
            "hidden_by_cells": [mesh.COVERS, mesh.BEHIND, mesh.LEAST_COSINE],
        }
        said = about(run, options, cut, unit, counts=counts, thresholds=thresholds, **more)
        report(output.write(content, said), counts)
        if gaps > MOST_GAPS:
            other = "--from depth or a lower --level" if is_density else "a longer training or a lower --resolution"
            print(f"warning: {gaps:.0%} of what the photos show has no surface in this mesh; try {other}")
        keep(run, options, unit)


def photos(run: Run) -> Images | None:
    """The run's training images, as large as their files; None, and a note, if they are not at hand."""
    config = replace(run.config, data=replace(run.config.data, downscale=1.0))
    try:
        images, names = find_scene(None, config, run.transform).split("train"), run.scene.names("train")
        if missing := [name for name in names if name not in images.names]:
            raise UserError(f"the training image {printable(missing[0])} is no longer in the scene; put it back")
        images = images[[images.names.index(name) for name in names]]
    except (UserError, OSError) as error:
        print(f"note: the texture is painted with what the run renders: the scene is not at hand ({error})")
        return None
    stand = run.cameras("train").camera_to_world
    return replace(images, cameras=replace(images.cameras, camera_to_world=stand))


def mesh_seconds(run: Run, options: cli.MeshOptions, views: Views) -> float:
    """About how long a mesh takes: a few rays are rendered, the rest is counted."""
    sizes = [math.prod(camera.size(0)) for camera in views.cameras]
    for _ in range(2):  # the first call takes longer, the second is timed
        began = time.perf_counter()
        views.image_of.in_chunks(views.cameras[0], 0, sizes[0] // 3, 2 * sizes[0] // 3 + 1, ("median_depth",))
    seconds = (time.perf_counter() - began) * 3 * sum(sizes) / sizes[0]
    points = len(views) * (POINTS_OF_A_CELL * options.resolution**2 + options.texture**2)
    return seconds + points / POINTS_A_SECOND[run.device.type] + ON_THE_HOST * options.resolution**2


def export_cloud(run: Run, options: cli.PointsOptions | cli.SplatsOptions) -> None:
    name = "splats" if isinstance(options, cli.SplatsOptions) else "points"
    output, cut, unit = opened(run, options, name, ("ply",), ("ply",))
    image_of = ImageRenderer(run.model, run.background)
    box = domain(run.model, run.config, cut, run.transform)
    transform = scale.in_meters(target_transform(run, options), unit)
    if name == "splats":
        points.check_single(box if transform is None else transform.to_input(box))  # before a minute's work
    with writing.Work(output.file("ply"), key(run, kind="points")) as work:
        views = Views(image_of, run.seeing_cameras(), work, None, run.device)
        views.render()
        if is_middle(run, cut):
            note_rest(run, options, views.shown())
        cloud = points.gather(views, box, cut, options.count).in_files(transform)
        counts = {name: len(cloud)}
        if name == "splats":
            content = points.splat_bytes(cloud, options.sh_degree)
        else:
            content = cloud.ply()
            counts["pixels_averaged"] = int(cloud.counts.sum())
        said = about(run, options, cut, unit, counts=counts, thresholds=THRESHOLDS)
        report(output.write({"ply": content}, said), counts)
        keep(run, options, unit)


def export_cameras(run: Run, options: cli.CamerasOptions) -> None:
    formats = ("auto",) if options.formats == "auto" else chosen("--formats", options.formats, cameras.FORMATS)
    splits = tuple(run.scene.splits) if options.split == "all" else (options.split,)
    for split in splits:
        run.cameras(split)  # raises RunError if there is none
    from_run = cameras.capture_of(run, splits, target_transform(run, options))
    capture, folder, note = cameras.with_files(from_run, run, options.frame == "files" or run.transform is None)
    print(f"note: {note}")
    refused = cameras.refusals(capture)
    if asked := [format for format in formats if format in refused]:  # before anything is replaced
        raise UserError(f"--formats {asked[0]}: {refused[asked[0]]}; leave {asked[0]} out")
    of = key(run, kind="cameras", formats=formats)
    output = writing.OutputFolder(run.folder, options.out, "cameras", options.overwrite, of)
    if options.formats == "auto":
        for format, why in refused.items():
            print(f"note: {format} is left out: {why}")
        formats = tuple(format for format in cameras.FORMATS if format not in refused)
        if not formats:
            raise UserError("no format holds these cameras; the reasons are above")
    if "path" in formats and (loss := cameras.path_loss(capture)):
        print(f"note: {loss}")
    names = cameras.write(capture, formats, output, from_run)
    counts = {"cameras": len(capture.images), "points": 0 if capture.points is None else len(capture.points.positions)}
    of_images = None if folder is None else path_from(output.path, folder, "")
    output.finish(about(run, options, None, counts=counts, files=names, images=of_images, note=note))
    report([output.path / name for name in names], counts)
    if "colmap" in formats and folder is not None:
        print(f"  the images of the COLMAP model are in {folder}")


def export_depth(run: Run, options: cli.DepthOptions) -> None:
    formats = chosen("--formats", options.formats, writing.IMAGE_FORMATS)
    views, names = run.cameras(options.split), cameras.capture_of(run, (options.split,), None).images
    stems = file_stems(run.scene.names(options.split))
    asked = {"split": options.split, "formats": formats, "frame": options.frame, "depth": options.depth}
    of = key(run, kind="depth", named="as the views", **asked)  # by number before
    output = writing.OutputFolder(run.folder, options.out, f"depth_{options.split}", options.overwrite, of)
    image_of, on_device = ImageRenderer(run.model, run.background), views.to(run.device)
    depth = "depth_median_z" if options.depth == "median" else "depth_z"
    with output:
        for view in tqdm(range(len(views)), desc="views", unit="view"):
            files = {format: f"{stems[view]}.{format}" for format in formats}
            if all(output.folder.owns(file) for file in files.values()):
                continue
            rendered = image_of(on_device, view, ("rgb", "depth", "median_depth", "opacity", "normal"))
            arrays = writing.in_files(
                {name: value.numpy() for name, value in rendered.items()}, target_transform(run, options)
            )
            for format, file in files.items():
                output.folder.write(file, writing.image_bytes(arrays, format, depth))
    listed = [image.name for image in names]
    output.finish(about(run, options, None, counts={"views": len(views)}, views=listed))
    report([output.path], {"views": len(views)})


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
        print(f"the run's model does not fit: {why}. A smaller one is trained from it, for {options.seconds:g} s")
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
        return f"note: what the page costs is not known: the scene is not at hand ({error})"
    means = []
    for model in (run.model, shown):
        image_of = ImageRenderer(model, run.background)
        compared = [beside_truth(image_of, images, views, cameras, view) for view in range(len(cameras))]
        scores = [psnr(rendered["rgb"], truth, counts) for truth, rendered, counts in compared]
        means.append(sum(scores) / len(scores))
    of_run, of_page = means
    lost, on = round(of_run - of_page, 2) + 0.0, f"on {len(views.files)} {split} views"
    return f"the page costs {lost:.2f} dB: PSNR {of_page:.2f} dB, of the run's own model {of_run:.2f} dB, {on}"


def report(files: list[Path], counts: dict[str, int]) -> None:
    texts = {name: f"{number or 'no'} {name.replace('_', ' ')}" for name, number in counts.items()}
    texts |= {"bytes": f"{counts['bytes'] / 1e6:.2f} MB"} if "bytes" in counts else {}
    left_out = [texts.pop(name) for name in ("small_parts", "unseen_faces") if name in texts]
    print(", ".join(texts.values()) + (f"; left out: {', '.join(left_out)}" if left_out else ""))
    for file in files:
        print(f"  {file}")


def keep(run: Run, options: cli.GeometryOptions, unit: scale.Scale | None) -> None:
    """Keep the scale of the options, once what was made with it is written; a run that cannot be written loses that."""
    if unit is None or not (options.scale or options.measure):
        return
    try:
        scale.keep(RunFolder.existing(run.folder), unit)
        print(f"{scale.SCALE} of the run keeps the scale for later exports")
    except (UserError, OSError) as error:
        print(f"note: the run does not keep the scale, give it to later exports again: {error}")


EXPORTS = {
    cli.MeshOptions: export_mesh,
    cli.PointsOptions: export_cloud,
    cli.CamerasOptions: export_cameras,
    cli.DepthOptions: export_depth,
    cli.SplatsOptions: export_cloud,
    cli.WebOptions: export_web,
}
