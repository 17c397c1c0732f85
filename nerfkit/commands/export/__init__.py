# SPDX-License-Identifier: Apache-2.0
"""`nerfkit export RUN mesh|points|cameras|depth|splats|web`: a run for other programs, in its files' frame."""

import time

from tqdm import tqdm

from nerfkit.commands import options as cli
from nerfkit.commands.export.common import about, is_middle, keep, key, note_rest, opened, report, target_transform
from nerfkit.commands.export.mesh import export_mesh
from nerfkit.commands.export.web import export_web
from nerfkit.data.readers.transforms.writer import path_from
from nerfkit.errors import UserError
from nerfkit.export import cameras, points, scale, writing
from nerfkit.export.grid import domain
from nerfkit.export.views import Views
from nerfkit.rendering.image_renderer import ImageRenderer
from nerfkit.rendering.images import file_stems
from nerfkit.safe_io import chosen
from nerfkit.training.run.load import Run, load_run

THRESHOLDS = {"min_opacity": points.MIN_OPACITY, "depths_agree_within": points.AGREE, "other_views": points.OTHERS}


def main(options: cli.ExportOptions) -> int:
    if isinstance(options, cli.MeshOptions) and options.source == "depth" and options.level != cli.LEVEL:
        raise UserError(f"--level {options.level:g} is for --from density; leave it out with --from depth")
    run = load_run(options.run, options.device, options.module, options.ops)
    began = time.perf_counter()
    EXPORTS[type(options)](run, options)
    print(f"{time.perf_counter() - began:.1f} s")
    return 0


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


EXPORTS = {
    cli.MeshOptions: export_mesh,
    cli.PointsOptions: export_cloud,
    cli.CamerasOptions: export_cameras,
    cli.DepthOptions: export_depth,
    cli.SplatsOptions: export_cloud,
    cli.WebOptions: export_web,
}
