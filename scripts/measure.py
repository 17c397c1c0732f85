#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How far a run is from the truth that its scene ships: depth, mesh, floaters. Prints JSON.

    python scripts/measure.py depth runs/room
    python scripts/measure.py floaters runs/room
    python scripts/measure.py floaters runs/bonsai_0 --beside runs/bonsai_1 runs/bonsai_2
    python scripts/measure.py mesh runs/orrery/export/mesh.ply --data data/orrery

depth     |rendered - true| / true of the pixels of a split whose rays meet a surface
floaters  opacity of those rays nearer than half the true range, with samples from the camera on: there is only air.
          Of a scene without true ranges, nearer than half the median of what this run and those `beside` it, of other
          seeds, render at the pixel; of a run alone, nearer than half the median depth of the view
mesh      from points of the true surface that some training camera sees to the nearest point of the mesh, and from
          points of the mesh to the nearest point of the true surface, in percent of the longest side of the true
          surface's box; chamfer is the mean of both means. What lies outside of that box does not count.

SCENE/depth/<name>.npz, or SCENE/depth/<split>/<name>.npz, holds `depth_ray` [H, W] of a view: the distance along the
ray of each pixel's center to the first surface, in the units of the scene's files, infinite where there is none. Its
size is that at which the view is measured. data/orrery/README.md describes SCENE/surface.npz.
"""

from __future__ import annotations

import json
import sys
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
import tyro
from torch import Tensor
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from nerfkit.commands import status_of  # noqa: E402
from nerfkit.commands.eval import find_scene  # noqa: E402
from nerfkit.data.cameras.cameras import Cameras  # noqa: E402
from nerfkit.errors import RunError, SceneError  # noqa: E402
from nerfkit.files import atomic_write  # noqa: E402
from nerfkit.model.base import Model  # noqa: E402
from nerfkit.model.registry import build_model  # noqa: E402
from nerfkit.ops.packed import ray_indices, sum_rays  # noqa: E402
from nerfkit.rendering.image_renderer import ImageRenderer  # noqa: E402
from nerfkit.training.run.load import Run, load_run  # noqa: E402

GRID = 65535  # steps of a surface's vertices along the longest side of its box
POINTS = 200_000  # of a mesh, from which distances are measured
DENSE = 4_000_000  # points of a surface, the nearest of which name the triangles that are asked
NEAREST = 4  # of the dense points
MARGIN = 0.02  # of the longest side, around the true surface's box


@dataclass
class DepthOptions:
    """Compare a run's depth with true ranges."""

    run: Annotated[Path, tyro.conf.Positional]  # run folder
    data: str = ""  # folder of the scene, if it has moved
    split: str = "test"  # views to measure
    device: str = "auto"  # cpu, cuda, cuda:1, ...
    module: str = ""  # Python module that registers the run's kind of model, if it is one of your own
    out: str = ""  # JSON file to write, new; printed only if empty


@dataclass
class FloaterOptions(DepthOptions):
    """Measure what a run has in the air before surfaces."""

    beside: tuple[Path, ...] = ()  # runs of the same scene whose depth, with this run's, says where surfaces are


@dataclass
class MeshOptions:
    """Compare a mesh, in the frame of the scene's files, with the true surface."""

    mesh: Annotated[Path, tyro.conf.Positional]  # PLY or GLB file of nerfkit export
    data: Path = Path("data/orrery")  # folder of the scene
    out: str = ""  # JSON file to write, new; printed only if empty


KINDS = {"depth": DepthOptions, "floaters": FloaterOptions, "mesh": MeshOptions}


def main(arguments: list[str]) -> int:
    options = tyro.extras.subcommand_cli_from_dict(
        KINDS, args=arguments, prog="scripts/measure.py", use_underscores=True, description=__doc__
    )
    if options.out and Path(options.out).exists():
        raise RunError(f"--out {options.out} exists already; choose another file")
    if isinstance(options, MeshOptions):
        measured = {"mesh": str(options.mesh), **mesh_errors(options.mesh, options.data)}
    else:
        run = load_run(options.run, options.device, options.module)
        about = {"run": str(options.run), "split": options.split, "steps": run.state["step"]}
        views = views_of(run, options.data, options.split)
        if isinstance(options, FloaterOptions):
            others = [load_run(other, options.device, options.module) for other in options.beside]
            measured = about | floaters(run, views, others)
        else:
            measured = about | depth_errors(run, views)
    text = json.dumps(measured, indent=1)
    print(text)
    if options.out:
        atomic_write(Path(options.out), text.encode() + b"\n")
    return 0


class View(NamedTuple):
    """One view to measure, in the model's frame."""

    name: str
    cameras: Cameras  # of this view alone
    true: Tensor | None  # ranges [H, W] in the model's units, infinite where no surface is


