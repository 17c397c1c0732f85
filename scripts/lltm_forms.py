#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Other forms of the LLTM in the model, each trained beside the one that ships: which of them pays, and what for.

    python scripts/lltm_forms.py --config configs/lego.toml --data.path scenes/lego --seconds 30 --seeds 0 1 2
    python scripts/lltm_forms.py --show docs/benchmarks/lltm_forms_h200.json

Options are those of bench_train.py; --variants names some of the forms.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from nerfkit.commands import status_of  # noqa: E402
from nerfkit.commands.options import given_options  # noqa: E402
from nerfkit.config import Config  # noqa: E402
from nerfkit.data.cameras import Rays  # noqa: E402
from nerfkit.errors import UserError  # noqa: E402
from nerfkit.model.aggregator import RayAggregator  # noqa: E402
from nerfkit.model.compositing import Rendering, composite_samples  # noqa: E402
from nerfkit.model.decoder import Decoder  # noqa: E402
from nerfkit.model.renderer import Renderer  # noqa: E402
from nerfkit.model.sampling import Samples  # noqa: E402
from nerfkit.ops import lltm, spherical_harmonics  # noqa: E402
from nerfkit.ops.packed import ray_indices  # noqa: E402
from nerfkit.training.trainer import Trainer  # noqa: E402
from scripts.bench_train import Case, bench, parse  # noqa: E402


@dataclass(frozen=True)
class Form:
    """How the LLTM stands in the model; the defaults are what ships."""

    sees: str = "encoded"  # features | embedding | opaque: encoded features times the sample's opacity
    enters: str = "color"  # the color network's first layer; embedding: added to that; rgb: added before the sigmoid
    rate: float = 1.0  # learning rate of its parameters, relative
    start: str = "uniform"  # small: a tenth of that; closed: input gates at sigmoid(-2); heard: color's weights not 0
    from_far: bool = False  # walks from far to near


class FormAggregator(RayAggregator):
    """An LLTM that starts and learns as its form says."""

    def __init__(self, n_input: int, n_state: int, form: Form):
        super().__init__(n_input, n_state)
        self.form = form
        with torch.no_grad():
            if form.start == "small":
                self.weight *= 0.1
            if form.start == "closed":
                self.bias[:n_state] = -2.0
            for parameter in self.parameters():  # Adam's steps are of one size: what is multiplied learns faster
                parameter /= form.rate

    def forward(self, input: Tensor, ray_offsets: Tensor) -> Tensor:
        order = mirrored(ray_offsets, len(input)) if self.form.from_far else None
        h0, c0 = (input.new_zeros(ray_offsets.shape[0] - 1, self.n_state) for _ in range(2))  # [R, H]
        weight, bias = self.form.rate * self.weight, self.form.rate * self.bias
        state, _, _ = lltm(input if order is None else input[order], ray_offsets, weight, bias, h0, c0)
        return state if order is None else state[order]


def mirrored(ray_offsets: Tensor, n_samples: int) -> Tensor:
    """Row [N] that a sample's row changes places with when rays are walked from far to near."""
    ray_index = ray_indices(ray_offsets, n_samples)
    ends = ray_offsets[:-1] + ray_offsets[1:] - 1  # [R] of first and last row
    return ends[ray_index] - torch.arange(n_samples, device=ray_offsets.device)


class FormRenderer(Renderer):
    """The renderer with an LLTM of another form."""

    def __init__(self, form: Form, config: Config):
        super().__init__(config)
        self.form, self.is_silent = form, False
        model, n_features = config.model, self.grid.n_features
        self.aggregator = FormAggregator(model.embedding if form.sees == "embedding" else n_features, model.state, form)
        if form.enters != "color":
            self.decoder = Decoder(replace(model, aggregator=False), n_features)
            n_out = {"embedding": model.embedding, "rgb": 3}[form.enters]
            self.enter = nn.Parameter(torch.zeros(n_out, model.state))
        elif form.start == "heard":
            first, _ = self.decoder.color_net.layers()[0]  # [hidden, n_in]
            with torch.no_grad():
                first[:, -model.state :].uniform_(-(model.state**-0.5), model.state**-0.5)

    def forward(
        self, rays: Rays, background: Tensor, jitter: Tensor | None = None, capacity: int | None = None
    ) -> Rendering:
        samples = self.sampler(rays, self.density, jitter, capacity)
        with self.autocast(rays.origins.device):
            features = self.grid(samples.positions)
            encoded = self.encoder(features, samples.ray_offsets) if self.encoder else features
            density, embedding = self.decoder.density(features)
            seen = {"encoded": encoded, "features": features, "embedding": embedding}.get(self.form.sees)
            if seen is None:
                seen = encoded * opacity(density, samples)[:, None].to(encoded.dtype)
            state = self.aggregator(seen, samples.ray_offsets) * (0.0 if self.is_silent else 1.0)  # [N, H]
            directions = spherical_harmonics(rays.directions, samples.ray_index, embedding.dtype)  # [N, 16]
            context = [encoded] if self.encoder else []
            rgb = self._color(embedding, directions, context, state)
            return composite_samples(samples, density, rgb, background)

    def _color(self, embedding: Tensor, directions: Tensor, context: list[Tensor], state: Tensor) -> Tensor:
        if self.form.enters == "color":
            return self.decoder.color(embedding, directions, *context, state)
        added = F.linear(state, self.enter)
        if self.form.enters == "embedding":
            return self.decoder.color(embedding + added, directions, *context)
        return (self.decoder.color_net(embedding, directions, *context) + added).float().sigmoid()


