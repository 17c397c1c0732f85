# SPDX-License-Identifier: Apache-2.0
"""The toy scene as a capture: through given lenses, in files of every format, with masks; trainings of it; and
captures that no one would take on purpose."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image
from scipy.spatial.transform import Rotation

from nerfkit.data import ply
from nerfkit.data.cameras.lens import Lens
from nerfkit.data.capture import Capture, Points, PosedImage
from nerfkit.data.readers.colmap.writer import write_model
from nerfkit.data.readers.transforms.writer import write_transforms
from tests.captures import as_binary
from tests.processes import run_main
from tests.toy_scene import drawn_eye, look_at, plain_intrinsics, trace_directions

SIZE = (26, 22)
FOCAL = plain_intrinsics(*SIZE)["fl_x"]
PINHOLE = Lens("PINHOLE", (FOCAL, FOCAL, 13.0, 11.0), *SIZE)
WIDE = Lens("OPENCV_FISHEYE", (15.0, 15.0, 19.0, 17.0, 0.0, 0.0, 0.0, 0.0), 40, 34)  # bends straight lines by pixels
LARGE = PINHOLE.resized(52, 44)
BOX = (-0.8, -0.8, -0.8, 0.8, 0.8, 0.8)
STATE = {"seconds": 1.0, "step": 1, "backend": {}}


def poses(count: int, distance: float = 3.0) -> list[np.ndarray]:
    generator = np.random.default_rng(0)
    return [look_at(drawn_eye(generator) * distance * generator.uniform(0.9, 1.1)) for _ in range(count)]


def capture_in(folder: Path, lenses: list[Lens], distance: float = 3.0) -> Capture:
    """The toy scene through each of `lenses`; its images are written to `folder`/images."""
    images = []
    (folder / "images").mkdir(parents=True)
    for index, (lens, pose) in enumerate(zip(lenses, poses(len(lenses), distance), strict=True)):
        local = lens.direction_map().directions.unflatten(0, (lens.height, lens.width))
        name = f"r_{index:02d}.png"
        Image.fromarray(trace_directions(pose, local.double().numpy())).save(folder / "images" / name)
        images.append(PosedImage(name, folder / "images" / name, pose[:3], lens))
    return Capture("toy", "test", images)


def colmap_in(folder: Path, lenses: list[Lens], **options) -> Path:
    write_colmap(folder, capture_in(folder, lenses, **options))
    return folder


def write_colmap(folder: Path, capture: Capture) -> None:
    write_model(folder / "sparse" / "0", capture)
    as_binary(folder / "sparse" / "0")


def write_synthetic(folder: Path, capture: Capture) -> None:
    frames = []
    for image in capture.images:
        (fl_x, fl_y), (cx, cy) = image.lens.focal, image.lens.center
        pose = [*image.camera_to_world.tolist(), [0, 0, 0, 1]]
        values = {"fl_x": fl_x, "fl_y": fl_y, "cx": cx, "cy": cy, "transform_matrix": pose}
        frames.append({"file_path": f"images/{image.name}", **values})
    (folder / "transforms_train.json").write_text(json.dumps({"frames": frames}))


def write_nerfstudio(folder: Path, capture: Capture) -> None:
    images = [replace(image, name=f"images/{image.name}") for image in capture.images]
    write_transforms(folder / "transforms.json", replace(capture, images=images, up=(0.0, 0.0, 1.0)))


def write_llff(folder: Path, capture: Capture) -> None:
    rows = []
    for image in capture.images:
        right, up, back, position = image.camera_to_world.T
        size = [image.lens.height, image.lens.width, image.lens.focal[0]]
        rows.append([*np.stack([-up, right, back, position, size], axis=1).ravel(), 2.0, 4.0])
    np.save(folder / "poses_bounds.npy", np.array(rows))


def write_polycam(folder: Path, capture: Capture) -> None:
    """With poses from before their correction, beside."""
    keyframes = folder / "keyframes"
    for place in ("corrected_cameras", "cameras"):
        (keyframes / place).mkdir(parents=True)
    (folder / "images").rename(keyframes / "images")
    for image in capture.images:
        values = dict(zip(("fx", "fy", "cx", "cy", "width", "height"), (*image.lens.params, *SIZE), strict=True))
        values |= {f"t_{row}{column}": image.camera_to_world[row, column] for row in range(3) for column in range(4)}
        for place, off in (("corrected_cameras", 0.0), ("cameras", 0.1)):
            file = keyframes / place / f"{Path(image.name).stem}.json"
            file.write_text(json.dumps(values | {"t_03": values["t_03"] + off}))


def write_record3d(folder: Path, capture: Capture) -> None:
    (folder / "images").rename(folder / "rgb")
    fx, fy, cx, cy = capture.images[0].lens.params
    poses = np.stack([image.camera_to_world for image in capture.images])
    poses = np.concatenate([Rotation.from_matrix(poses[:, :, :3]).as_quat(), poses[:, :, 3]], axis=1).tolist()
    content = {"w": SIZE[0], "h": SIZE[1], "K": [fx, 0, 0, 0, fy, 0, cx, cy, 1], "poses": poses, "fps": 60}
    (folder / "metadata.json").write_text(json.dumps(content))


def write_nsvf(folder: Path, capture: Capture) -> None:
    """Intrinsics of images twice as large."""
    fx, _, cx, cy = capture.images[0].lens.params
    lines = [f"{2 * fx} {2 * cx} {2 * cy} 0.", "0. 0. 0.", "0.", "1.", f"{2 * SIZE[1]} {2 * SIZE[0]}"]
    (folder / "intrinsics.txt").write_text("\n".join(lines))
    _write_poses(folder, capture, "rgb")


def write_scannet(folder: Path, capture: Capture) -> None:
    fx, fy, cx, cy = capture.images[0].lens.params
    (folder / "intrinsic").mkdir()
    np.savetxt(folder / "intrinsic/intrinsic_color.txt", [[fx, 0, cx, 0], [0, fy, cy, 0], [0, 0, 1, 0], [0, 0, 0, 1]])
    _write_poses(folder, capture, "color")


def _write_poses(folder: Path, capture: Capture, images: str) -> None:
    (folder / "images").rename(folder / images)
    (folder / "pose").mkdir()
    for image in capture.images:
        pose = np.concatenate([image.camera_to_world * [1, -1, -1, 1], [[0, 0, 0, 1]]])
        np.savetxt(folder / "pose" / f"{Path(image.name).stem}.txt", pose)


def write_idr(folder: Path, capture: Capture) -> None:
    """Projections are known but for a number, which may be negative."""
    (folder / "images").rename(folder / "image")
    matrices = {}
    for index, image in enumerate(capture.images):
        fx, fy, cx, cy = image.lens.params
        rotation = (image.camera_to_world[:, :3] * [1, -1, -1]).T
        to_camera = np.column_stack([rotation, -rotation @ image.camera_to_world[:, 3]])
        projection = np.array([[fx, 0, cx], [0, fy, cy], [0, 0, 1]]) @ to_camera
        matrices[f"world_mat_{index}"] = np.concatenate([(-2.0) ** (index % 3) * projection, [[0, 0, 0, 1]]])
        matrices[f"scale_mat_{index}"] = np.diag([3.0, 3, 3, 1])
    np.savez(folder / "cameras_sphere.npz", **matrices)


WRITERS = {
    "nerf_synthetic": write_synthetic, "nerfstudio": write_nerfstudio, "llff": write_llff, "colmap": write_colmap,
    "polycam": write_polycam, "record3d": write_record3d, "nsvf": write_nsvf, "scannet": write_scannet,
    "idr": write_idr, "colmap text": lambda folder, capture: write_model(folder / "sparse" / "0", capture),
}  # fmt: skip


def masks_in(folder: Path, white: np.ndarray) -> None:
    (folder / "masks").mkdir(exist_ok=True)
    for file in (folder / "images").iterdir():
        Image.fromarray((white * 255).astype(np.uint8)).save(folder / "masks" / file.name)


LEFT = np.arange(26)[None].repeat(22, 0) < 10


def call(command, *arguments) -> None:
    assert run_main(command, *arguments) == 0


WIDTH, HEIGHT = 24, 16  # of odd captures
SMALL = (  # options with which training takes a second
    "--config cpu --device cpu --model.levels 2 --model.log2_hashmap_size 8 --model.max_resolution 32 "
    "--model.mlp_width 8 --sampling.occupancy_resolution 8 --trainer.steps 2 --trainer.max_seconds 0 "
    "--trainer.samples_per_step 256"
).split()


def noise(index: int) -> np.ndarray:
    return np.random.default_rng(index).integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)


def write_capture(
    folder: Path, poses: np.ndarray, image: Callable[[int], np.ndarray] = noise, points: np.ndarray | None = None,
    **keys: object,
) -> Path:  # fmt: skip
    """A small one in nerfstudio's dialect: cameras at `poses` [V, 3, 4], what each sees, and sparse points [P, 3], if
    any; `keys` are the file's own. Training refuses or remarks on its images of noise, or begins."""
    (folder / "images").mkdir(parents=True, exist_ok=True)
    frames = []
    for index, pose in enumerate(poses):
        name = f"images/{index:03d}.png"
        Image.fromarray(image(index)).save(folder / name)
        frames.append({"file_path": name, "transform_matrix": [*pose.tolist(), [0.0, 0.0, 0.0, 1.0]]})
    lens = {"fl_x": 20.0, "fl_y": 20.0, "cx": WIDTH / 2, "cy": HEIGHT / 2, "w": WIDTH, "h": HEIGHT}
    content = {"camera_model": "PINHOLE", **lens, **keys, "frames": frames}
    if points is not None:
        content["ply_file_path"] = "points.ply"
        nothing = np.zeros(len(points), np.int64)
        colors = np.full((len(points), 3), 128, np.uint8)
        ply.write_points(folder / "points.ply", Points(points, colors, nothing, nothing))
    (folder / "transforms.json").write_text(json.dumps(content))
    return folder
