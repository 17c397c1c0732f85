# SPDX-License-Identifier: Apache-2.0
"""Path tracing with Mitsuba 3: materials, scene, one view, PNG.

The functions take the module `mi` that `load_mitsuba` returns, since its content depends on the variant.
"""

from __future__ import annotations

import math
import os
import tempfile
from pathlib import Path
from types import ModuleType

import numpy as np
from PIL import Image

from orrery import OrreryError, textures
from orrery.cameras import CAMERA_ANGLE_X
from orrery.meshes import Mesh, merge
from orrery.model import Part

EXPOSURE = 0.5  # factor on the light of the studio
MAX_DEPTH = 8  # segments of a light path, camera to lamp
LLVM_MIN = 17  # Mitsuba refuses 14 itself; with 15 and 16 it aborts the process

# Complex index of refraction eta + i k of metals at red, green and blue.
REFRACTION = {
    "brass": ((0.444, 0.527, 1.094), (3.695, 2.765, 1.829)),
    "chromium": ((2.50, 2.50, 2.45), (3.90, 3.90, 3.85)),  # made neutral: it stands for steel
    "copper": ((0.200, 0.924, 1.102), (3.912, 2.452, 2.142)),
    "gold": ((0.143, 0.375, 1.442), (3.983, 2.386, 1.603)),
}


def load_mitsuba(variant: str) -> ModuleType:
    """Import Mitsuba and choose its variant, "llvm_ad_rgb" or "scalar_rgb"."""
    try:
        import mitsuba as mi
    except ModuleNotFoundError:
        raise OrreryError('mitsuba is missing; install it: pip install "nerfkit[orrery]"') from None
    hint = (
        f"{variant} needs the LLVM library, {LLVM_MIN} or later (on Debian: apt-get install libllvm19). "
        "Set DRJIT_LIBLLVM_PATH to its file libLLVM*.so, or use --variant scalar_rgb, which is slower"
    )
    try:
        mi.set_variant(variant)
    except ImportError as error:
        raise OrreryError(f"mitsuba cannot use {variant}: {error}\n{hint}") from None
    if variant.startswith("llvm"):
        import drjit

        found = drjit.detail.llvm_version()
        if found[0] < LLVM_MIN:
            raise OrreryError(f"mitsuba found LLVM {found[0]}, with which it would abort\n{hint}")
    return mi


def load_scene(mi: ModuleType, parts: list[Part]):
    """Mitsuba scene of the parts in the light of the studio."""
    studio = {
        "type": "envmap",
        "bitmap": mi.Bitmap(np.ascontiguousarray(textures.studio(), dtype=np.float32)),
        "scale": EXPOSURE,
        "to_world": mi.ScalarTransform4f().rotate([1, 0, 0], 90),  # the map has y up, the world z
    }
    return mitsuba_scene(mi, parts, {"light": studio}, materials(mi), MAX_DEPTH, hide_emitters=True)


def mitsuba_scene(
    mi: ModuleType,
    parts: list[Part],
    emitters: dict[str, dict],
    bsdfs: dict[str, dict],
    max_depth: int,
    hide_emitters: bool = False,
    lit: list[tuple[Mesh, dict]] | None = None,
):
    """Mitsuba scene of parts and emitters; `lit` are meshes with the emitters that they are."""
    integrator = {"type": "path", "max_depth": max_depth, "rr_depth": 6, "hide_emitters": hide_emitters}
    scene = {"type": "scene", "integrator": integrator, **emitters}
    for name, bsdf in bsdfs.items():
        scene[f"material_{name}"] = {**bsdf, "id": f"material_{name}"}
    groups: dict[tuple[str, bool], list[Mesh]] = {}
    for part in parts:
        groups.setdefault((part.material, part.mesh.normals is None), []).append(part.mesh)
    with tempfile.TemporaryDirectory() as folder:
        for k, ((material, flat), meshes) in enumerate(groups.items()):
            more = {"bsdf": {"type": "ref", "id": f"material_{material}"}}
            scene[f"shape{k}"] = _shape(Path(folder) / f"{k}.ply", merge(meshes), flat) | more
        for k, (mesh, more) in enumerate(lit or []):
            scene[f"lit{k}"] = _shape(Path(folder) / f"lit{k}.ply", mesh, True) | more
        return mi.load_dict(scene, parallel=False)


def _shape(file: Path, mesh: Mesh, flat: bool) -> dict:
    """A mesh as Mitsuba's, read from `file`, which is written."""
    write_ply(file, mesh)
    return {"type": "ply", "filename": str(file), "face_normals": flat}