def opacity(density: Tensor, samples: Samples) -> Tensor:
    """Of each sample [N]; gradients stay out, for it is to say what is seen and not to be changed by it."""
    return -torch.expm1(-density.detach() * (samples.t_ends - samples.t_starts))


def without_state(trainer: Trainer, score: Callable[[], float]) -> dict[str, Any]:
    """What is left of the score where the state is 0."""
    trainer.model.is_silent = True
    silent = round(score(), 3)
    trainer.model.is_silent = False
    return {"psnr_without_state": silent}


def case(name: str, form: Form | None, changes: str = "") -> Case:
    if form is None:
        return Case(changes, name=name)
    changes = ",".join(filter(None, ("model.aggregator=true", changes)))  # of captures it is off
    return Case(changes, partial(FormRenderer, form), name, without_state)


NO_LLTM, NO_ENCODER = "model.aggregator=false", "model.encoder=false"
CASES = [
    case("field", None, f"{NO_ENCODER},{NO_LLTM}"),
    case("encoder", None, NO_LLTM),
    case("LLTM", Form(), NO_ENCODER),
    case("both", Form()),
    case("encoder of 5 taps", None, f"{NO_LLTM},model.kernel=5"),
    case("encoder of 7 taps", None, f"{NO_LLTM},model.kernel=7"),
    case("sees features", Form(sees="features")),
    case("sees embedding", Form(sees="embedding")),
    case("sees what is opaque", Form(sees="opaque")),
    case("sees what is opaque, no encoder", Form(sees="opaque"), NO_ENCODER),
    case("from far to near", Form(from_far=True)),
    case("from far to near, no encoder", Form(from_far=True), NO_ENCODER),
    case("enters embedding", Form(enters="embedding")),
    case("enters rgb", Form(enters="rgb")),
    case("state 32", Form(), "model.state=32"),
    case("state 64", Form(), "model.state=64"),
    case("rate x 0.1", Form(rate=0.1)),
    case("rate x 0.3", Form(rate=0.3)),
    case("rate x 3", Form(rate=3.0)),
    case("starts small", Form(start="small")),
    case("starts closed", Form(start="closed")),
    case("starts heard", Form(start="heard")),
]


def main(arguments: list[str]) -> int:
    options = parse(arguments, __doc__, "scripts/lltm_forms.py")
    if options.show:
        print(markdown(json.loads(options.show.read_text())["runs"]))
        return 0
    known = {c.name: c for c in CASES}
    names = [name for name in options.variants if name] or list(known)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UserError(f"--variants: no form is called {', '.join(map(repr, unknown))}; known: {', '.join(known)}")
    bench(options, [known[name] for name in names], given_options(arguments))
    return 0


def markdown(runs: list[dict[str, Any]]) -> str:
    """A line for each form: means over its runs, and half the spread of the score."""
    lines = [
        "| form | runs | test views | train views | without the state | steps |",
        "|---|---:|---|---:|---:|---:|",
    ]
    for name in dict.fromkeys(r["name"] for r in runs):
        group = [r for r in runs if r["name"] == name]
        test = [r["psnr"] for r in group]
        train, silent, steps = (
            sum(r.get(key, 0) for r in group) / len(group) for key in ("train_psnr", "psnr_without_state", "steps")
        )
        lines.append(
            f"| {name} | {len(group)} | {sum(test) / len(test):.2f} ± {(max(test) - min(test)) / 2:.2f} dB | "
            f"{train:.2f} | {f'{silent:.2f}' if silent else ''} | {steps:.0f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(status_of(lambda: main(sys.argv[1:])))
