# SPDX-License-Identifier: Apache-2.0
"""Features, matches and models of photos, by pycolmap, in calls short enough for Ctrl-C."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tqdm import tqdm

from nerfkit.data.images.pixels import look_into
from nerfkit.data.sfm.photos import Photo, Report, choose_pairs, save_upright
from nerfkit.errors import SceneError
from nerfkit.safe_io import printable
from nerfkit.threads import cores

INSTALL = 'pip install "nerfkit[photos]"'
SEED, DATABASE = 0, "database.db"
MAX_IMAGE_SIZE, FEATURES = 1600, 4096  # pixels of the longer side; per image
MANY = 20  # photos of one lens, from where a model of more parameters is well determined
IMAGES_AT_ONCE, PAIRS_AT_ONCE = 10, 50
THREADS = cores()


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
        model = _map(pycolmap, work, len(found))
    except (RuntimeError, ValueError, IndexError) as error:  # what pycolmap raises
        raise SceneError(f"pycolmap failed: {printable(str(error).strip())}") from None
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
    """Features; images of one lens share a camera."""
    options = pycolmap.FeatureExtractionOptions()
    options.max_image_size, options.num_threads, options.sift.max_num_features = MAX_IMAGE_SIZE, THREADS, FEATURES
    lenses: dict[tuple, list[str]] = {}
    for name, photo in names.items():
        lenses.setdefault(photo.lens, []).append(name)
    if len(lenses) > 1:
        report(f"{len(lenses)} lenses: sizes of the photos, or cameras or focal lengths in EXIF, differ")
    with pycolmap.Database.open(work / DATABASE) as database, tqdm(total=len(names), desc="features") as bar:
        for group in lenses.values():
            before = database.num_cameras()
            reader = pycolmap.ImageReaderOptions()
            reader.camera_model = "OPENCV" if len(group) >= MANY else "SIMPLE_RADIAL"
            for first in range(0, len(group), IMAGES_AT_ONCE):
                if (number := database.num_cameras()) > before:  # made with the first image that could be read
                    reader.existing_camera_id = number
                some, mode = group[first : first + IMAGES_AT_ONCE], pycolmap.CameraMode.SINGLE
                pycolmap.extract_features(work / DATABASE, work / "images", some, mode, reader, options)
                bar.update(len(some))


def _match(pycolmap, work: Path, names: list[str], pairs: list[tuple[int, int]]) -> None:
    """Verified matches of the pairs."""
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


def _map(pycolmap, work: Path, count: int) -> Any:
    """The model of most images, then of most points: it need not be the first."""
    options = pycolmap.IncrementalPipelineOptions()
    options.num_threads, options.random_seed = THREADS, SEED
    (work / "models").mkdir()
    places = work / DATABASE, work / "images", work / "models"
    with tqdm(total=count, desc="mapping") as bar:
        models = pycolmap.incremental_mapping(*places, options, next_image_callback=lambda: bar.update(1))
    return max(models.values(), key=lambda model: (model.num_reg_images(), model.num_points3D()), default=None)
