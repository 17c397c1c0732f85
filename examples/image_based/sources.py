"""Small pinhole images of some training views: where points of space appear in them."""

import torch
from torch import nn

import nerfkit

OWN_OR_UNSEEN = 8.0  # added to the squared difference of two directions, which is 4 at most


class Sources(nn.Module):
    """V images of S x S pixels with their cameras, which a checkpoint keeps: a run is rendered without its scene."""

    ops = ()

    def __init__(self, n_views: int, side: int):
        super().__init__()
        self.side = side
        self.register_buffer("images", torch.zeros(n_views, 4, side, side, dtype=torch.uint8))  # color times alpha
        self.register_buffer("view", torch.full((n_views,), -1))  # its number among the training views
        self.register_buffer("poses", torch.zeros(n_views, 3, 4))
        self.register_buffer("focal", torch.ones(n_views, 2))
        self.register_buffer("center", torch.zeros(n_views, 2))

    @torch.no_grad()
    def fill(self, cameras, images) -> None:
        """Take them from the training views: all lenses become pinholes, all sizes one; masks become transparent."""
        if len(cameras) < 2:
            raise nerfkit.UserError("model.kind image_based needs 2 training views: a ray sees none but the others")
        n_views, side = len(self.view), self.side
        chosen = [i * len(cameras) // n_views for i in range(n_views)]  # some twice, where there are fewer
        small = cameras[chosen].pinhole().resized(side, side)
        for place, view in enumerate(chosen):
            pixels = images.image(view).to(self.images.device) / 255  # [H, W, 3 or 4]
            alpha = pixels[..., 3:] if pixels.shape[-1] == 4 else torch.ones_like(pixels[..., :1])
            if (mask := images.mask(view)) is not None:
                alpha = alpha * ~mask[..., None].to(alpha.device)
            rgba = torch.cat([pixels[..., :3] * alpha, alpha], dim=-1).permute(2, 0, 1)[None]
            rgba = nn.functional.interpolate(rgba, (side, side), mode="bilinear", antialias=True)
            rays = small.image_rays(place)
            at, _ = cameras.project(rays.origins + rays.directions, view)  # by its lens
            grid = (at / at.new_tensor(cameras.size(view)) * 2 - 1).nan_to_num(9.0).view(1, side, side, 2)
            rgba = nn.functional.grid_sample(rgba, grid, align_corners=False)
            self.images[place] = (rgba[0] * 255 + 0.5).clamp(0, 255).byte()
        self.view.copy_(torch.tensor(chosen))
        for own, found in ((self.poses, small.camera_to_world), (self.focal, small.focal), (self.center, small.center)):
            own.copy_(found)

    def rgba(self):
        """[V, 4, S, S] in [0, 1], colors times alpha."""
        if self.view[0] < 0:
            raise nerfkit.UserError(
                "the model image_based has no images: train it, load a run of it, or call its set_source_images first"
            )
        return self.images / 255

    @torch.no_grad()
    def nearest(self, rays, points, n: int):
        """The K sources that see points [R, 3] of rays from the most similar directions, the most similar last.

        Their numbers [R, K], the points' pixels in them [R, K, 2], differences of unit directions [R, K, 3], and
        whether they are valid [R, K]: within the image, and not that of the ray's own view. What hides a point from a
        source is not asked; the look-up's color beside the field's tells.
        """
        offset = points[:, None] - self.poses[:, :, 3]  # [R, V, 3]
        x, y, z = torch.einsum("rvi,vij->rvj", offset, self.poses[:, :, :3]).unbind(-1)  # camera axes
        pixels = torch.stack([x, -y], dim=-1) / -z[..., None] * self.focal + self.center  # [R, V, 2]
        valid = ((pixels >= 0) & (pixels < self.side)).all(-1) & (z < 0)
        if rays.view is not None:
            valid = valid & (rays.view[:, None] != self.view)
        difference = nn.functional.normalize(offset, dim=-1) - rays.directions[:, None]
        order = difference.square().sum(-1) + OWN_OR_UNSEEN * ~valid
        chosen = order.topk(min(n, len(self.view)), largest=False).indices.flip(1)  # [R, K]
        of = chosen[..., None].expand(-1, -1, 3)
        pixels = pixels.gather(1, of[..., :2]).nan_to_num().clamp(0, self.side)
        return chosen, pixels, difference.gather(1, of), valid.gather(1, chosen)

    def sample(self, table, view, pixels):
        """Bilinear values [R, K, C] of `table` [V, S, S, C] at pixels [R, K, 2] of sources [R, K]."""
        place = (pixels - 0.5).clamp(0, self.side - 1)
        low = place.long().clamp(max=self.side - 2)
        share, (column, row) = (place - low)[..., None].unbind(-2), low.unbind(-1)  # of the right and the lower pixel
        upper = torch.lerp(table[view, row, column], table[view, row, column + 1], share[0])
        lower = torch.lerp(table[view, row + 1, column], table[view, row + 1, column + 1], share[0])
        return torch.lerp(upper, lower, share[1])
