# SPDX-License-Identifier: Apache-2.0
"""Photos or a video -> a COLMAP folder with camera poses, by pycolmap (pip install "nerfkit[photos]").

    FOLDER/images/          the photos, a link to them, or the frames of the video
    FOLDER/sparse/0/        the model, in COLMAP's binary files

FOLDER is that of the photos, `<name>_frames` beside a video, or --data.sfm_dir.
"""

import json
import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from PIL import Image, ImageFilter, ImageStat
from tqdm import tqdm

from nerfkit.data.images.pixels import look_into
from nerfkit.data.scene import format_sizes
from nerfkit.data.scene_transform.diagnostics import number_diagnostics
from nerfkit.data.sfm.photos import Photo, Report, choose_pairs, find_photos, image_folder, save_upright
from nerfkit.errors import SceneError, UserError
from nerfkit.safe_io import first_of, printable, read_json
from nerfkit.threads import cores

VIDEOS = (".mp4", ".mov", ".mkv", ".m4v", ".avi", ".webm", ".mts", ".mpg", ".mpeg")
FRAMES = 150  # of a video
SHARPNESS_WIDTH = 640  # pixels, about, at which sharpness is measured
LISTED = 10  # names in a message, at most
RECORD = "made_of.json"  # in a folder that was made: files and their bytes
VIDEO_SIZE = 1920, 1080  # pixels of a usual one
# Measured on two cores; 292 photos of 800x533.
SECONDS_A_PIXEL, SECONDS_A_PAIR, SECONDS_A_PHOTO = 2.4e-6, 0.06, 0.8
INSTALL = 'pip install "nerfkit[photos]"'
SEED, DATABASE = 0, "database.db"
MAX_IMAGE_SIZE, FEATURES = 1600, 4096  # pixels of the longer side; per image
AROUND = 2  # as many of both for panoramas, whose longer side is 360 degrees
MANY = 20  # photos of one lens that determine more parameters
IMAGES_AT_ONCE, PAIRS_AT_ONCE = 10, 50
THREADS = cores()
ELSEWHERE = "choose another folder with --data.sfm_dir"


def plan(source: Path, report: Report = print) -> tuple[str, float]:
    """What a folder of photos or a video holds, in words, and roughly the seconds that finding its poses takes."""
    if source.is_file():
        names, sizes, n_around = [f"{number}" for number in range(FRAMES)], [VIDEO_SIZE] * FRAMES, 0
        what = f"a video, of which {FRAMES} frames are taken at most"
    else:
        found = find_photos(image_folder(source), report)
        names, sizes = [photo.name for photo in found], [photo.lens[:2] for photo in found]
        n_lenses = len({photo.lens for photo in found})
        lenses = "one lens" if n_lenses == 1 else f"{n_lenses} lenses"
        n_around = sum(photo.is_panorama for photo in found)
        kind = "panoramas" if n_around == len(found) else "photos" + f" ({n_around} panoramas)" * (n_around > 0)
        what = f"{len(found)} {kind} of {format_sizes(sizes)} from {lenses}"
        for line in number_diagnostics(len(found)):
            report(f"warning: {line}")
    longest = MAX_IMAGE_SIZE * (AROUND if 2 * n_around > len(names) else 1)
    pixels = sum(width * height * min(1.0, longest / max(width, height)) ** 2 for width, height in sizes)
    n_pairs = len(choose_pairs(names, source.is_file()))
    of_all_cores = SECONDS_A_PIXEL * pixels + SECONDS_A_PAIR * n_pairs
    return what, of_all_cores / THREADS + SECONDS_A_PHOTO * len(names)


def root_of(source: Path, out: Path | None = None) -> Path:
    return out or (source.with_name(f"{source.stem}_frames") if source.is_file() else source)


def solve(source: Path, out: Path | None = None, report: Report = print) -> Path:
    """The COLMAP folder of photos or of a video, made unless it is there; raises SceneError."""
    is_video = source.is_file()
    root = root_of(source, out)
    try:
        images = extract_frames(source, root / "images", report) if is_video else image_folder(source)
        found = find_photos(images, report)
        link = root / "images"  # the photos are in the COLMAP folder, too
        if images not in (root, link) and not os.path.lexists(link):
            root.mkdir(parents=True, exist_ok=True)
            link.symlink_to(images.resolve(), target_is_directory=True)
        if images != root and link.resolve() != images.resolve():
            what = f"{printable(link)} is there, and is not the folder of photos {printable(images)}"
            raise SceneError(f"{what}; {ELSEWHERE}")
        record = {photo.name: photo.bytes for photo in found}
        if not _is_made(root / "sparse", record):
            with _made_whole(root / "sparse", record) as sparse:
                _solve(images, found, is_video, sparse, report)
    except OSError as error:
        raise SceneError(f"cannot write to {printable(root)}: {error.strerror or error}; {ELSEWHERE}") from None
    return root


