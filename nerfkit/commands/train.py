# SPDX-License-Identifier: Apache-2.0
"""`nerfkit train`: train a scene, or resume a run, then score it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from nerfkit import ops
from nerfkit.commands import as_typed
from nerfkit.commands.eval import where_compared
from nerfkit.commands.options import TrainOptions
from nerfkit.commands.signals import StopSignals
from nerfkit.config import Config, DataConfig, ResolvedConfig, SamplingConfig, preset_values
from nerfkit.config.recipe import value_text
from nerfkit.data.images.pool import ImagePool
from nerfkit.data.load import scene_of
from nerfkit.data.notes import Note
from nerfkit.data.readers import READERS, formats_of
from nerfkit.data.scene import Scene, in_words
from nerfkit.data.scene_transform.doubts import doubts_of_images
from nerfkit.device import check_memory, pick_device
from nerfkit.errors import RunError, SceneError
from nerfkit.metrics import Lpips
from nerfkit.model.registry import import_models, model_bytes, model_class
from nerfkit.model.renderer import Renderer
from nerfkit.parallel import ALONE, Processes
from nerfkit.reading import shown
from nerfkit.training.evaluator import check_scorable, evaluate, in_one_line
from nerfkit.training.run.files import METRICS, read_config
from nerfkit.training.run.folder import RunFolder, describe, drop_later_lines, run_frame
from nerfkit.training.step.losses import loss_function
from nerfkit.training.step.randomness import seed_everything
from nerfkit.training.trainer import Trainer
from nerfkit.training.watching.progress import Progress
from nerfkit.training.watching.tensorboard import summary_writer
from nerfkit.viewer.page import Page

if TYPE_CHECKING:
    from nerfkit.viewer.viewer import TrainingViewer

# float32 values: features, hidden layers and their gradients; a measured lower bound of a step.
VALUES_PER_SAMPLE = {"features": 6, "state": 8, "other": 64}


def main(options: TrainOptions, processes: Processes = ALONE) -> int:
    """Train, score, and show the training in a browser if that is asked for."""
    device = pick_device(processes.join(options.device))
    check_before_reading(options, device, processes)
    page = Page(options.viewer, "nerfkit") if options.viewer.on else None  # fails, if it does, before anything is read
    try:
        return train(options, device, page, processes)
    finally:
        if page is not None:
            page.stop()


def check_before_reading(options: TrainOptions, device: torch.device, processes: Processes) -> None:
    """Raise an error for all that is wrong whatever the scene is."""
    import_models(options.model.module)
    with ops.backend(overrides=options.ops.choices()):
        ops.resolved(device)
    if options.trainer.loss:
        loss_function(options.trainer.loss)
    if options.viewer.on and processes.size > 1:
        raise RunError("--viewer shows the training of one process; leave it out, or train without torchrun")
    if options.trainer.tensorboard:
        summary_writer()
    if options.eval.after_training and options.eval.lpips:
        Lpips(options.eval.lpips)
    sampling = SamplingConfig("box", occupancy_resolution=options.sampling.occupancy_resolution)
    sizes = replace(options, data=DataConfig(), sampling=sampling)  # how far the scene reaches is not known yet
    check_sizes(sizes.resolved(None, device, model_class(options)), device)
    if options.out and not options.resume and processes.is_first:
        RunFolder.for_new_run(options.out, options.overwrite)  # fails, if it does, before poses are looked for


def train(options: TrainOptions, device: torch.device, page: Page | None, processes: Processes) -> int:
    """Load, build, train, score."""
    scene = find_scene(options)
    config = options.resolved(scene, device, model_class(options), preset_values(options.config))
    check_sizes(config, device)  # again: a place takes more than an object
    if config.eval.after_training and config.eval.split in scene.views:
        check_scorable(scene.split(config.eval.split))
    folder = processes.in_turn(lambda: open_folder(options, config, scene, processes))
    views = scene.split("train")
    images = views.load(print if processes.is_first else None)
    for line in doubts_of_images(images, views.white_ignores) if processes.is_first else ():
        print(f"warning: {line}")
    seed_everything(config.seed)  # what a model of one's own may draw
    trainer = Trainer(config, views.cameras, images, scene=scene, device=device, processes=processes)
    progress = Progress(trainer, scene)
    with StopSignals() as signals:
        if options.resume:
            go_on(trainer, folder, scene)
        print(summary(scene, trainer, folder.path, options))
        if trainer.progress >= 1:
            tell_that_nothing_is_left(trainer)
        if not options.resume and (number := begin(trainer, folder, scene, signals)):
            return 128 + number
        progress.attach(folder)
        viewer = start_viewer(page, trainer, scene, images, folder, signals) if page is not None else None
        finished = trainer.train(folder, progress_bar=True, should_stop=signals.arrived)
        if not finished:
            if viewer is not None:
                viewer.drop_jobs()
            print(f"\nstopped at step {trainer.step}, saved. Go on with:\n  {to_go_on(config, folder)}", flush=True)
            progress.finish(stopped=True)
            progress.close()
            number = agreed_signal(signals, processes)
            processes.wait()
            return 128 + number
        progress.finish()
    limit = config.trainer.max_seconds
    over = f": ended by trainer.max_seconds {limit:g}" if limit and trainer.seconds >= limit else ""
    print(f"trained {trainer.step} steps in {trainer.seconds:.1f} s{' in all' if options.resume else ''}{over}")
    tell_adjustments(trainer)
    progress.close(score(scene, trainer, folder))
    tell_the_end(trainer, folder)
    if viewer is not None:
        show_until_stopped(viewer, trainer)
    return 0


def find_scene(options: TrainOptions) -> Scene:
    """The scene, in the frame of the run that goes on if there is one."""
    data, before = options.data, read_config(Path(options.resume)).data if options.resume else None
    if before is not None and data.path == before.path and not os.path.exists(data.path):
        raise RunError(f"the run's scene is no longer at {shown(data.path)}; give its folder with --data.path FOLDER")
    try:
        return scene_of(options, run_frame(Path(options.resume)) if options.resume else None)
    except SceneError as error:
        raise SceneError(of_another_format(data, before) or str(error)) from None


def of_another_format(data: DataConfig, before: DataConfig | None) -> str:
    """What to do where the folder holds no scene of data.format, that of the run `before` if there is one; or ""."""
    folder, wanted = Path(os.path.expanduser(data.path)), READERS.get(data.format)
    if wanted is None or not os.path.isdir(folder) or wanted.recognises(folder):
        return ""
    if before is not None and before.format == data.format:
        return (
            f"the run was trained on a scene of format {data.format}, at {shown(before.path)}; {shown(folder)} is "
            "another one. Give the run's with --data.path, or train a new run without --resume"
        )
    found = formats_of(folder)
    hint = f"format {data.format} needs {wanted.needs}; {shown(folder)} looks like {' or '.join(found)}: "
    return f"{hint}leave out --data.format, or choose {' or '.join(found)}" if found else ""


def open_folder(options: TrainOptions, config: Config, scene: Scene, processes: Processes = ALONE) -> RunFolder:
    """The run folder, locked by the first process; raises RunError if it is not this run's."""
    path = options.resume or options.out or Path("runs") / scene.name
    if not processes.is_first:
        return RunFolder(path)
    if not options.resume:
        return RunFolder.for_new_run(path, options.overwrite)
    folder = RunFolder.existing(path)
    folder.lock()
    folder.remove_leftovers(but=(METRICS,))  # which scoring may be writing
    folder.check_resumable(config, describe(scene))
    return folder


