# SPDX-License-Identifier: Apache-2.0
"""`nerfkit export RUN mesh`."""

import math
import time
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch

from nerfkit.commands import options as cli
from nerfkit.commands.eval import find_scene
from nerfkit.commands.export.common import about, is_middle, keep, key, note_rest, opened, report, target_transform
from nerfkit.crop import Crop
from nerfkit.data.scene import Views as Images
from nerfkit.data.scene_transform.transform import corner_text
from nerfkit.device import check_memory
from nerfkit.errors import UserError
from nerfkit.export import mesh, scale, texture, writing
from nerfkit.export.grid import BLOCK, Grid, domain
from nerfkit.export.views import Views
from nerfkit.rendering.image_renderer import ImageRenderer, duration
from nerfkit.safe_io import chosen, printable
from nerfkit.training.run.load import Run

POINTS_OF_A_CELL = 20  # that are colored, of a square of cells: vertices and faces of a surface of a few sides
ON_THE_HOST = 2e-4  # seconds a square of a cell, whatever the device: triangles, loose parts, holes, unwrapping
POINTS_A_SECOND = {"cpu": 1e7, "cuda": 5e8}  # that a view colors, or of which it sees that it does not
MOST_GAPS = 0.05  # of what the photos show, without a warning, and without a look whether depth has more


def export_mesh(run: Run, options: cli.MeshOptions) -> None:
    formats = checked(run, options)
    output, cut, unit = opened(run, options, "mesh", formats, mesh.TEXTURED if options.texture else mesh.FORMATS)
    grid = Grid.over(domain(run.model, run.config, cut, run.transform), options.resolution)
    transform = scale.in_meters(target_transform(run, options), unit)
    length = 1.0 if transform is None else transform.distance_to_input(1.0)
    wide = f"{grid.cell * length:.3g} {'units' if unit is None else 'm'}"
    print(f"cells are {wide} wide; a smaller --crop or a larger --resolution makes them smaller")
    in_blocks = [grid.origin.tolist(), grid.cell, grid.cells, BLOCK]
    image_of = ImageRenderer(run.model, run.background)
    of = key(run, level=options.level, level_lengths=mesh.LENGTHS, grid=in_blocks, blocks="seen")
    with writing.Work(output.file(output.formats[0]), of) as work:
        views = Views(image_of, run.seeing_cameras(), work, grid, run.device)
        images = photos(run) if options.texture else None
        print(f"this takes about {duration(mesh_seconds(run, options, views))}")
        found = best_found(run, options, grid, cut, views)
        shape, share = finished(found.shape, options, views, images, grid)
        counts = {"vertices": len(shape.vertices), "faces": len(shape.faces), **found.counts}
        content = mesh.mesh_bytes(shape.in_files(transform), output.formats, output.stem.name)
        thresholds = {
            "cell": grid.cell * length,
            "from": found.source,
            "level": options.level,
            "truncation_cells": mesh.TRUNCATION,
            "seen_within_cells": mesh.TOLERANCE,
            "hidden_by_cells": [mesh.COVERS, mesh.BEHIND, mesh.LEAST_COSINE],
        }
        said = about(run, options, cut, unit, counts=counts, thresholds=thresholds, **share)
        report(output.write(content, said), counts)
        if found.gaps > MOST_GAPS:
            is_density = found.source == "density" and not compares(options)
            other = "--from depth or a lower --level" if is_density else "a lower --resolution or a longer training"
            print(f"warning: {found.lacking}; try {other}")
        keep(run, options, unit)


def checked(run: Run, options: cli.MeshOptions) -> tuple[str, ...]:
    """The formats of the options; raises UserError for what would fail after minutes of work."""
    size, known = options.texture, mesh.TEXTURED if options.texture else mesh.FORMATS
    asked = "--formats" if size else "--formats (without --texture)"
    formats = chosen(asked, options.formats, known) if options.formats else ()
    for module in ("trimesh", *["fast_simplification"] * bool(options.faces or size), *["xatlas"] * bool(size)):
        writing.optional(module, "this mesh")
    if 0 < size < texture.SMALLEST:
        raise UserError(f"--texture must be 0 or from {texture.SMALLEST} to 16384, got {size}")
    for device in {run.device, torch.device("cpu")}:  # both hold a part of it
        check_memory(size * size * texture.BYTES_PER_TEXEL, f"a --texture of {size} x {size}", device)
    return formats


class Found(NamedTuple):
    """A surface, cleaned."""

    source: str  # density or depth
    shape: mesh.Mesh
    counts: dict[str, int]
    gaps: float  # share of what the photos show that has no surface

    @property
    def lacking(self) -> str:
        return f"{self.gaps:.0%} of what the photos show has no surface in a mesh from {self.source}"


