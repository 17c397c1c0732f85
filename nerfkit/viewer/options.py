# SPDX-License-Identifier: Apache-2.0
"""Options of the viewer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, get_type_hints

import tyro

from nerfkit.option_types import Switch, integer


@dataclass
class ViewerOptions:
    """A viewer in the browser."""

    host: str = "127.0.0.1"  # address to listen on; 0.0.0.0 lets everyone on the network in
    port: integer(0, 65535) = 8080  # port to listen on; 0 picks a free one
    names: tuple[str, ...] = ()  # further names of this computer that a browser may use, such as that of a proxy


@dataclass
class TrainingViewerOptions(ViewerOptions):
    """A viewer in the browser, beside a training."""

    on: Annotated[Switch, tyro.conf.arg(name="viewer", prefix_name=False)] = False  # show the training in a browser


def check_options(options: ViewerOptions) -> None:
    """Raise ConfigError for an option out of its range."""
    get_type_hints(ViewerOptions, include_extras=True)["port"].__metadata__[0].check("viewer.port", options.port)
