# SPDX-License-Identifier: Apache-2.0
"""One stage of COLMAP, as a program: a request in JSON on standard input, lines of JSON on standard output.

It is a process of its own since the libraries inside pycolmap and Pillow get mixed up in one (Pillow's PNG writer then
corrupts the heap), since not all stages can be stopped otherwise, and since it may crash. It imports nothing else.
"""

import json
import os
import sys
import threading
from pathlib import Path

SEED = 0
LOOSE = {"init_min_tri_angle": 4.0, "abs_pose_min_num_inliers": 15}  # of a second attempt


def extract(pycolmap, request):
    """Features of the images, in groups that share a camera."""
    options = pycolmap.FeatureExtractionOptions()
    options.max_image_size, options.num_threads = request["max_image_size"], request["threads"]
    options.sift.max_num_features = request["features"]
    if request["thorough"]:
        options.sift.estimate_affine_shape = options.sift.domain_size_pooling = True
    for names, camera, shared in request["groups"]:
        reader = pycolmap.ImageReaderOptions()
        reader.camera_model = request["model"]
        if camera is not None:  # a new one would be made otherwise when work goes on
            reader.existing_camera_id = camera
        mode = getattr(pycolmap.CameraMode, shared)
        common = {"camera_mode": mode, "reader_options": reader, "extraction_options": options}
        pycolmap.extract_features(request["database"], request["images"], image_names=names, **common)


def match(pycolmap, request):
    """Matches of a list of pairs, or of all."""
    options, verification = pycolmap.FeatureMatchingOptions(), pycolmap.TwoViewGeometryOptions()
    options.num_threads, options.guided_matching = request["threads"], request["thorough"]
    verification.ransac.random_seed = SEED
    common = {"matching_options": options, "verification_options": verification}
    if request["pairs"] is None:
        pairing = pycolmap.ExhaustivePairingOptions()
        pairing.block_size = request["block"]
        pycolmap.match_exhaustive(request["database"], pairing_options=pairing, **common)
    else:
        pairing = pycolmap.ImportedPairingOptions()
        pairing.match_list_path, pairing.block_size = request["pairs"], request["block"] ** 2
        pycolmap.match_image_pairs(request["database"], pairing_options=pairing, **common)


def incremental(pycolmap, request):
    """The best model of incremental mapping."""
    options = pycolmap.IncrementalPipelineOptions()
    options.num_threads, options.random_seed = request["threads"], SEED
    for name, value in LOOSE.items() if request["loose"] else ():
        setattr(options.mapper, name, value)
    models = pycolmap.incremental_mapping(
        request["database"], request["images"], request["out"], options, next_image_callback=lambda: say("image")
    )
    return best_model(models, request["out"])


def overall(pycolmap, request):
    """The best model of global mapping."""
    pycolmap.calibrate_view_graph(request["database"])
    options = pycolmap.GlobalPipelineOptions()
    options.num_threads, options.random_seed = request["threads"], SEED
    models = pycolmap.global_mapping(request["database"], request["images"], request["out"], options)
    return best_model(models, request["out"])


def best_model(models, out):
    """Write the model of most images (it need not be the first) into the folder `out`/best, and describe it."""
    if not models:
        return None
    model = max(models.values(), key=lambda model: (model.num_reg_images(), model.num_points3D()))
    folder = Path(out) / "best"
    folder.mkdir()
    model.write(folder)
    images = [model.images[number] for number in model.reg_image_ids()]
    cameras = [model.cameras[number] for number in sorted({image.camera_id for image in images})]
    lenses = [[c.model_name, [float(value) for value in c.params], c.width, c.height] for c in cameras]
    error = float(model.compute_mean_reprojection_error())
    names = sorted(image.name for image in images)
    return {"registered": names, "points": model.num_points3D(), "error": error, "lenses": lenses, "of": len(models)}


def say(what):
    print(json.dumps(what), flush=True)


def end_with_parent():
    sys.stdin.buffer.read()
    os._exit(1)


def main():
    sys.path.pop(0)  # the folder of this file, whose modules are not meant
    request = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=end_with_parent, daemon=True).start()
    import pycolmap

    pycolmap.logging.minloglevel = 3
    pycolmap.set_random_seed(SEED)
    stages = {"extract": extract, "match": match, "incremental": incremental, "global": overall}
    say({"result": stages[request["stage"]](pycolmap, request)})
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