def views_of(run: Run, data: str, split: str) -> list[View]:
    """The views of a split, as large as their true ranges, or as the scene's files where there are none."""
    run.config.data.downscale = 1.0
    views = find_scene(data, run.config, run.transform).split(split)
    folder, found = Path(data or run.config.data.path) / "depth", []
    for view, name in enumerate(views.names):
        cameras, files = views.cameras[[view]], (folder / split / f"{name}.npz", folder / f"{name}.npz")
        file = next((file for file in files if file.exists()), None)
        true = None if file is None else true_ranges(file, cameras.size(0))
        if true is not None:
            height, width = true.shape
            cameras = cameras if (width, height) == cameras.size(0) else cameras.resized(width, height)
            true = true if run.transform is None else true * run.transform.scale
        found.append(View(name, cameras, true))
    return found


def true_ranges(file: Path, size: tuple[int, int]) -> Tensor:
    """True ranges [H, W] float32 of a view whose image has `size`, in the files' units; raises SceneError."""
    try:
        with np.load(file) as content:
            ranges = content["depth_ray"].astype(np.float32)
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise SceneError(f"{file} is no NPZ file with 'depth_ray': {error}") from None
    same_shape = ranges.ndim == 2 and abs(ranges.shape[1] * size[1] - ranges.shape[0] * size[0]) <= max(size)
    if not same_shape or not (ranges > 0).all():  # nor NaN
        wanted = f"distances above 0 of an image shaped like {size[0]}x{size[1]}"
        raise SceneError(f"{file}: 'depth_ray' must be {wanted}, got {list(ranges.shape)}")
    return torch.from_numpy(ranges)


def depth_errors(run: Run, views: list[View]) -> dict[str, Any]:
    """Quantiles of relative errors over all pixels of all views, and of each view; and those in the run's box alone,
    for a sampler in a box has no samples on other surfaces."""
    image_of = ImageRenderer(run.model, run.background)
    low, high = torch.tensor(run.config.data.box).view(2, 3)
    errors, inside, beyond, rows = [], [], [], []
    for view in tqdm(views, desc="depth", unit="view"):
        if view.true is None:
            raise SceneError(f"{view.name} has no true ranges in the scene's folder 'depth'; see scripts/measure.py")
        images = image_of(view.cameras.to(run.device), 0, ("depth",))
        surface = view.true.isfinite()  # [H, W]
        errors.append(((images["depth_ray"] - view.true).abs() / view.true)[surface])
        beyond.append(images["opacity"][~surface])
        rays = view.cameras.image_rays(0)
        points = (rays.origins + rays.directions * view.true.flatten()[:, None]).view(*view.true.shape, 3)[surface]
        inside.append(((points >= low) & (points <= high)).all(-1))
        rows.append({"view": view.name, **quantiles(errors[-1])})
    together, opacity = torch.cat(errors), torch.cat(beyond)
    return {
        **quantiles(together),
        "inside_box": quantiles(together[torch.cat(inside)]),
        "without_surface": {"pixels": len(opacity), "mean_opacity": opacity.mean().item() if len(opacity) else None},
        "views": rows,
    }


def quantiles(errors: Tensor) -> dict[str, float | int | None]:
    """Median and 90 % quantile of relative errors [N], and how many there are."""
    if not len(errors):
        return {"median": None, "quantile_90": None, "pixels": 0}
    median, high = np.quantile(errors.numpy(), (0.5, 0.9))
    return {"median": round(float(median), 5), "quantile_90": round(float(high), 5), "pixels": len(errors)}


def floaters(run: Run, views: list[View], others: Sequence[Run] = ()) -> dict[str, Any]:
    """Mean opacity before half the range, of all rays and of each view's, and the share of rays where it is most."""
    model = build_model(replace(run.config, sampling=replace(run.config.sampling, near=0.0)))  # training has none there
    model.load_state_dict(run.model.state_dict())
    image_of, found, rows = ImageRenderer(model.to(run.device).eval(), run.background), [], []
    for view in tqdm(views, desc="floaters", unit="view"):
        cameras, true = view.cameras.to(run.device), view.true
        if true is None:
            depth = torch.stack([median_depth(one, cameras) for one in (run, *others)])  # [runs, H, W]
            true = depth.median(0).values if others else torch.full_like(depth[0], depth[depth.isfinite()].median())
        opacity = torch.cat(list(opacity_before(image_of, cameras, 0.5 * true.flatten())))
        found.append(opacity[true.flatten().isfinite()])
        rows.append({"view": view.name, "mean_opacity": round(found[-1].double().mean().item(), 6)})
    opacity = torch.cat(found)
    mean, share = opacity.double().mean().item(), (opacity > 0.5).double().mean().item()
    return {"mean_opacity": mean, "share_above_half": share, "rays": len(opacity), "views": rows}


