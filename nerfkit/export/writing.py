# SPDX-License-Identifier: Apache-2.0
"""Where exports go and how: never over what is there, unless asked, with a JSON that says how each was made."""

from __future__ import annotations

import importlib
import json
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from nerfkit.data.scene_transform.transform import SceneTransform
from nerfkit.errors import RunError, UserError
from nerfkit.files import MARKER, OwnFolder, atomic_write
from nerfkit.rendering.images import npz_bytes
from nerfkit.safe_io import printable
from nerfkit.training.run.folder import RunFolder

PACKAGES = {"skimage": "scikit-image", "fast_simplification": "fast-simplification"}  # where names differ
ABOUT = ".export.json"  # ending of the JSON beside an output
FINISHED, UNFINISHED = "export.json", "unfinished.json"  # in a folder of outputs
KEY = "of.json"  # in a folder of parts: what they are parts of
IMAGE_FORMATS = ("exr", "npz")
BESIDE = {"obj": ("mtl", "png")}  # endings of files that those of a format need
PLY_TYPES = {"f4": "float", "f8": "double", "u1": "uchar"}
DOUBLE_ABOVE = 1e3  # distances from the origin, in sizes, at which float32 has steps of 1/10,000 of the size

Arrays = dict[str, np.ndarray]


def optional(module: str, what: str) -> ModuleType:
    """A module of the extra `export`; raises UserError that says what to install for `what`."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and not module.startswith(error.name.split(".")[0]):
            raise  # it is there, but lacks one of its own
        package = module.split(".")[0]
        package = PACKAGES.get(package, package)
        raise UserError(f'{what} needs {package}, which is missing; type pip install "nerfkit[export]"') from None


class Output:
    """The files `<stem>.<format>` of one export and `<stem>.export.json`.

    They go where the user says with `out`, a folder, a file of one of the `known` endings or a name without, or else
    to RUN/export/`name`. If no `formats` are asked for, that ending decides, or else it is the first known one.
    """

    def __init__(self, run: Path, out: str, name: str, formats: tuple[str, ...], known: tuple[str, ...]):
        self.own: OwnFolder | None = None
        self.stem, self.formats = Path(out).expanduser(), formats or known[:1]
        if out.endswith(os.sep) or (out and self.stem.is_dir()):
            self.stem /= name
        ending = self.stem.suffix[1:].lower()
        if not out:
            self.own = RunFolder.existing(run).child("export", "export")
            self.stem = self.own.path / name
        elif ending in known:
            if formats and ending not in formats:
                asked = ",".join(formats)
                raise UserError(f"--out {printable(self.stem)} does not match --formats {asked}; leave out one of them")
            self.formats, self.stem = formats or (ending,), self.stem.with_suffix("")
        elif ending.isalpha():
            raise UserError(f"--out {printable(self.stem)}: cannot write .{ending}, only {', '.join(known)}")
        try:
            self.stem.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"--out: cannot create the folder {printable(self.stem.parent)}: {error.strerror}") from None
        self.about = self.stem.with_name(self.stem.name + ABOUT)

    def file(self, format: str) -> Path:
        return self.stem.with_name(f"{self.stem.name}.{format}")

    def check(self, overwrite: bool) -> None:
        """Raise RunError if a file is there already, before anything is computed."""
        endings = (ending for format in self.formats for ending in (format, *BESIDE.get(format, ())))
        for file in (*map(self.file, endings), self.about):
            if os.path.lexists(file) and (not overwrite or file.is_dir()):
                raise RunError(f"{printable(file)} exists; choose another --out, or replace it with --overwrite")

    def write(self, content: dict[str, bytes], about: dict[str, Any]) -> list[Path]:
        """Write the content of each ending and what there is to say about it; the files."""
        files = {self.file(ending): data for ending, data in content.items()}
        text = json.dumps({"files": [file.name for file in files], **about}, indent=1) + "\n"
        for file, data in {**files, self.about: text}.items():
            if self.own is not None:
                self.own.note(file.name)
            atomic_write(file, data)
        return list(files)


class Unfinished:
    """A folder whose files stay if Ctrl-C ends what writes them: the same command goes on."""

    folder: OwnFolder

    def go_on(self, name: str, key: dict[str, Any]) -> None:
        """Keep what is in the folder if its file `name` holds the key, else start anew."""
        text = json.dumps(key, sort_keys=True)
        file = self.folder.path / name
        if not self.folder.owns(name) or file.read_text(encoding="utf-8", errors="replace") != text:
            self.folder.clear()
            self.folder.write(name, text)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, kind: type | None, *exception: object) -> None:
        if kind is KeyboardInterrupt:
            print(f"\nwhat is done is kept in {printable(self.folder.path)}; the same command goes on from there")


class OutputFolder(Unfinished):
    """A folder of an export: new, empty, or of an unfinished one with the same key, which goes on; a finished one is
    replaced if `overwrite` says so. `export.json`, written last, says how it was made."""

    def __init__(self, run: Path, out: str, name: str, overwrite: bool, key: dict[str, Any]):
        if out:
            self.folder = OwnFolder(Path(out).expanduser(), "export")
            self.folder.claim()
        else:
            self.folder = RunFolder.existing(run).child("export", "export").child(name, "export")
        self.path = self.folder.path
        self.folder.lock()
        if self.folder.owns(FINISHED):
            if not overwrite:
                self.folder.unlock()
                where = printable(self.path)
                raise RunError(f"{where} holds an export; choose another --out, or replace it with --overwrite")
            self.folder.clear()
        self.go_on(UNFINISHED, key)

    def finish(self, about: dict[str, Any]) -> None:
        self.folder.write(FINISHED, json.dumps(about, indent=1) + "\n")
        (self.path / UNFINISHED).unlink(missing_ok=True)
        self.folder.unlock()


class EmptyError(UserError):
    """There is nothing to export."""


class Work(Unfinished):
    """The folder `<output>.work` with parts of a long export, until that is complete; those of another are deleted."""

    def __init__(self, output: Path, key: dict[str, Any]):
        self.folder = OwnFolder(output.with_name(f"{output.name}.work"), "unfinished export")
        self.folder.claim()
        self.folder.lock()
        self.go_on(KEY, key)

    def __exit__(self, kind: type | None, *exception: object) -> None:
        if kind in (None, EmptyError):  # the output is there, or nothing to be written
            self.folder.clear()
            (self.folder.path / MARKER).unlink(missing_ok=True)
            with suppress(OSError):  # a file of the user's is in it
                self.folder.path.rmdir()
        super().__exit__(kind)
        self.folder.unlock()

    def part(self, name: str, make: Callable[[], Arrays]) -> Arrays:
        """The arrays of a part: as an earlier attempt left them, or else made now and kept."""
        file = f"{name}.npz"
        if self.folder.owns(file):
            with np.load(self.folder.path / file, allow_pickle=False) as kept:
                return dict(kept)
        content, arrays = BytesIO(), make()
        np.savez(content, **arrays)
        self.folder.write(file, content.getvalue())
        return arrays


def ply_bytes(vertices: Arrays, faces: np.ndarray | None = None) -> bytes:
    """The content of a PLY file: columns [V] of the vertices by name, and triangles [F, 3]."""
    table = np.rec.fromarrays(list(vertices.values()), names=list(vertices))
    lines = ["ply", "format binary_little_endian 1.0", f"element vertex {len(table)}"]
    lines += [f"property {PLY_TYPES[column.dtype.str[1:]]} {name}" for name, column in vertices.items()]
    content = table.tobytes()
    if faces is not None:
        lines += [f"element face {len(faces)}", "property list uchar int vertex_indices"]
        rows = np.empty(len(faces), [("n", "u1"), ("vertices", "<i4", 3)])
        rows["n"], rows["vertices"] = 3, faces
        content += rows.tobytes()
    return "\n".join([*lines, "end_header", ""]).encode() + content


def columns(names: str, values: np.ndarray, kind: str) -> Arrays:
    """Columns of values [V, N] by their names, with spaces between."""
    return {name: values[:, index].astype(kind) for index, name in enumerate(names.split())}


def oriented_columns(positions: np.ndarray, normals: np.ndarray, colors: np.ndarray) -> Arrays:
    return {
        **columns("x y z", positions, "<f8" if needs_double(positions) else "<f4"),
        **columns("nx ny nz", normals, "<f4"),
        **columns("red green blue", colors, "|u1"),
    }


def needs_double(positions: np.ndarray, above: float = DOUBLE_ABOVE) -> bool:
    """Whether positions [V, 3] lie so far from the origin, for their extent, that float32 would move them."""
    size = float(np.ptp(positions, axis=0).max()) if len(positions) else 1.0
    return float(np.abs(positions).max(initial=0)) > above * max(size, 1e-30)


def in_files(images: dict[str, np.ndarray], transform: SceneTransform | None) -> dict[str, np.ndarray]:
    """Depths in the units, and normals along the axes, of the scene's files."""
    if transform is None:
        return images
    moved = dict(images)
    for name, values in images.items():
        if name.startswith("depth"):
            moved[name] = transform.distance_to_input(values).astype(np.float32)
        if name == "normal":
            moved[name] = transform.directions_to_input(values.astype(np.float64)).astype(np.float32)
    return moved


def image_bytes(images: dict[str, np.ndarray], format: str, depth: str) -> bytes:
    """The content of a file of one view, `depth` is what Z holds in an EXR file: depth_z or depth_median_z."""
    if format == "npz":
        return npz_bytes(**images)
    rgb, normal = linear(images["rgb"]), images["normal"]
    channels = {"A": images["opacity"], "Z": images[depth]}
    channels |= {name: rgb[..., index] for index, name in enumerate("RGB")}
    channels |= {f"N.{name}": normal[..., index] for index, name in enumerate("XYZ")}
    channels = {name: np.ascontiguousarray(values, dtype=np.float32) for name, values in channels.items()}
    exr = optional("OpenEXR", "an EXR file")
    header = {"compression": exr.ZIP_COMPRESSION, "type": exr.scanlineimage}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "image.exr"
        exr.File(header, channels).write(str(file))
        return file.read_bytes()


def linear(rgb: np.ndarray) -> np.ndarray:
    """sRGB in [0, 1] as linear light."""
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4).astype(np.float32)
