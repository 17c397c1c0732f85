# SPDX-License-Identifier: Apache-2.0
"""What a scene is, in two sentences for whoever took its images."""

from __future__ import annotations

from nerfkit.data.cameras.lens import Lens
from nerfkit.data.capture import Capture
from nerfkit.data.scene import format_sizes
from nerfkit.safe_io import printable

TAKEN = {  # by the kind of the frame
    "object": "taken around an object",
    "inward": "taken around something in its surroundings",
    "forward": "all facing the same way",
    "walk-through": "taken all over a place",
}


def sentences(capture: Capture, lenses: list[Lens], counts: dict[str, int], kind: str) -> tuple[str, ...]:
    """Of the images that exist, which have these `lenses`; `counts` are those of each split, `kind` is the frame's."""
    n_lenses, n_missing = len(set(lenses)), len(capture.images) - len(lenses)
    if not lenses:
        return (f"{printable(capture.name)}: none of the {n_missing} images that are listed can be read.",)
    train, test = (f"{counts.get(split, 0) or 'none'}" for split in ("train", "test"))
    return (
        f"{printable(capture.name)}: {len(lenses)} images of "
        f"{format_sizes([(lens.width, lens.height) for lens in lenses])} from "
        f"{'one lens' if n_lenses == 1 else f'{n_lenses} lenses'}, {TAKEN[kind]}.",
        f"{f'{n_missing} more are listed, but have no file of use' if n_missing else 'No image is missing'}; "
        f"{train} to train on, {test} held out to score it.",
    )
