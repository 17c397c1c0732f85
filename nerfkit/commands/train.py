# SPDX-License-Identifier: Apache-2.0
"""`nerfkit train`: train a scene, or resume a run, then score it."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from nerfkit import config as config_module
from nerfkit import ops
from nerfkit.commands import as_typed
from nerfkit.commands.eval import where_compared
from nerfkit.commands.options import TrainOptions
from nerfkit.commands.signals import StopSignals
from nerfkit.config import Config, DataConfig
from nerfkit.data.assemble import assemble
from nerfkit.data.capture import Capture
from nerfkit.data.doubts import doubts_of_images
from nerfkit.data.frame import WARNING
from nerfkit.data.load import load_capture
from nerfkit.data.pool import ImagePool
from nerfkit.data.readers import READERS, formats_of
from nerfkit.data.scene import Scene, in_words
from nerfkit.device import check_memory, pick_device
from nerfkit.errors import ConfigError, RunError, SceneError
from nerfkit.lpips import Lpips
from nerfkit.model.registry import import_models, model_bytes
from nerfkit.model.renderer import Renderer
from nerfkit.parallel import ALONE, Processes
from nerfkit.reading import shown
from nerfkit.training.evaluator import check_scorable, evaluate, in_one_line
from nerfkit.training.progress import Progress
from nerfkit.training.randomness import seed_everything
from nerfkit.training.run_folder import METRICS, RunFolder, describe, drop_later_lines, read_config, run_frame
from nerfkit.training.run_images import kept_bytes
from nerfkit.training.scene_options import box_is_given, fit_to_scene
from nerfkit.training.tensorboard import summary_writer
from nerfkit.training.trainer import Trainer
from nerfkit.viewer.page import Page

if TYPE_CHECKING:
    from nerfkit.viewer.training import TrainingViewer

# float32 values: features, hidden layers and their gradients; a measured lower bound of a step.
VALUES_PER_SAMPLE = {"features": 6, "state": 8, "other": 64}


def main(options: TrainOptions, processes: Processes = ALONE) -> int:
    import_models(options.model.module)
    device = pick_device(processes.join(options.device))
    ops.set_backend(options.ops.backend, options.ops.overrides())
    check_sizes(before_the_scene(options), device)
    if options.viewer.on and processes.size > 1:
        raise RunError("--viewer shows the training of one process; leave it out, or train without torchrun")
    if options.trainer.tensorboard:
        summary_writer()  # fails, if it does, before anything is read
    page = Page(options.viewer, "nerfkit") if options.viewer.on else None  # fails, if it does, before anything is read
    try:
        return train(options, device, changed(options), page, processes)
    finally:
        if page is not None:
            page.stop()


def changed(options: TrainOptions) -> set[str]:
    """Names of options that are neither their defaults nor, of a run that goes on, the run's."""
    before = read_config(Path(options.resume)) if options.resume else Config()
    was, now = (config_module.flat(config_module.to_dict(config)) for config in (before, options))
    return {name for name in now if now[name] != was.get(name)}


def train(
    options: TrainOptions, device: torch.device, given: Collection[str], page: Page | None, processes: Processes
) -> int:
    """Train, score, and show the training on `page` if there is one."""
    if options.out and not options.resume and processes.is_first:
        RunFolder.for_new_run(options.out, options.overwrite)  # fails, if it does, before poses are looked for
    scene = find_scene(options, given, options.resume)
    check_sizes(options, device)  # again: a place takes more than an object
    folder = processes.in_turn(lambda: open_folder(options, scene, processes))
    views = scene.split("train")
    check_split(options, scene, given)
    if options.eval.after_training and options.eval.lpips:
        Lpips(options.eval.lpips)  # fails, if it does, before anything is trained
    images = views.load(print if processes.is_first else None)
    for line in doubts_of_images(images, views.white_ignores) if processes.is_first else ():
        print(f"{WARNING}{line}")
    seed_everything(options.seed)
    trainer = Trainer(options, views.cameras, images, device=device, processes=processes)
    progress = Progress(trainer, scene)
    with StopSignals() as signals:
        if options.resume:
            go_on(options, scene, trainer, folder)
        elif number := begin(options, scene, trainer, folder, signals):
            return 128 + number
        progress.attach(folder)
        viewer = start_viewer(page, trainer, scene, images, folder, signals) if page is not None else None
        finished = trainer.train(folder, progress_bar=True, should_stop=signals.arrived)
        if not finished:
            if viewer is not None:
                viewer.drop_jobs()
            print(f"\nstopped at step {trainer.step}, saved. Go on with:\n  {to_go_on(options, folder)}", flush=True)
            progress.finish(stopped=True)
            progress.close()
            number = agreed_signal(signals, processes)
            processes.wait()
            return 128 + number
        progress.finish()
    limit = options.trainer.max_seconds
    over = f": ended by trainer.max_seconds {limit:g}" if limit and trainer.seconds >= limit else ""
    print(f"trained {trainer.step} steps in {trainer.seconds:.1f} s{' in all' if options.resume else ''}{over}")
    tell_adjustments(trainer)
    progress.close(score(options, scene, trainer, folder))
    tell_the_end(options, trainer, folder)
    if viewer is not None:
        show_until_stopped(viewer, trainer)
    return 0