def compares(options: cli.MeshOptions) -> bool:
    """Whether depth is tried where density lacks much: not if the source is named, or a level, which is density's."""
    return options.source == "auto" and options.level == cli.LEVEL


def best_found(run: Run, options: cli.MeshOptions, grid: Grid, cut: Crop | None, views: Views) -> Found:
    """The surface of the source that the options name; of auto that from density, or from depth if that lacks less."""
    longest_side = np.ptp(np.array(run.config.data.box).reshape(2, 3), axis=0).max()
    density, depth = mesh.DensityField(run.model, options.level, longest_side, views), mesh.DepthField(views)
    sources = [density, depth] if compares(options) else [depth if options.source == "depth" else density]
    if sources[0] is density and density.is_empty(grid, cut):
        nothing = "the opacity is below --level everywhere"
        if cut is not None or not compares(options):
            raise writing.EmptyError(f"there is no surface: {nothing}; {where(run, options, cut, density)}")
        print(f"note: {nothing}, so the mesh is made as with --from depth")
        sources = [depth]
    views.render()
    shown = views.shown()
    if is_middle(run, cut):
        note_rest(run, options, shown)
    shown = shown[grid.inside(shown)]
    shown = shown if cut is None else shown[cut.inside(torch.from_numpy(shown)).numpy()]

    def of(source: mesh.DensityField | mesh.DepthField) -> Found:
        try:
            shape = mesh.cropped(mesh.surface(grid, source, views.work), cut)
            if not len(shape.faces):
                raise writing.EmptyError("no surface lies in the crop")
        except writing.EmptyError as error:
            raise writing.EmptyError(f"{error}; {where(run, options, cut, source)}") from None
        shape, counts = cleaned(shape, options, views, grid)
        return Found(source.name, shape, counts, mesh.gaps(shape, shown, grid.cell))

    found: list[Found] = []
    for source in sources:
        try:
            found.append(of(source))
        except UserError as error:
            if source is sources[-1] and not found:
                raise
            print(f"note: there is no mesh from {source.name}: {error}")
            continue
        if found[-1].gaps <= MOST_GAPS:
            break
        if source is not sources[-1]:
            print(f"note: {found[-1].lacking}; a mesh --from depth is tried as well, which about doubles the time")
    best = min(found, key=lambda one: one.gaps)
    if len(found) > 1:
        lacking = ", ".join(f"one from {one.source} lacks {one.gaps:.0%}" for one in found)
        print(f"note: the mesh is from {best.source}: {lacking}")
    return best


def cleaned(shape: mesh.Mesh, options: cli.MeshOptions, views: Views, grid: Grid) -> tuple[mesh.Mesh, dict[str, int]]:
    """With colors, without loose parts and unseen faces, with holes closed, and how many of these there were."""
    shape, n_small = mesh.without_small_parts(shape, options.min_part)
    if not len(shape.faces):
        raise UserError(f"every part has less than {options.min_part:g} of all faces; lower --min_part")
    shape, n_unseen = mesh.colored(shape, views, grid.cell, views.device)
    shape, n_shreds = mesh.without_small_parts(shape, options.min_part)  # seen faces alone may be loose
    shape, n_filled = mesh.filled(shape, options.holes * grid.cell)
    return shape, {"faces_in_holes": n_filled, "small_parts": n_small + n_shreds, "unseen_faces": n_unseen}


def finished(
    shape: mesh.Mesh, options: cli.MeshOptions, views: Views, images: Images | None, grid: Grid
) -> tuple[mesh.Mesh, dict[str, float]]:
    """Of as many faces as are asked for, and with a texture if one is, and the share of it that images gave."""
    size, most = options.texture, options.faces or len(shape.faces)
    if size and not options.faces:
        most = max(size * size // texture.TEXELS_OF_A_FACE, 4)
    shape = mesh.simplified(shape, most)
    if not len(shape.faces):
        raise UserError(f"simplifying to --faces {most} left no face; give a larger number")
    if not size:
        return shape, {}
    print(f"unwrapping {len(shape.faces)} faces")
    shape, share = texture.painted(texture.unwrapped(shape), size, views, images, grid.cell)
    return shape, {"share_of_texture_from_images": share if images is not None else 0.0}


def where(run: Run, options: cli.MeshOptions, cut: Crop | None, source: mesh.DensityField | mesh.DepthField) -> str:
    """Advice for a crop in which nothing is."""
    other = "take --from depth, lower --level, or " if source.name == "density" else ""
    transform = target_transform(run, options)
    eyes = run.cameras("train").positions.double().cpu().numpy()
    eyes = eyes if transform is None else transform.to_input(eyes)
    return (
        f"{other}{'give a --crop' if cut is None else f'change {cut.where}'}. The training cameras are within "
        f"{corner_text(np.stack([eyes.min(axis=0), eyes.max(axis=0)]))}, in the coordinates of --frame {options.frame}"
    )


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
