# SPDX-License-Identifier: Apache-2.0
"""`nerfkit train`: train a scene, or resume a run, then score it."""

import os
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nerfkit import ops
from nerfkit.commands import StopSignals, command_line
from nerfkit.commands.eval import print_scores
from nerfkit.commands.options import TrainOptions
from nerfkit.config import Config, DataConfig, ResolvedConfig, SamplingConfig
from nerfkit.config.recipe import UNLIMITED, value_text
from nerfkit.data.load import scene_of
from nerfkit.data.scene import Scene
from nerfkit.data.scene_transform.diagnostics import image_diagnostics, number_diagnostics
from nerfkit.data.scene_transform.transform import corner_text
from nerfkit.device import check_memory, pick_device, seed_everything
from nerfkit.errors import RunError, SceneError
from nerfkit.metrics import Lpips
from nerfkit.model.registry import import_models, model_bytes, model_class
from nerfkit.parallel import SINGLE_PROCESS, Processes
from nerfkit.safe_io import printable
from nerfkit.training.evaluator import check_scorable, evaluate
from nerfkit.training.run.files import SETUP, has_checkpoint, read_config, read_lines, warn_of_run
from nerfkit.training.run.folder import RunFolder, describe, drop_later_lines, run_transform
from nerfkit.training.step.losses import loss_function
from nerfkit.training.trainer import Trainer
from nerfkit.training.watching import Progress, summary_writer
from nerfkit.viewer.page import Page

# float32 values of a sample, of each of its features and of all else; a measured lower bound of a step.
VALUES_PER_FEATURE, OTHER_VALUES = 6, 192
SHORT = ("scene", "warning:", "views", "training", "parallel", "device", "scoring", "run")  # printed without -v


def main(options: TrainOptions, processes: Processes = SINGLE_PROCESS, is_last: bool = True) -> int:
    """Train, score, and show the training in a browser if that is asked for; what to type next is said in the end."""
    device = pick_device(processes.join(options.device))
    check_before_reading(options, device, processes)
    page = Page(options.viewer, "nerfkit: reading") if options.viewer.on else None  # fails before anything is read
    try:
        return train(options, device, page, processes, is_last)
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


def train(options: TrainOptions, device: torch.device, page: Page | None, processes: Processes, is_last: bool) -> int:
    scene = find_scene(options)
    config = options.resolved(scene, device, model_class(options))
    check_sizes(config, device)  # again: a place takes more than an object
    if config.eval.after_training and config.eval.split in scene.views:
        check_scorable(scene.split(config.eval.split))
    folder = processes.rank0_first(lambda: open_folder(options, config, scene, processes))
    views = scene.split("train")
    images = views.load(processes.is_first, with_depth=config.trainer.depth > 0)
    if processes.is_first:
        doubts = image_diagnostics(images, views.white_ignores, config.data.background)
        for line in (*number_diagnostics(len(views.cameras)), *doubts):
            warnings.warn(line, stacklevel=2)
    seed_everything(config.seed)  # what a model of one's own may draw
    trainer = Trainer(config, views.cameras, images, scene=scene, device=device, processes=processes)
    progress = Progress(trainer, scene)
    settings = config.trainer
    with StopSignals() as signals:
        if options.resume:
            go_on(trainer, folder, scene)
        rows = summary(scene, trainer, folder.path)
        print(in_lines(rows if options.verbose else [row for row in rows if row[0] in SHORT]))
        is_done = trainer.progress >= 1
        if not options.resume and (number := begin(trainer, folder, scene, signals)):
            return 128 + number
        if processes.is_first and not options.resume:  # or else what was decided in the beginning would be lost
            folder.write(SETUP, in_lines(rows) + "\n")
        progress.attach(folder)
        viewer = None
        if page is not None:
            from nerfkit.viewer.scene import ViewerScene
            from nerfkit.viewer.viewer import TrainingViewer

            subject = ViewerScene.from_training(config, trainer.model, trainer.device, scene, images, folder)
            viewer = TrainingViewer(subject, page, signals.arrived)
            viewer.attach(trainer)
            print(page.how_to_reach())
        finished = trainer.train(folder, progress_bar=True, should_stop=signals.arrived)
        if not finished:
            if viewer is not None:
                viewer.drop_jobs()
            own = {"--model.module": config.model.module, "--trainer.loss": settings.loss}
            words = [word for option, value in own.items() if value for word in (option, value)]
            command = command_line("train", "--resume", folder.path, *words)
            print(f"\nstopped at step {trainer.step}, saved. Go on with:\n  {command}", flush=True)
            progress.finish(stopped=True)
            progress.close()
            number = agreed_signal(signals, processes)
            processes.barrier()
            return 128 + number
        progress.finish()
    limit = settings.max_seconds
    over = f": ended by trainer.max_seconds {limit:g}" if limit and trainer.seconds >= limit else ""
    in_all = f"{trainer.step} steps in {trainer.seconds:.1f} s{' in all' if options.resume else ''}{over}"
    if is_done:
        more = "--trainer.max_seconds" if trainer.scheduled < settings.steps else "--trainer.steps"
        print(f"nothing was left to train, the run has {in_all}; to continue it, raise {more}")
    else:
        print(f"trained {in_all}")
    if moved := trainer.adjustments.stats():
        turned, shifted = moved["cameras_turned"], moved["cameras_shifted"]
        print(f"cameras moved by {turned:.3g} degrees and {shifted:.3g} model units (rms over the training views)")
    metrics = None
    try:
        metrics = score(scene, trainer, folder)
    finally:
        progress.close(metrics)
    warn_of_run(read_lines(folder.path))
    further = f"\nnext: {command_line('render', folder.path, *own_module(config))}" * is_last
    print(f"run folder: {folder.path}{further}")
    if viewer is not None:
        viewer.detach(trainer)
        with StopSignals() as signals:
            print(f"the viewer goes on at {page.address} until Ctrl-C", flush=True)
            viewer.serve(signals.arrived)
    return 0


