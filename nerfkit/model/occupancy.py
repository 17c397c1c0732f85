# SPDX-License-Identifier: Apache-2.0
"""Where space is occupied, as a grid of cells that follows the density field.

Cells that no training camera sees are never occupied: nothing could tell what is in them, and floaters would grow
there. Nor are those that no training ray has reached for a while, such as all that lies behind a wall, or below the
ground that an object stands on: it costs samples, and whoever looks from elsewhere would see what nobody has trained.
Nor what is close to a camera and seen by few: a cloud there explains their images, and hides the scene from others.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nerfkit.config import SamplingConfig
from nerfkit.data.cameras.cameras import Cameras
from nerfkit.device import generator_on
from nerfkit.parallel import Processes

OCCUPANCY_DECAY = 0.9  # of a cell's opacity, at each update
BLOCK = 2  # cells a side of the blocks that are projected into the cameras, and that rays reach
REACHED_UPDATES = 32  # of the occupancy grid, after which a block that no ray has reached is empty
MAX_POINTS = 2**22  # of blocks, projected at a time
CLOSE = 4.0  # times sampling.near, which is about half the distance of the nearest thing; at most a quarter of the box
VIEWERS = 3  # cameras that have to see what is close to one of them; fewer where there are few cameras
STRIDE = 16  # from one view to the next: what distant ones see is not projected into those between

DensityFn = Callable[[Tensor], Tensor]  # positions [N, 3] of the model -> density [N]


class OccupancyGrid(nn.Module, ABC):
    """The cells, and their updates; what of space they cover, a sampler that derives from it says."""

    update_every, warmup_steps = 16, 256  # training steps between two updates; in which an update visits every cell
    progress = 0.0  # share of the training's schedule that is done
    drawn_anywhere, drawn_occupied = 4, 8  # later it visits one of so many cells, and as many occupied ones as that

    def __init__(self, config: SamplingConfig, box: Tensor):
        super().__init__()
        self.config = config
        side = config.occupancy_resolution
        self.register_buffer("box", box.clone())  # [2, 3]
        self.register_buffer("opacity", torch.zeros(side, side, side))  # of an interval of length step, decaying
        self.register_buffer("occupancy", torch.ones(side, side, side, dtype=torch.bool))
        self.register_buffer("threshold", torch.zeros(()))  # opacity below which samples are not rendered
        self.register_buffer("seen", torch.ones(side, side, side, dtype=torch.bool))  # by a training camera
        self.prunes_unreached = True  # blocks that no ray reaches
        blocks = (-(-side // BLOCK),) * 3
        self.register_buffer("unreached", torch.zeros(blocks, dtype=torch.uint8))  # updates since a ray was in a block

    @abstractmethod
    def to_world(self, unit: Tensor) -> Tensor:
        """World positions [M, 3] of positions in the grid, [M, 3] in [0, 1]."""

    @abstractmethod
    def to_unit(self, positions: Tensor) -> Tensor:
        """Positions in the grid, [M, 3] in [0, 1], of world positions [M, 3]: the inverse of `to_world`."""

    def stats(self) -> dict[str, float]:
        """Shares of the cells that are occupied, and that a training camera sees; of blocks that rays reach."""
        shares = {"occupied": self.occupancy, "seen": self.seen, "reached": self.unreached < REACHED_UPDATES}
        return {name: round(cells.float().mean().item(), 4) for name, cells in shares.items()}

    @torch.no_grad()
    def update(self, density_fn: DensityFn, step: int) -> None:
        """Update the occupancy grid from the density field, every `update_every` training steps.

        In the warm-up all cells are evaluated, later some of them and some occupied ones, at a random point of each; a
        cell's opacity is the maximum of the new value and the old one, decayed by 10 %. Nothing synchronizes with the
        GPU.
        """
        if step % self.update_every:
            return
        is_warmed_up = step >= self.warmup_steps
        if self.prunes_unreached and is_warmed_up:
            torch.where(self.unreached < 255, self.unreached + 1, self.unreached, out=self.unreached)
        opacity, side = self.opacity.flatten(), self.config.occupancy_resolution
        cells = self._some_cells() if is_warmed_up else torch.arange(len(opacity), device=opacity.device)
        opacity *= OCCUPANCY_DECAY
        for chunk in cells.split(2**18):
            corner = torch.stack([chunk // side**2, chunk // side % side, chunk % side], dim=-1)  # [M, 3], in cells
            shift = torch.rand(corner.shape, device=chunk.device, generator=generator_on(chunk.device))
            points = self.to_world((corner + shift) / side)
            evaluated = -torch.expm1(-density_fn(points) * self.config.step_size)
            opacity.scatter_reduce_(0, chunk, evaluated, "amax")
        mean = (self.opacity * self.seen).sum() / self.seen.sum().clamp(min=1)  # of cells that may be occupied
        threshold = mean.clamp(max=self.config.alpha_threshold)
        torch.gt(self.opacity, threshold, out=self.occupancy)
        self.occupancy &= self.seen
        self.occupancy &= self._cells(self.unreached < REACHED_UPDATES, margin=1)
        if is_warmed_up:  # before, what is thin has to learn whether it is empty
            self.threshold.copy_(threshold)

    @torch.no_grad()
    def set_training_cameras(self, cameras: Cameras, all_at_once: bool = True) -> None:
        """Note which cells a camera sees at least `near` away; all others stay empty. Unless all images are drawn from
        `all_at_once`, no block is emptied for want of rays: what is seen in some images alone has none for a while."""
        self.seen.copy_(self._seen_cells(cameras))
        self.occupancy &= self.seen
        self.prunes_unreached = all_at_once

    def sync_ranks(self, processes: Processes) -> None:
        """What the rays of one of several processes reach is reached for all."""
        if processes.size > 1:
            self.unreached.copy_(255 - processes.all_reduce_max(255 - self.unreached))

    def mark_reached(self, positions: Tensor, is_used: Tensor) -> None:
        """Note the blocks of samples at world positions [N, 3]; rows that are used, bool [N], come first."""
        side = self.unreached.shape[0]
        a_unit = self.config.occupancy_resolution / BLOCK  # blocks
        block = (self.to_unit(positions) * a_unit).long().clamp_(0, side - 1)  # [N, 3]
        index = (block[:, 0] * side + block[:, 1]) * side + block[:, 2]
        self.unreached.view(-1).index_fill_(0, torch.where(is_used, index, index[:1]), 0)

    def _cells(self, blocks: Tensor, margin: int = 0) -> Tensor:
        """Cells [N, N, N] bool in one of the `blocks` [B, B, B] bool, or at most `margin` blocks beside one."""
        side = self.config.occupancy_resolution
        grown = F.max_pool3d(blocks[None, None].to(torch.float32), 2 * margin + 1, stride=1, padding=margin)[0, 0] > 0
        for axis in range(3):
            grown = grown.repeat_interleave(BLOCK, dim=axis)
        return grown[:side, :side, :side]

    def _seen_cells(self, cameras: Cameras) -> Tensor:
        """Cells [N, N, N] bool in or beside a block whose middle some camera sees, but none that clouds would fill."""
        n_blocks = self.unreached.shape[0]
        middles = (torch.arange(n_blocks, device=self.box.device) + 0.5) * BLOCK / self.config.occupancy_resolution
        unit = torch.cartesian_prod(middles, middles, middles)  # [n_blocks^3, 3]
        few = min(VIEWERS, 1 + len(cameras) // 8)
        parts = [self._viewers(self.to_world(part), cameras, few) for part in unit.split(MAX_POINTS)]
        viewers, nearest = (torch.cat(part).view(n_blocks, n_blocks, n_blocks) for part in zip(*parts, strict=True))
        close = min(CLOSE * self.config.near, (self.box[1] - self.box[0]).max().item() / 4)
        return self._cells(viewers > 0, margin=1) & ~self._cells((viewers < few) & (nearest < close))

    def _viewers(self, points: Tensor, cameras: Cameras, enough: int) -> tuple[Tensor, Tensor]:
        """In how many images points [P, 3] lie, not nearer than `near`, up to `enough`; and where these are fewer, the
        distance of the nearest camera [P]."""
        viewers = torch.zeros(len(points), dtype=torch.int32, device=points.device)
        nearest = torch.full_like(points[:, 0], torch.inf)
        sizes, left = cameras.sizes(), torch.arange(len(points), device=points.device)  # not in enough images so far
        for view in sorted(range(len(cameras)), key=lambda view: view % STRIDE):
            away = points[left] - cameras.positions[view]
            distance = torch.linalg.vector_norm(away, dim=-1)
            nearest[left] = torch.minimum(nearest[left], distance)
            is_wide = bool(cameras.lenses) and cameras.lenses[view].is_wide  # may see what is behind its camera
            ahead = is_wide | (away @ cameras.camera_to_world[view, :, 2].to(away.dtype) < 0)
            tried = left[ahead & (distance >= self.config.near)]
            pixel, _ = cameras.project(points[tried].to(cameras.positions.dtype), view)  # [P, 2]
            (width, height), (x, y) = sizes[view], pixel.unbind(-1)
            viewers[tried] += ((x >= 0) & (x <= width) & (y >= 0) & (y <= height)).int()
            left = left[viewers[left] < enough]
        return viewers, nearest

    def _some_cells(self) -> Tensor:
        """Random cells, and some drawn from the occupied ones."""
        device, n_cells = self.opacity.device, self.opacity.numel()
        drawing = {"device": device, "generator": generator_on(device)}
        anywhere = torch.randint(n_cells, (n_cells // self.drawn_anywhere,), **drawing)
        up_to = self.occupancy.flatten().cumsum(0)  # [n_cells] inclusive count of occupied cells
        n_drawn = n_cells // self.drawn_occupied
        chosen = (torch.rand(n_drawn, dtype=torch.float64, **drawing) * up_to[-1]).long()
        occupied = torch.searchsorted(up_to, chosen, right=True).clamp(max=n_cells - 1)
        return torch.cat([anywhere, occupied])