def go_on(trainer: Trainer, folder: RunFolder, scene: Scene) -> None:
    """Take up the run in `folder`."""
    trainer.restore(folder)
    config = trainer.config
    if config.trainer.steps < trainer.scheduled:
        raise RunError(
            f"the run is at step {trainer.scheduled:g} already; --trainer.steps {config.trainer.steps} is less"
        )
    if trainer.processes.is_first and trainer.progress < 1:
        folder.save_description(config, describe(scene))
        drop_later_lines(folder, trainer.step)  # before a viewer reads them


def tell_that_nothing_is_left(trainer: Trainer) -> None:
    """Print what to raise so that a run goes on which is at its end."""
    settings = trainer.config.trainer
    seconds = settings.max_seconds
    limit = f"--trainer.max_seconds, now {seconds:g}, of which {trainer.seconds:.1f} are used" if seconds else ""
    more = limit if trainer.scheduled < settings.steps else f"--trainer.steps, now {settings.steps}"
    print(f"nothing is left to train; to go on, raise {more}")


def begin(trainer: Trainer, folder: RunFolder, scene: Scene, signals: StopSignals) -> int:
    """The first step, after which the run folder is begun; the number of a signal that came before it, or 0."""
    trainer.timed_step()  # fails, if it does, before an earlier run is replaced
    trainer.check_finite()
    if number := agreed_signal(signals, trainer.processes):
        print("\nstopped before the first checkpoint; nothing was written")
        trainer.processes.wait()  # torchrun ends all as soon as one has
        return number
    if trainer.processes.is_first:
        folder.start(trainer.config, describe(scene))
    trainer.save(folder)
    return 0