def extract_frames(video: Path, folder: Path, report: Report) -> Path:
    """`folder` with the sharpest frame of each of 150 equal parts of `video`, made unless it is there."""
    source = {video.name: video.stat().st_size}
    if not _is_made(folder, source):
        with _made_whole(folder, source) as images:
            report(f"taking the sharpest frames of {printable(video)}")
            for number, frame in enumerate(_sharpest(video, FRAMES), 1):
                Image.fromarray(frame).save(images / f"frame_{number:04}.jpg", quality=95)
    return folder


def _sharpest(video: Path, windows: int) -> Iterator[np.ndarray]:
    """The sharpest frame uint8 [H, W, 3] of each of `windows` equal parts of a video; one at a time is in memory."""
    import imageio_ffmpeg

    def sharpness(frame: np.ndarray) -> float:
        gray = Image.fromarray(frame).convert("L").reduce(max(1, frame.shape[1] // SHARPNESS_WIDTH))
        return ImageStat.Stat(gray.filter(ImageFilter.FIND_EDGES)).var[0]

    try:
        count = imageio_ffmpeg.count_frames_and_secs(str(video.resolve()))[0]
        if not count:
            raise ValueError("it holds no frames")
        reader = imageio_ffmpeg.read_frames(str(video.resolve()), pix_fmt="rgb24")
        width, height = next(reader)["size"]
        frames = enumerate(np.frombuffer(data, np.uint8).reshape(height, width, 3) for data in reader)
        windows = min(windows, count)
        for _, part in groupby(frames, lambda frame: min(frame[0] * windows // count, windows - 1)):
            yield max((frame for _, frame in part), key=sharpness)
    except (OSError, RuntimeError, StopIteration, ValueError, KeyError) as error:  # what imageio_ffmpeg raises, too
        cause = printable((str(error).strip().splitlines() or [type(error).__name__])[-1])
        raise SceneError(f"video {printable(video)} cannot be decoded, is it truncated? ({cause})") from None


def _is_made(folder: Path, source: dict[str, int]) -> bool:
    """Whether `folder` is there; raises SceneError if it is one that was not made of `source`."""
    if not folder.exists() or not any(folder.iterdir()):
        return False
    with suppress(UserError):  # of a record that is not there
        if read_json(folder / RECORD, SceneError) == source:
            return True
    what = f"{printable(folder)} is there, and was not made of the photos or the video as they are now"
    raise SceneError(f"{what}; give {printable(folder.parent)} as the scene, or move it away, or {ELSEWHERE}")


@contextmanager
def _made_whole(folder: Path, source: dict[str, int]) -> Iterator[Path]:
    """A folder that becomes `folder` if the block ends without an error; until then it lies in a temporary one."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as work:
        new = Path(work) / folder.name
        new.mkdir()
        yield new
        (new / RECORD).write_text(json.dumps(source, indent=1) + "\n")
        os.rename(new, folder)  # raises OSError if another process was faster


def _solve(images: Path, found: list[Photo], is_video: bool, sparse: Path, report: Report) -> None:
    model = largest_model(images, found, is_video, sparse.parent, report)
    registered = {image.name for image in model.images.values() if image.has_pose} if model else set()
    missing = [photo.name for photo in found if photo.name not in registered]
    summary = f"{len(registered)} of {len(found)} photos got a pose"
    if 2 * len(registered) < len(found):
        reader = f"--ImageReader.single_camera {int(len({(photo.lens, photo.is_panorama) for photo in found}) == 1)}"
        reader += " --ImageReader.camera_model EQUIRECTANGULAR" * all(photo.is_panorama for photo in found)
        raise SceneError(
            f"{printable(images)}: {summary}, fewer than half; none for {first_of(missing, LISTED)}. Take "
            "more, sharp and with two thirds of overlap, remove those that show something else, or try COLMAP itself:\n"
            + _by_hand(sparse.parent.parent, images, is_video, reader)
        )
    report(f"{summary}, {model.num_points3D()} points, {model.compute_mean_reprojection_error():.2f} px")
    if missing:
        report(f"no pose for {first_of(missing, LISTED)}")
    (sparse / "0").mkdir()
    model.write(sparse / "0")


def _by_hand(root: Path, images: Path, is_video: bool, reader: str) -> str:
    """Commands whose model is read in the place of nerfkit's, with lower thresholds than COLMAP's own."""
    database, sparse, images = (shlex.quote(str(path)) for path in (root / "database.db", root / "sparse", images))
    both = f"--database_path {database} --image_path {images}"
    return f"""\
    colmap feature_extractor {both} {reader}
    colmap {"sequential" if is_video else "exhaustive"}_matcher --database_path {database}
    mkdir -p {sparse}
    colmap mapper {both} --output_path {sparse} --Mapper.init_min_tri_angle 4 --Mapper.abs_pose_min_num_inliers 15"""


def largest_model(folder: Path, found: list[Photo], is_video: bool, work: Path, report: Report) -> Any:
    """The pycolmap.Reconstruction of most images, named as in `folder`; None if there is none. Works in `work`."""
    try:
        import pycolmap
    except ModuleNotFoundError:
        raise SceneError(f"camera poses are found by pycolmap, which is not installed: {INSTALL}") from None
    names = _readable(folder, found, work / "images")
    pycolmap.logging.minloglevel = pycolmap.logging.FATAL.value
    pycolmap.set_random_seed(SEED)
    try:
        _extract(pycolmap, work, names, report)
        pairs = choose_pairs([photo.name for photo in found], is_video)
        _match(pycolmap, work, list(names), pairs)
        options = pycolmap.IncrementalPipelineOptions()
        options.num_threads, options.random_seed = THREADS, SEED
        (work / "models").mkdir()
        places = work / DATABASE, work / "images", work / "models"
        with tqdm(total=len(found), desc="mapping") as bar:
            models = pycolmap.incremental_mapping(*places, options, next_image_callback=lambda: bar.update(1))
    except (RuntimeError, ValueError, IndexError) as error:  # what pycolmap raises
        raise SceneError(f"pycolmap failed: {printable(str(error).strip())}") from None
    model = max(models.values(), key=lambda model: (model.num_reg_images(), model.num_points3D()), default=None)
    for image in model.images.values() if model else ():
        image.name = names[image.name].name
    return model


def _readable(folder: Path, found: list[Photo], images: Path) -> dict[str, Photo]:
    """Photos by the names that they get in the folder `images`, sorted as they are: links, or copies."""
    images.mkdir()
    names = {}
    for number, photo in enumerate(found):
        suffix = Path(photo.name).suffix.lower()
        name = f"{number:06}{'.png' if suffix == '.webp' else suffix}"
        names[name] = photo
        if problem := look_into(folder / photo.name)[1]:
            raise SceneError(problem)
        if photo.is_turned or suffix == ".webp":  # pycolmap does not heed EXIF's orientation, nor read WebP
            save_upright(folder / photo.name, images / name)
        else:
            (images / name).symlink_to((folder / photo.name).resolve())
    return names


def _extract(pycolmap, work: Path, names: dict[str, Photo], report: Report) -> None:
    options = pycolmap.FeatureExtractionOptions()
    options.num_threads = THREADS
    lenses: dict[tuple, list[str]] = {}
    for name, photo in names.items():
        lenses.setdefault(photo.lens, []).append(name)
    if len(lenses) > 1:
        report(f"{len(lenses)} lenses: sizes of the photos, or cameras or focal lengths in EXIF, differ")
    with pycolmap.Database.open(work / DATABASE) as database, tqdm(total=len(names), desc="features") as bar:
        for group in lenses.values():
            before = database.num_cameras()
            reader = pycolmap.ImageReaderOptions()
            reader.camera_model, factor = "OPENCV" if len(group) >= MANY else "SIMPLE_RADIAL", 1
            if names[group[0]].is_panorama:
                reader.camera_model, factor = "EQUIRECTANGULAR", AROUND
            options.max_image_size, options.sift.max_num_features = factor * MAX_IMAGE_SIZE, factor * FEATURES
            for first in range(0, len(group), IMAGES_AT_ONCE):
                if (number := database.num_cameras()) > before:  # made with the first image that could be read
                    reader.existing_camera_id = number
                some, mode = group[first : first + IMAGES_AT_ONCE], pycolmap.CameraMode.SINGLE
                pycolmap.extract_features(work / DATABASE, work / "images", some, mode, reader, options)
                bar.update(len(some))


def _match(pycolmap, work: Path, names: list[str], pairs: list[tuple[int, int]]) -> None:
    options, verification = pycolmap.FeatureMatchingOptions(), pycolmap.TwoViewGeometryOptions()
    options.num_threads, verification.ransac.random_seed = THREADS, SEED
    pairing = pycolmap.ImportedPairingOptions()
    pairing.match_list_path = work / "pairs.txt"
    with tqdm(total=len(pairs), desc="matching", unit="pair") as bar:
        for first in range(0, len(pairs), PAIRS_AT_ONCE):
            some = pairs[first : first + PAIRS_AT_ONCE]
            (work / "pairs.txt").write_text("".join(f"{names[one]} {names[two]}\n" for one, two in some))
            pycolmap.match_image_pairs(work / DATABASE, options, pairing, verification)
            bar.update(len(some))