def find_scene(options: TrainOptions) -> Scene:
    """The scene, in the frame of the run that goes on if there is one."""
    data, before = options.data, read_config(Path(options.resume)).data if options.resume else None
    if before is not None and data.path == before.path and not os.path.exists(data.path):
        raise RunError(
            f"the run's scene is no longer at {printable(data.path)}; give its folder with --data.path FOLDER"
        )
    transform = run_transform(Path(options.resume)) if options.resume else None
    try:
        return scene_of(options, transform)
    except SceneError as error:
        if options.config and not options.resume and not os.path.exists(data.path):
            without = f"without one, try {command_line('demo')}"
            raise SceneError(f"{error}; scenes of presets come with a checkout of nerfkit; {without}") from None
        if before is None or before.path == data.path:
            raise
        raise SceneError(
            f"{error}. The run's scene was {printable(before.path)}, of format {before.format}; give it with "
            "--data.path, or train another scene without --resume"
        ) from None


def open_folder(options: TrainOptions, config: Config, scene: Scene, processes: Processes) -> RunFolder:
    """The run folder, locked by the first process; raises RunError if it is not this run's."""
    path = options.resume or options.out or Path("runs") / scene.name
    if not processes.is_first:
        return RunFolder(path)
    if not options.resume:
        folder = RunFolder.for_new_run(path, options.overwrite)
        if has_checkpoint(folder.path):
            print(f"--overwrite: this replaces the run in {folder.path}, with its exports and renderings")
        return folder
    folder = RunFolder.existing(path)
    folder.lock()
    folder.check_resumable(config, describe(scene))
    return folder


def go_on(trainer: Trainer, folder: RunFolder, scene: Scene) -> None:
    trainer.restore(folder)
    config = trainer.config
    if config.trainer.steps < trainer.scheduled:
        raise RunError(
            f"the run is at step {trainer.scheduled:g} already; give more than --trainer.steps {config.trainer.steps}"
        )
    if trainer.processes.is_first and trainer.progress < 1:
        folder.save_description(config, describe(scene))
        drop_later_lines(folder, trainer.step)  # before a viewer reads them


def begin(trainer: Trainer, folder: RunFolder, scene: Scene, signals: StopSignals) -> int:
    """The first step, after which the run folder is begun; the number of a signal that came before it, or 0."""
    trainer.timed_step()  # fails, if it does, before an earlier run is replaced
    trainer.check_finite()
    if number := agreed_signal(signals, trainer.processes):
        print("\nstopped before the first checkpoint; nothing was written")
        trainer.processes.barrier()  # torchrun ends all as soon as one has
        return number
    if trainer.processes.is_first:
        folder.start(trainer.config, describe(scene))
    trainer.save(folder)
    return 0


def agreed_signal(signals: StopSignals, processes: Processes) -> int:
    return int(processes.all_reduce_max(torch.tensor(signals.number or 0)).item())


def own_module(config: Config) -> tuple[str, ...]:
    """What to type so that a model of one's own is imported: a run folder never imports code by itself."""
    return ("--module", config.model.module) if config.model.module else ()


def check_sizes(config: ResolvedConfig, device: torch.device) -> None:
    model, sampling, trainer = config.model, config.sampling, config.trainer
    sizes = (
        f"a model with log2_hashmap_size {model.log2_hashmap_size}, {model.levels} levels, {model.features_per_level} "
        f"features, mlp_width {model.mlp_width} and occupancy_resolution {sampling.occupancy_resolution}"
    )
    n_bytes = 4 * model_bytes(config) + 24 * sampling.occupancy_resolution**3
    check_memory(n_bytes, f"{sizes}, its gradients and Adam's moments,", device)  # of which are two
    n_values = trainer.samples_per_step * (VALUES_PER_FEATURE * model.levels * model.features_per_level + OTHER_VALUES)
    check_memory(4 * n_values, f"a step with trainer.samples_per_step {trainer.samples_per_step}", device)