def check_split(options: Config, scene: Scene, given: Collection[str]) -> None:
    """Raise an error for views that cannot be scored, or that are asked for by name and are not there."""
    split = options.eval.split
    if options.eval.after_training and split in scene.views:
        check_scorable(scene.split(split))
    elif split not in scene.views and "eval.split" in given and (options.eval.after_training or options.eval.every):
        raise ConfigError(
            f"eval.split: the scene has no {split} views, only {', '.join(scene.views)}; choose one of these with "
            "--eval.split"
        )


def go_on(options: TrainOptions, scene: Scene, trainer: Trainer, folder: RunFolder) -> None:
    """Take up the run in `folder`, and say so."""
    trainer.restore(folder)
    if options.trainer.steps < trainer.scheduled:
        raise RunError(
            f"the run is at step {trainer.scheduled:g} already; --trainer.steps {options.trainer.steps} is less"
        )
    if trainer.processes.is_first:
        folder.save_description(options, describe(scene))
        drop_later_lines(folder, trainer.step)  # before a viewer reads them
    print(summary(scene, trainer, folder.path))
    if trainer.progress >= 1:
        seconds = options.trainer.max_seconds
        limit = f"--trainer.max_seconds, now {seconds:g}, of which {trainer.seconds:.1f} are used" if seconds else ""
        more = limit if trainer.scheduled < options.trainer.steps else f"--trainer.steps, now {options.trainer.steps}"
        print(f"nothing is left to train; to go on, raise {more}")


def begin(options: TrainOptions, scene: Scene, trainer: Trainer, folder: RunFolder, signals: StopSignals) -> int:
    """The first step, after which the run folder is begun; the number of a signal that came before it, or 0."""
    print(summary(scene, trainer, folder.path))
    trainer.timed_step()  # fails, if it does, before an earlier run is replaced
    trainer.check_finite()
    if number := agreed_signal(signals, trainer.processes):
        print("\nstopped before the first checkpoint; nothing was written")
        trainer.processes.wait()  # torchrun ends all as soon as one has
        return number
    if trainer.processes.is_first:
        folder.start(options, describe(scene))
    trainer.save(folder)
    return 0


def agreed_signal(signals: StopSignals, processes: Processes) -> int:
    """The number of a signal that any of the processes has got, or 0."""
    return int(processes.most(torch.tensor(signals.number or 0)).item())


def to_go_on(options: TrainOptions, folder: RunFolder) -> str:
    """The command that goes on with a run."""
    module = ("--model.module", options.model.module) if options.model.module else ()
    return as_typed("train", "--resume", folder.path, *module)


def tell_adjustments(trainer: Trainer) -> None:
    """Print how far cameras moved that were refined."""
    if moved := trainer.adjustments.stats():
        turned, shifted = moved["cameras_turned"], moved["cameras_shifted"]
        print(f"cameras moved by {turned:.3g} degrees and {shifted:.3g} scene units (rms over the training views)")


def tell_the_end(options: TrainOptions, trainer: Trainer, folder: RunFolder) -> None:
    """Print where the run is, and what to do next."""
    if trainer.model.needs_images and trainer.processes.is_first:
        size = f"{kept_bytes(folder.path) / 2**20:.1f} MB"
        print(f"{len(trainer.cameras)} training images are kept in the run folder, {size}: it is rendered from them")
    module = ("--module", options.model.module) if options.model.module else ()
    print(f"run folder: {folder.path}\nnext: {as_typed('render', folder.path, *module)}")


def start_viewer(
    page: Page, trainer: Trainer, scene: Scene, images: ImagePool, folder: RunFolder, signals: StopSignals
) -> TrainingViewer:
    """Show on `page` what is trained."""
    from nerfkit.viewer.subject import of_training
    from nerfkit.viewer.training import TrainingViewer

    subject = of_training(trainer.config, trainer.model, trainer.device, scene, images, folder)
    viewer = TrainingViewer(subject, page, signals.arrived)
    viewer.attach(trainer)
    print(page.how_to_reach())
    return viewer