def materials(mi: ModuleType) -> dict[str, dict]:
    """Mitsuba BSDF by the name that the parts use. Roughness is the alpha of the GGX distribution."""

    def rgb(value) -> dict:
        return {"type": "rgb", "value": value}

    def metal(element: str, roughness: float, tint=1.0) -> dict:
        eta, k = REFRACTION[element]
        surface = {"type": "roughconductor", "distribution": "ggx", "alpha": roughness}
        surface |= {"eta": rgb(list(eta)), "k": rgb(list(k)), "specular_reflectance": rgb(tint)}
        return {"type": "twosided", "surface": surface}

    def glossy(color: dict, roughness: float) -> dict:
        surface = {"type": "roughplastic", "distribution": "ggx", "alpha": roughness}
        surface |= {"diffuse_reflectance": color, "nonlinear": False}
        return {"type": "twosided", "surface": surface}

    def texture(image: np.ndarray) -> dict:
        bitmap = mi.Bitmap(np.ascontiguousarray(image, dtype=np.float32))
        return {"type": "bitmap", "bitmap": bitmap, "raw": True, "wrap_mode": "repeat"}  # raw: linear already

    return {
        "brass": metal("brass", 0.16, tint=[1.0, 0.94, 0.86]),
        "steel": metal("chromium", 0.20),
        "copper": metal("copper", 0.22),
        "gold": metal("gold", 0.12),
        "steel_ball": metal("chromium", 0.08),
        "wood": glossy(texture(textures.wood()), 0.12),
        "dial": glossy(texture(textures.calendar()), 0.15),
        "horizon": glossy(texture(textures.compass()), 0.15),
        "ring_a": glossy(rgb([0.62, 0.50, 0.34]), 0.15),
        "ring_b": glossy(rgb([0.82, 0.72, 0.52]), 0.15),
        "ivory": glossy(rgb([0.80, 0.76, 0.66]), 0.1),
        **{name: glossy(texture(image), 0.05) for name, image in textures.planets().items()},
    }


def write_ply(file: Path, mesh: Mesh) -> None:
    """Write a mesh as binary PLY with float32 attributes."""
    blocks = [("x y z", mesh.vertices), ("nx ny nz", mesh.normals), ("u v", mesh.uv)]
    columns = {}
    for names, block in blocks:
        if block is not None:
            columns |= dict(zip(names.split(), block.T, strict=True))
    vertices = np.empty(len(mesh.vertices), [(name, "<f4") for name in columns])
    for name, column in columns.items():
        vertices[name] = column
    faces = np.empty(len(mesh.faces), [("count", "u1"), ("indices", "<i4", 3)])
    faces["count"], faces["indices"] = 3, mesh.faces
    header = [
        "ply",
        "format binary_little_endian 1.0",
        f"element vertex {len(vertices)}",
        *(f"property float {name}" for name in columns),
        f"element face {len(faces)}",
        "property list uchar int vertex_indices",
        "end_header\n",
    ]
    file.write_bytes("\n".join(header).encode() + vertices.tobytes() + faces.tobytes())


def render(mi: ModuleType, scene, camera_to_world: np.ndarray, size: int, samples: int, seed: int) -> np.ndarray:
    """One view: linear RGB premultiplied by alpha, and alpha; float32 [size, size, 4].

    camera_to_world: [4, 4], OpenGL axes. samples: light paths per pixel. The same seed gives the same bits.
    """
    to_mitsuba = np.diag([-1.0, 1.0, -1.0, 1.0])  # its cameras look down +z, with +x to the left
    sensor = {
        "type": "perspective",
        "fov": math.degrees(CAMERA_ANGLE_X),
        "fov_axis": "x",
        "near_clip": 0.1,
        "far_clip": 100.0,
        "to_world": mi.ScalarTransform4f((camera_to_world @ to_mitsuba).tolist()),
        "sampler": {"type": "multijitter", "sample_count": samples},
        "film": {
            "type": "hdrfilm",
            "width": size,
            "height": size,
            "pixel_format": "rgba",
            "component_format": "float32",
            "rfilter": {"type": "box"},  # a pixel is the mean over its square
        },
    }
    return np.array(mi.render(scene, sensor=mi.load_dict(sensor), spp=samples, seed=seed))


def to_image(rgba: np.ndarray) -> Image.Image:
    """Linear premultiplied RGBA [H, W, 4] -> 8-bit sRGB with straight alpha."""
    alpha = np.clip(rgba[..., 3:], 0, 1)
    linear = np.clip(rgba[..., :3] / np.maximum(alpha, 1e-6), 0, 1)
    srgb = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    pixels = (np.concatenate([srgb, alpha], -1) * 255 + 0.5).astype(np.uint8)
    pixels[pixels[..., 3] == 0] = 0  # what nothing covers has no color; it also compresses better
    return Image.fromarray(pixels)


def save_png(rgba: np.ndarray, file: Path) -> None:
    """Write a rendered view; the file appears only when it is complete."""
    partial = file.with_suffix(".partial")
    to_image(rgba).save(partial, format="PNG", optimize=True)
    os.replace(partial, file)
