# SPDX-License-Identifier: Apache-2.0
"""What this installation supports, and what to type for what is missing."""

import platform
import sys
from importlib.util import find_spec

import torch

from nerfkit import ops
from nerfkit.commands.options import DoctorOptions
from nerfkit.ops import dispatch, native
from nerfkit.rendering.images import probe_video
from nerfkit.version import __version__

EXTRAS = (  # name, a module that it brings, what it is for
    ("viewer", "viser", "the viewer"),
    ("export", "skimage", "meshes"),
    ("export", "OpenEXR", "EXR images"),
    ("photos", "pycolmap", "poses of photos"),
    ("tensorboard", "tensorboard", "TensorBoard"),
)


def report() -> tuple[list[str], bool]:
    n_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    device = "cuda" if n_gpus else "cpu"
    lines = [
        f"nerfkit   {__version__}",
        f"Python    {platform.python_version()} at {sys.executable}",
        f"torch     {torch.__version__} (CUDA {torch.version.cuda or 'none: a CPU build'})",
    ]
    for index in range(n_gpus):
        properties = torch.cuda.get_device_properties(index)
        lines.append(
            f"device    cuda:{index} {properties.name}, {properties.total_memory / 2**30:.0f} GB, "
            f"compute capability {properties.major}.{properties.minor}"
        )
    if not n_gpus:
        lines.append(f"device    cpu, {torch.get_num_threads()} threads (no GPU that torch can use)")
    if built := native.what_was_built():
        lines.append(f"installed {built}")
    for library in native.libraries():
        lines += _library(library)
    broken = None
    if native.loaded("cuda"):
        ran, broken = _run_on_gpus()
        lines += ran
    no_video = probe_video()
    lines.append(f"ffmpeg    {f'videos are not written, frames are ({no_video})' if no_video else 'writes videos'}")
    for extra, module, what in EXTRAS:
        there = "installed" if find_spec(module) else f'missing; type pip install "nerfkit[{extra}]"'
        lines.append(f"extra     {what}: {there}")
    lines.append(f"ops       on {device}, ops.backend=auto:")
    for op in dispatch.OPS:
        resolved = dispatch.resolve(op, device)
        lines.append(f"          {op:<19} {resolved.backend:<6} ({resolved.reason})")
    works = broken or _trains(device)
    lines.append("verdict   " + (f"training works on {device}" if works is None else f"BROKEN: {works}"))
    return lines, works is None


def _library(library: native.Library) -> list[str]:
    """What loaded, what it was built for and with; what to type where it is missing."""
    to_build = f"          {native.how_to_build(library.backend)}"
    if not library.loaded:
        return [f"{library.path.name:<13} not used: {library.reason}", to_build]
    kind = "compute capability " if library.backend == "cuda" else ""
    info = native.build_info(library.backend)
    built_with = f"{info['compiler']}, headers of torch {info['torch']}"
    lines = [f"{library.path.name:<13} loaded, for {kind}{info['targets']}; {built_with}"]
    if library.backend == "cpp" and (faster := native.faster_library()):
        lines.append(f"          this CPU would be faster with {faster}. {native.how_to_build('cpp')}")
    if library.backend == "cuda" and torch.cuda.is_available():
        reasons = [native.why_not_on(index) for index in range(torch.cuda.device_count())]
        lines += [f"          NOT usable: {reason}. {native.how_to_build('cuda')}" for reason in reasons if reason]
    return lines


def _run_on_gpus() -> tuple[list[str], str | None]:
    """Run a small op on each GPU that the CUDA library is for; lines to print, and what is wrong, if anything is."""
    lines, broken = [], None
    for index in range(torch.cuda.device_count()):
        if native.why_not_on(index):
            continue  # said above
        error = _error_on(f"cuda:{index}")
        name = torch.cuda.get_device_name(index)
        said = f"FAILED: {error}" if error else "trilinear agrees with its definition"
        lines.append(f"          {said} on cuda:{index} {name}")
        broken = broken or error
    none = "it has code for none of them" if torch.cuda.device_count() else "there is none that torch can use"
    return lines or [f"          has run on no GPU: {none}"], broken


def _error_on(device: str) -> str | None:
    """What is wrong with a compiled op, against its definition on the CPU."""
    feats, points = torch.randn(5, 8, 2), torch.rand(5, 3)
    with dispatch.backend("torch"):
        expected = ops.trilinear(feats, points)
    try:
        with dispatch.backend("cuda" if device.startswith("cuda") else "cpp"):
            result = ops.trilinear(feats.to(device), points.to(device)).cpu()
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return None if torch.allclose(result, expected, atol=1e-5) else "trilinear differs from its definition"


def _trains(device: str) -> str | None:
    """Run the renderer forward and backward on a few rays; the reason if that fails."""
    from nerfkit.config import Config
    from nerfkit.data.cameras.cameras import Rays
    from nerfkit.model.renderer import Renderer

    config = Config()
    config.model.levels, config.model.log2_hashmap_size, config.model.max_resolution = 2, 10, 32
    config.sampling.occupancy_resolution, config.sampling.step_size = 8, 0.1
    try:
        renderer = Renderer(config).to(device)
        rays = Rays(torch.zeros(4, 3, device=device), torch.eye(3, device=device)[[0, 1, 2, 0]])
        renderer(rays, torch.ones(3, device=device)).color.sum().backward()
    except (RuntimeError, ValueError, TypeError) as error:
        return str(error)
    return None


def main(options: DoctorOptions) -> int:
    lines, works = report()
    print("\n".join(lines))
    return 0 if works else 1