def score(scene: Scene, trainer: Trainer, folder: RunFolder) -> dict[str, Any] | None:
    """Scores of the trained model on held-out views, if that is enabled and there are some."""
    config, split = trainer.config, trainer.config.eval.split
    if not config.eval.after_training or split not in scene.views:
        return None
    state = {"seconds": trainer.seconds, "step": trainer.step, "backend": trainer.backends()}
    views = scene.split(split)
    print(f"the training is saved; scoring {len(views.files)} {split} views (Ctrl-C skips this)", flush=True)
    trainer.model.eval()
    try:
        if trainer.processes.is_first:
            folder.lock()
        metrics = evaluate(trainer.model, config, views, state, folder, trainer.device, "", trainer.processes)
    except (KeyboardInterrupt, RunError):
        if trainer.processes.is_first:
            command = command_line("eval", folder.path, *own_module(config))
            print(f"\nthe training is complete and saved; to score it:\n  {command}")
        raise
    finally:
        folder.unlock()
    print_scores(metrics, folder.path, split)
    return metrics


def summary(scene: Scene, trainer: Trainer, folder: Path) -> list[tuple[str, str]]:
    config, processes = trainer.config, trainer.processes
    data, sampling, settings = config.data, config.sampling, config.trainer
    n_parameters = sum(p.numel() for p in trainer.model.parameters())
    limit = f", at most {settings.max_seconds:g} s" if settings.max_seconds else ""
    to_last = " on" if settings.steps == UNLIMITED else f" to {trainer.last_step}"
    used = f", of which {trainer.seconds:.1f} s are used" if limit and trainer.seconds else ""
    beyond = f", and contracted outside of it, to a distance of {sampling.far:.4g}" * (sampling.kind == "contracted")
    apart = f"samples {sampling.step_size:g} apart{', farther apart with distance' * (sampling.kind == 'contracted')}"
    has_light = data.appearance == "affine"
    learned = ["its light"] * has_light + ["its pose"] * data.pose_optimization
    because = ", as light changes from image to image" * (has_light and "data.appearance" in config.decisions)
    frame_notes = scene.transform.notes if scene.transform is not None else ()
    rows = [
        *(("scene", sentence) for sentence in scene.about),
        ("format", scene.format),
        *(("warning:" if note.kind == "warning" else "note", note.text) for note in (*scene.notes, *frame_notes)),
        ("images", f"{trainer.views.source.description}; background: {data.background}"),
        ("space", f"the box {corner_text(np.reshape(data.box, (2, 3)))}{beyond}; {apart}"),
        ("model", f"{config.model.kind}, {n_parameters / 1e6:.2f} M parameters"),
        *[("views", f"each training view learns {' and '.join(learned)}{because}")] * bool(learned),
        (
            "training",
            f"from step {trainer.step}{to_last}{limit}{used}, {settings.samples_per_step} samples a step, "
            f"learning rate {settings.learning_rate:g}{', loss ' * bool(settings.loss)}{settings.loss}",
        ),
    ]
    if processes.size > 1:
        rows.append(("parallel", f"{processes.description}; a step counts as {processes.size} of trainer.steps"))
    rows.append(("options", f"{len(config.decisions)} were left at auto, and are:"))
    decisions = config.decisions.items()
    rows += [("option", f"{name} {value_text(made.value)} ({made.why})") for name, made in decisions]
    rows += [("op", f"{op:<19} {chosen.backend:<6} ({chosen.reason})") for op, chosen in trainer.resolved().items()]
    rows.append(("device", f"{trainer.device}{how_it_runs(trainer)}"))
    if config.eval.after_training and config.eval.split not in scene.views:
        rows.append(("scoring", f"none: the scene has no {config.eval.split} views, only {', '.join(scene.views)}"))
    return [*rows, ("run", f"{folder} (what was decided, and why: {folder / SETUP})")]


def in_lines(rows: list[tuple[str, str]]) -> str:
    return "\n".join(f"{name:<8} {text}" for name, text in rows)


def how_it_runs(trainer: Trainer) -> str:
    on_gpu = trainer.device.type == "cuda"
    silent = trainer.model.silent_modules if on_gpu else ()
    why = f": {', '.join(silent)} does not say in `ops` which ops of nerfkit it calls" if silent else ""
    recorded = "a step is one CUDA graph" if trainer.training_step.static_shapes else f"a step runs op by op{why}"
    same = "deterministic: the same bits from the same seed"
    return "".join(f"; {words}" for words in [recorded] * on_gpu + [same] * trainer.config.trainer.deterministic)