def show_until_stopped(viewer: TrainingViewer, trainer: Trainer) -> None:
    """After the training, keep the viewer until Ctrl-C."""
    viewer.detach(trainer)
    with StopSignals() as signals:
        print(f"the viewer goes on at {viewer.page.address} until Ctrl-C", flush=True)
        viewer.serve(signals.arrived)


def find_scene(options: Config, given: Collection[str] = (), resume: str = "") -> Scene:
    """The scene, in the frame of the run that goes on if there is one; what follows from a frame that was found is set.

    Options that were `given` stay as they are, be it the default. A box that was given is meant in the files' own
    coordinates; with sampling.kind contracted it is what is not contracted.
    """
    data, is_unbounded = options.data, options.sampling.kind == "contracted"
    box = data.box if box_is_given(options, given) else None
    frame = run_frame(Path(resume)) if resume else None
    box, cutout = None if frame else box, data.masks == "cutout"
    capture = find_capture(data, given, resume)
    scene = assemble(capture, data.downscale, box, frame, cutout, is_unbounded)
    scene = scene.with_fewer(data.max_views)
    if not resume:
        data.format = capture.reader
        fit_to_scene(options, scene, given)
    return scene


def find_capture(data: DataConfig, given: Collection[str], resume: str) -> Capture:
    """The capture in data.path; an error says so if that is not where, or not what, the scene was or is said to be."""
    if resume and "data.path" not in given and not os.path.exists(data.path):
        raise RunError(f"the run's scene is no longer at {shown(data.path)}; give its folder with --data.path FOLDER")
    try:
        return load_capture(data.path, data.format, data.sfm, seeks_points=not resume)
    except SceneError as error:
        raise SceneError(of_another_format(data, "" if "data.format" in given else resume) or str(error)) from None


def of_another_format(data: DataConfig, resume: str) -> str:
    """What to do where the folder holds no scene of data.format, that of the run `resume` if there is one; or ""."""
    folder, wanted = Path(os.path.expanduser(data.path)), READERS.get(data.format)
    if wanted is None or not os.path.isdir(folder) or wanted.recognises(folder):
        return ""
    if resume:
        return (
            f"the run was trained on a scene of format {data.format}, at {shown(read_config(Path(resume)).data.path)}; "
            f"{shown(folder)} is another one. Give the run's with --data.path, or train a new run without --resume"
        )
    found = formats_of(folder)
    hint = f"format {data.format} needs {wanted.needs}; {shown(folder)} looks like {' or '.join(found)}: "
    return f"{hint}leave out --data.format, or choose {' or '.join(found)}" if found else ""


def open_folder(options: TrainOptions, scene: Scene, processes: Processes = ALONE) -> RunFolder:
    """The run folder, locked by the first process; raises RunError if it is not this run's."""
    path = options.resume or options.out or Path("runs") / scene.name
    if not processes.is_first:
        return RunFolder(path)
    if not options.resume:
        return RunFolder.for_new_run(path, options.overwrite)
    folder = RunFolder.existing(path)
    folder.lock()
    folder.remove_leftovers(but=(METRICS,))  # which scoring may be writing
    folder.check_resumable(options, describe(scene))
    return folder


def before_the_scene(options: TrainOptions) -> TrainOptions:
    """Options of about the same size that do not depend on how far the scene reaches."""
    if options.sampling.kind != "contracted":
        return options
    return replace(options, sampling=replace(options.sampling, kind="box"))


def check_sizes(options: TrainOptions, device: torch.device) -> None:
    """Raise RunError if the options' sizes take more memory than there is."""
    model, sampling, trainer = options.model, options.sampling, options.trainer
    sizes = (
        f"a model with log2_table {model.log2_table}, {model.levels} levels, {model.features} features, hidden "
        f"{model.hidden} and occupancy_resolution {sampling.occupancy_resolution}"
    )
    n_bytes = 4 * model_bytes(options) + 24 * sampling.occupancy_resolution**3
    check_memory(n_bytes, f"{sizes}, its gradients and Adam's moments,", device)  # of which are two
    per_sample = {"features": model.levels * model.features, "state": model.state, "other": 1}
    n_values = trainer.samples * sum(VALUES_PER_SAMPLE[name] * count for name, count in per_sample.items())
    check_memory(4 * n_values, f"a step with trainer.samples {trainer.samples}", device)


