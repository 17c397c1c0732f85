# SPDX-License-Identifier: Apache-2.0
"""Losses: functions of a rendering and its batch that return terms by name, whose sum is minimised."""

import math
from collections.abc import Callable
from operator import attrgetter

import torch
from torch import Tensor

from nerfkit.config import Config
from nerfkit.data.images.batch import Batch
from nerfkit.data.images.pixels import blend
from nerfkit.errors import ConfigError, UserError
from nerfkit.model.compositing import Rendering
from nerfkit.model.registry import import_own
from nerfkit.ops import distortion
from nerfkit.safe_io import printable

LossFn = Callable[[Rendering, Batch], dict[str, Tensor]]

SMALLEST = 1e-6  # distance and sum of weights, for a division
DEPTH_FALL = 0.03  # of the weight of the depth loss, from the start of the schedule to its end
DISTORTION_RAMP = 0.2  # share of the schedule over which the weight of the distortion loss rises


def squared_error(rendering: Rendering, batch: Batch) -> dict[str, Tensor]:
    """The weighted mean of the squared error of the colors, as the term "mse".

    batch.weight [R] is 0 for rays beyond the capacity, and for padding of static shapes: every loss has to use it.
    """
    error = (rendering.color - blend(batch.pixels, batch.background)).square().mean(-1)  # [R]
    return {"mse": weighted_mean(error, batch.weight)}


def depth_error(rendering: Rendering, depth: Tensor) -> Tensor:
    r"""How little of the rays' weights lies at measured distances, [].

    .. math:: 1 - \sum_i w_i \, (1 - \min(|t_i - d| / d, 1))

    of a ray with samples at t and weights w, at the distance d: it falls as the expected depth comes near, as what is
    before the surface and behind it vanishes, and as the ray becomes opaque. A wrong distance does bounded harm.
    `depth` [R, 2] are distances and how much each ray counts, 0 where nothing was measured.
    """
    samples, (distance, counts) = rendering.samples, depth.unbind(-1)
    measured, of_ray = (x.index_select(0, samples.ray_index) for x in (distance, counts))  # [N] each
    off = ((samples.t_starts + samples.t_ends) / 2 - measured).abs() / measured.clamp(min=SMALLEST)
    at_it = (rendering.weights * (1 - off.clamp(max=1)) * of_ray).sum()
    return (counts.sum() - at_it) / counts.sum().clamp(min=SMALLEST)


class LossError(UserError, TypeError):
    """A loss of one's own returns what cannot be minimised."""


class TrainingLoss:
    """The data term, the squared error or one of your own, and distortion and depth if the options ask for them."""

    def __init__(self, config: Config, data_term: LossFn | None = None):
        self.data_term = data_term or squared_error
        self.distortion, self.spacing = config.trainer.distortion, spacing(config)
        self.ops = ("distortion",) if self.distortion else ()
        self.depth = config.trainer.depth

    def __call__(self, rendering: Rendering, batch: Batch) -> dict[str, Tensor]:
        terms = self.data_term(rendering, batch)
        are_scalars = isinstance(terms, dict) and all(isinstance(x, Tensor) and x.dim() == 0 for x in terms.values())
        if not are_scalars or not terms:
            raise LossError(
                f"a loss_fn, or trainer.loss, must return a dict of scalar tensors by name, such as {{'l1': "
                f"nerfkit.weighted_mean(error, batch.weight)}}; got {printable(repr(terms))}"
            )
        samples, weights = rendering.samples, rendering.weights
        for name in [name for name in ("distortion", "depth") if getattr(self, name)]:
            if name in terms:
                raise LossError(f"a loss of your own must not have a term '{name}': trainer.{name} is called so")
            if samples is None or weights is None:
                raise UserError(f"trainer.{name} needs a model whose renderings have samples and weights; set it to 0")
        if self.distortion:
            of_rays = distortion(weights, samples.t_starts, samples.t_ends, samples.ray_offsets, *self.spacing)
            of_rays = of_rays[: len(rendering.color)]  # [R], without the padding rays
            # At full weight from the start, all samples of a ray may draw together right in front of its camera, before
            # anything is known of where the scene is, and stay there.
            ramp = 1.0 if batch.progress is None else (batch.progress / DISTORTION_RAMP).clamp(max=1.0)  # []
            terms = terms | {"distortion": self.distortion * ramp * weighted_mean(of_rays, batch.weight)}
        if self.depth and batch.depth is not None:
            # Depth helps to find surfaces. At full weight to the end, its errors would count for more than those of
            # colors, and sharp scenes would stay blurred.
            fall = 1.0 if batch.progress is None else (batch.progress * math.log(DEPTH_FALL)).exp()  # []
            terms = terms | {"depth": self.depth * fall * depth_error(rendering, batch.depth)}
        return terms

    def pixel_error(self, terms: dict[str, Tensor], rendering: Rendering, batch: Batch) -> Tensor:
        """The squared error of the pixels [], whatever the data term: of it is the PSNR that is logged."""
        if self.data_term is squared_error:
            return terms["mse"]
        with torch.no_grad():
            return squared_error(rendering, batch)["mse"]


def data_term(name: str, loss_fn: LossFn | None) -> LossFn | None:
    """The data term of one's own, given or named by trainer.loss; raises ConfigError for two."""
    if loss_fn is None:
        return loss_function(name) if name else None
    if name not in ("", name_of(loss_fn)):
        raise ConfigError(f"trainer.loss is {name}, loss_fn {name_of(loss_fn)}; give one of them")
    return loss_fn


def loss_function(name: str) -> LossFn:
    """The function that `--trainer.loss package.module:function` names; raises ConfigError."""
    module, _, function = name.partition(":")
    if not function:
        raise ConfigError(f"trainer.loss: give package.module:function, got {name!r}")
    try:
        found = attrgetter(function)(import_own(module, "trainer.loss"))
    except AttributeError:
        raise ConfigError(f"trainer.loss: the module {module} has no function {function}") from None
    if not callable(found):
        raise ConfigError(f"trainer.loss: {name} is no function")
    return found


def name_of(loss_fn: LossFn) -> str:
    """As `loss_function` takes it, if the function can be imported."""
    named = loss_fn if hasattr(loss_fn, "__qualname__") else type(loss_fn)
    return f"{named.__module__}:{named.__qualname__}"


def spacing(config: Config) -> tuple[float, float, float]:
    """near, far and linear of `nerfkit.ops.distortion`: how distances count, as the intervals are long.

    In unbounded space the unit is the distance up to which intervals have one length, wherever near and far are: so a
    weight means the same in a scene of a narrow range.
    """
    sampling, box = config.sampling, config.data.box
    if sampling.kind == "contracted":
        linear = sampling.step_size / sampling.cone_angle if sampling.cone_angle else sampling.far
        return 0.0, linear, linear
    diagonal = math.dist(box[:3], box[3:])
    return 0.0, diagonal, diagonal


def weighted_mean(values: Tensor, weight: Tensor) -> Tensor:
    """Mean of `values` [R] with weights [R]; 0 where all weights are."""
    return (values * weight).sum() / weight.sum().clamp(min=1e-12)