def agreed_signal(signals: StopSignals, processes: Processes) -> int:
    """The number of a signal that any of the processes has got, or 0."""
    return int(processes.most(torch.tensor(signals.number or 0)).item())


def own_module(config: Config) -> tuple[str, ...]:
    """What to type so that a model of one's own is imported: a run folder never imports code by itself."""
    return ("--module", config.model.module) if config.model.module else ()


def to_go_on(config: Config, folder: RunFolder) -> str:
    """The command that goes on with a run."""
    own = {"--model.module": config.model.module, "--trainer.loss": config.trainer.loss}
    return as_typed("train", "--resume", folder.path, *(word for pair in own.items() if pair[1] for word in pair))


def tell_adjustments(trainer: Trainer) -> None:
    """Print how far cameras moved that were refined."""
    if moved := trainer.adjustments.stats():
        turned, shifted = moved["cameras_turned"], moved["cameras_shifted"]
        print(f"cameras moved by {turned:.3g} degrees and {shifted:.3g} scene units (rms over the training views)")


def tell_the_end(trainer: Trainer, folder: RunFolder) -> None:
    """Print where the run is, and what to do next."""
    print(f"run folder: {folder.path}\nnext: {as_typed('render', folder.path, *own_module(trainer.config))}")


def start_viewer(
    page: Page, trainer: Trainer, scene: Scene, images: ImagePool, folder: RunFolder, signals: StopSignals
) -> TrainingViewer:
    """Show on `page` what is trained."""
    from nerfkit.viewer.scene import ViewerScene
    from nerfkit.viewer.viewer import TrainingViewer

    shown = ViewerScene.from_training(trainer.config, trainer.model, trainer.device, scene, images, folder)
    viewer = TrainingViewer(shown, page, signals.arrived)
    viewer.attach(trainer)
    print(page.how_to_reach())
    return viewer


def show_until_stopped(viewer: TrainingViewer, trainer: Trainer) -> None:
    """After the training, keep the viewer until Ctrl-C."""
    viewer.detach(trainer)
    with StopSignals() as signals:
        print(f"the viewer goes on at {viewer.page.address} until Ctrl-C", flush=True)
        viewer.serve(signals.arrived)


def check_sizes(config: ResolvedConfig, device: torch.device) -> None:
    """Raise RunError if the options' sizes take more memory than there is."""
    model, sampling, trainer = config.model, config.sampling, config.trainer
    sizes = (
        f"a model with log2_table {model.log2_table}, {model.levels} levels, {model.features} features, hidden "
        f"{model.hidden} and occupancy_resolution {sampling.occupancy_resolution}"
    )
    n_bytes = 4 * model_bytes(config) + 24 * sampling.occupancy_resolution**3
    check_memory(n_bytes, f"{sizes}, its gradients and Adam's moments,", device)  # of which are two
    per_sample = {"features": model.levels * model.features, "state": model.state, "other": 1}
    n_values = trainer.samples * sum(VALUES_PER_SAMPLE[name] * count for name, count in per_sample.items())
    check_memory(4 * n_values, f"a step with trainer.samples {trainer.samples}", device)


def score(scene: Scene, trainer: Trainer, folder: RunFolder) -> dict[str, Any] | None:
    """Scores of the trained model on held-out views, if that is enabled and there are some."""
    config, split = trainer.config, trainer.config.eval.split
    if not config.eval.after_training:
        return None
    if split not in scene.views:
        print(f"not scored: the scene has no {split} views, only {', '.join(scene.views)}")
        return None
    state = {"seconds": trainer.seconds, "step": trainer.step, "backend": trainer.backends()}
    n_views = len(scene.split(split).cameras)
    print(f"scoring {n_views} {split} views; Ctrl-C leaves it out, for the training is saved", flush=True)
    trainer.model.eval()
    try:
        metrics = evaluate(
            trainer.model, config, scene.split(split), state, folder, trainer.device, "", trainer.processes
        )
    except KeyboardInterrupt:
        if trainer.processes.is_first:
            command = as_typed("eval", folder.path, *own_module(config))
            print(f"\nthe training is complete and saved; to score it:\n  {command}")
        raise
    print(f"{metrics['n_views']} {split} views: {in_one_line(metrics)}")
    print(where_compared(metrics, folder.path, split))
    return metrics