def score(options: TrainOptions, scene: Scene, trainer: Trainer, folder: RunFolder) -> dict[str, Any] | None:
    """Scores of the trained model on held-out views, if that is enabled and there are some."""
    split = options.eval.split
    if options.eval.after_training and split not in scene.views:
        print(f"not scored: the scene has no {split} views, only {', '.join(scene.views)}")
    elif options.eval.after_training:
        state = {"seconds": trainer.seconds, "step": trainer.step, "backend": trainer.backends()}
        trainer.model.eval()
        try:
            metrics = evaluate(
                trainer.model, options, scene.split(split), state, folder, trainer.device, "", trainer.processes
            )
        except KeyboardInterrupt:
            if trainer.processes.is_first:
                print(f"\nthe training is complete and saved; what scores it:\n  {as_typed('eval', folder.path)}")
            raise
        print(f"{metrics['n_views']} {split} views: {in_one_line(metrics)}")
        print(where_compared(metrics, folder.path, split))
        return metrics
    return None


def summary(scene: Scene, trainer: Trainer, folder: Path) -> str:
    """Summary of what is about to be trained."""
    config, cameras = trainer.config, trainer.cameras
    n_parameters = sum(p.numel() for p in trainer.model.parameters())
    counts = ", ".join(f"{len(views.cameras)} {split}" for split, views in scene.views.items())
    stages = [
        name for name, used in (("encoder", config.model.encoder), ("aggregator", config.model.aggregator)) if used
    ]
    grid = f", a grid of {config.model.base_resolution} to {config.model.max_resolution} cells a side"
    along = f", along the ray: {' and '.join(stages) or 'nothing'}"
    parts = grid + along if isinstance(trainer.model, Renderer) else ""
    used = f", of which {trainer.seconds:.1f} s are used" if trainer.seconds else ""
    limit = f", at most {config.trainer.max_seconds:g} s{used}" if config.trainer.max_seconds else ""
    lines = [
        f"scene     {scene.name} ({scene.format}): {counts} views of {in_words(cameras.sizes())}, "
        f"{config.data.background} background",
        *(f"note      {note}" for note in scene.notes),
        *(f"frame     {line}" for line in (scene.frame.text if scene.frame is not None else ())),
        f"images    {trainer.views.source.text}",
        f"{space_text(config)}",
        f"model     {config.model.kind}, {n_parameters / 1e6:.2f} M parameters{parts}",
        *of_each_view(config),
        f"training  steps {trainer.step} to {trainer.last_step}{limit}, {config.trainer.samples} samples a step, "
        f"learning rate {config.trainer.learning_rate:g}, table decay {config.trainer.table_decay:g}",
        *in_parallel(trainer),
        *(f"op        {op:<19} {chosen.backend:<6} ({chosen.reason})" for op, chosen in trainer.resolved().items()),
        f"device    {trainer.device}; {how_it_runs(trainer)}",
        *not_scored(scene, config),
        f"run       {folder}",
    ]
    return "\n".join(lines)


def space_text(config: Config) -> str:
    """Where samples are put, in a line."""
    sampling, corners = config.sampling, f"{list(config.data.box[:3])} to {list(config.data.box[3:])}"
    if sampling.kind != "contracted":
        return f"box       {corners}, step {sampling.step:g}"
    return (
        f"space     unbounded, contracted outside of {corners}: from {sampling.near:.4g} to {sampling.far:.4g}, "
        f"step {sampling.step:g} and at least {sampling.cone:.4g} of the distance"
    )


def of_each_view(config: Config) -> list[str]:
    """A line where something is learned of each training view."""
    data = config.data
    learned = ["its light"] * (data.appearance == "affine") + ["its pose"] * (data.poses == "refine")
    return [f"views     learned of each training view, too: {' and '.join(learned)}"] if learned else []


def in_parallel(trainer: Trainer) -> list[str]:
    """A line where several processes train."""
    processes, steps = trainer.processes, trainer.config.trainer.steps
    if processes.size == 1:
        return []
    return [
        f"parallel  {processes.text}; each draws {trainer.config.trainer.samples} samples a step, "
        f"and a step counts as {trainer.steps_at_once:g} of trainer.steps {steps}"
    ]


def not_scored(scene: Scene, config: Config) -> list[str]:
    """A line, before training, where nothing will be scored after it."""
    split = config.eval.split
    missing = config.eval.after_training and split not in scene.views
    return [f"scoring   none: the scene has no {split} views, only {', '.join(scene.views)}"] if missing else []


def how_it_runs(trainer: Trainer) -> str:
    """Whether a step is a CUDA graph, and what determinism costs."""
    recorded = "a step is one CUDA graph" if trainer.training_step.static_shapes else "a step runs op by op"
    if not trainer.config.trainer.deterministic:
        return recorded
    costs_nothing = trainer.device.type == "cpu"
    price = "which costs nothing on a CPU" if costs_nothing else "for which a step takes about 1.2 times as long"
    return f"{recorded}; deterministic: the same bits from the same seed, {price}"