def median_depth(run: Run, cameras: Cameras) -> Tensor:
    """Median depth along the rays of a view [H, W], infinite where nothing is."""
    depth = ImageRenderer(run.model, run.background)(cameras, 0, ("median_depth",))["depth_median_ray"]
    return torch.where(depth > 0, depth, torch.inf)


@torch.no_grad()
def opacity_before(image_of: ImageRenderer, cameras: Cameras, distance: Tensor) -> Iterator[Tensor]:
    """Of each ray of a view, the weights of samples nearer than `distance` [H * W] together, some rays at a time."""
    model: Model = image_of.model
    for start in range(0, len(distance), image_of.chunk):
        end = min(start + image_of.chunk, len(distance))
        rendering = model(cameras.image_rays(0, start, end)._replace(view=None), image_of.background)
        if rendering.weights is None or rendering.samples is None:
            raise RunError(f"{type(model).__name__} gives no samples with its rendering, and so no floaters")
        samples, before = rendering.samples, distance[start:end].to(image_of.background.device)
        ray = ray_indices(samples.ray_offsets, len(rendering.weights))  # [N]
        is_near = 0.5 * (samples.t_starts + samples.t_ends) < before[ray]
        yield sum_rays(rendering.weights * is_near, ray, end - start).float().cpu()


class Surface(NamedTuple):
    """Triangles."""

    vertices: np.ndarray  # [V, 3]
    faces: np.ndarray  # [F, 3]

    def sample(self, n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Points [n, 3] evenly over the area, and their triangles [n]."""
        import trimesh

        return trimesh.sample.sample_surface(trimesh.Trimesh(*self, process=False), n, seed=seed)

    def distance(self, points: np.ndarray, seed: int) -> np.ndarray:
        """Distance [P] from points [P, 3], to the triangles of the nearest of many points on them."""
        from scipy.spatial import cKDTree
        from trimesh.triangles import closest_point

        dense, face = self.sample(DENSE, seed)
        _, index = cKDTree(dense).query(points, NEAREST, workers=-1)
        nearest = [closest_point(self.vertices[self.faces[face[i]]], points) for i in index.T]
        return np.linalg.norm(np.array(nearest) - points, axis=-1).min(0)


def true_surface(data: Path) -> tuple[Surface, np.ndarray, np.ndarray]:
    """Triangles of a scene and points [P, 3] on them that training cameras see, in steps of GRID, and the matrix
    [4, 4] from there to the frame of the scene's files."""
    file = data / "surface.npz"
    if not file.exists():
        raise SceneError(f"{file} is missing: a mesh can be compared where the scene has its true surface")
    with np.load(file) as content:  # written as differences, which are small, along each row
        arrays = {name: np.cumsum(x, axis=1, dtype=x.dtype).T for name, x in content.items() if name != "to_files"}
        to_files = content["to_files"]
    return Surface(arrays["vertices"].astype(float), arrays["faces"]), arrays["visible"].astype(float), to_files


def mesh_errors(mesh: Path, data: Path) -> dict[str, Any]:
    """Distances both ways, in percent of the scene's size."""
    import trimesh

    truth, visible, to_files = true_surface(data)
    if not mesh.exists():
        raise RunError(f"{mesh} is missing; nerfkit export writes it")
    loaded = trimesh.load(mesh, process=False, force="mesh")
    in_files = np.c_[np.asarray(loaded.vertices, float), np.ones(len(loaded.vertices))]
    found = Surface((in_files @ np.linalg.inv(to_files).T)[:, :3], np.asarray(loaded.faces))
    points = found.sample(POINTS, 3)[0]
    low, high = truth.vertices.min(axis=0) - MARGIN * GRID, truth.vertices.max(axis=0) + MARGIN * GRID
    points = points[((points > low) & (points < high)).all(axis=1)]
    result = {"size": GRID * np.linalg.norm(to_files[:3, 0]), "faces": len(found.faces)}
    for name, distance in (
        ("truth_to_mesh", found.distance(visible, 2)),
        ("mesh_to_truth", truth.distance(points, 4)),
    ):
        result[f"{name}_percent"] = 100 * distance.mean() / GRID
        result[f"{name}_median_percent"] = 100 * np.median(distance) / GRID
        result[f"{name}_within_1_percent"] = (distance < 0.01 * GRID).mean()
    result["chamfer_percent"] = (result["truth_to_mesh_percent"] + result["mesh_to_truth_percent"]) / 2
    return {name: round(float(value), 5) if name != "faces" else value for name, value in result.items()}


if __name__ == "__main__":
    sys.exit(status_of(lambda: main(sys.argv[1:])))