def span(trainer: Trainer) -> str:
    """The steps that are to be trained, and the time limit."""
    limit = trainer.config.trainer.max_seconds
    used = f", of which {trainer.seconds:.1f} s are used" if trainer.seconds else ""
    return f"steps {trainer.step} to {trainer.last_step}" + (f", at most {limit:g} s{used}" if limit else "")


def summary(scene: Scene, trainer: Trainer, folder: Path, options: TrainOptions) -> str:
    """Summary of what is about to be trained."""
    config, cameras, model = trainer.config, trainer.cameras, trainer.model
    n_parameters = sum(p.numel() for p in model.parameters())
    counts = ", ".join(f"{len(views.cameras)} {split}" for split, views in scene.views.items())
    parts = ""
    if isinstance(model, Renderer):
        stages = [type(stage).__name__ for stage in (model.encoder, model.aggregator) if stage is not None]
        parts = (
            f", a grid of {config.model.base_resolution} to {config.model.max_resolution} cells a side, along the ray: "
            f"{' and '.join(stages) or 'nothing'}"
        )
    lines = [
        f"scene     {scene.name} ({scene.format}): {counts} views of {in_words(cameras.sizes())}, "
        f"{config.data.background} background",
        *note_lines(scene.notes, "note"),
        *note_lines(scene.frame.notes if scene.frame is not None else (), "frame"),
        f"images    {trainer.views.source.text}",
        f"{space_text(config)}",
        f"model     {config.model.kind}, {n_parameters / 1e6:.2f} M parameters{parts}",
        *of_each_view(config),
        f"training  {span(trainer)}, {config.trainer.samples} samples a step, learning rate "
        f"{config.trainer.learning_rate:g}, table decay {config.trainer.table_decay:g}"
        f"{', loss ' * bool(config.trainer.loss)}{config.trainer.loss}",
        *in_parallel(trainer),
        *decision_lines(config, options.verbose),
        *(f"op        {op:<19} {chosen.backend:<6} ({chosen.reason})" for op, chosen in trainer.resolved().items()),
        f"device    {trainer.device}; {how_it_runs(trainer)}",
        *not_scored(scene, config),
        f"run       {folder}",
    ]
    return "\n".join(lines)


def note_lines(notes: Iterable[Note], name: str) -> list[str]:
    """A line each, that begins with `name`."""
    return [f"{name:<9} {note}" for note in notes]


def decision_lines(config: ResolvedConfig, verbose: bool) -> list[str]:
    """Who decided the options that may be auto: how many, or with `verbose` each."""
    if verbose:
        return [
            f"option    {name} {value_text(decision.value)} ({decision.by}{': ' * bool(decision.why)}{decision.why})"
            for name, decision in config.decisions.items()
        ]
    n_auto = sum(decision.by not in ("user", "preset") for name, decision in config.decisions.items() if name != "size")
    return [f"options   size {config.size}; {n_auto} options were left as auto: -v prints what decided each"]


def space_text(config: Config) -> str:
    """Where samples are put, in a line."""
    low, high = ([float(f"{x:.4g}") for x in corner] for corner in (config.data.box[:3], config.data.box[3:]))
    sampling, corners = config.sampling, f"{low} to {high}"
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
        f"and a step counts as {trainer.together.steps_at_once:g} of trainer.steps {steps}"
    ]


def not_scored(scene: Scene, config: Config) -> list[str]:
    """A line, before training, where nothing will be scored after it."""
    split = config.eval.split
    missing = config.eval.after_training and split not in scene.views
    return [f"scoring   none: the scene has no {split} views, only {', '.join(scene.views)}"] if missing else []


def how_it_runs(trainer: Trainer) -> str:
    """Whether a step is a CUDA graph, and what determinism costs."""
    silent = trainer.model.silent_modules if trainer.device.type == "cuda" else ()
    why = f": {', '.join(silent)} does not say in `ops` which ops of nerfkit it calls" if silent else ""
    recorded = "a step is one CUDA graph" if trainer.training_step.static_shapes else f"a step runs op by op{why}"
    if not trainer.config.trainer.deterministic:
        return recorded
    costs_nothing = trainer.device.type == "cpu"
    price = "which costs nothing on a CPU" if costs_nothing else "for which a step takes about 1.2 times as long"
    return f"{recorded}; deterministic: the same bits from the same seed, {price}"
