# SPDX-License-Identifier: Apache-2.0
"""The house drawn from its imports: rooms stand on rooms below them, and no arrow runs back."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path("nerfkit")
# From below to above: a room may import those before it.
FLOORS = (
    "ground", "ops", "contraction", "nn", "config", "data", "crop", "model", "rendering", "training", "export", "jit",
    "viewer", "commands",
)  # fmt: skip
GROUND = ("errors", "version", "safe_io", "files", "option_types", "limits", "device", "metrics", "parallel", "threads")
OUTSIDE = ("__init__", "__main__")  # the front door


def module_of(file: Path) -> str:
    return ".".join(file.with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_of(file): file for file in sorted(PACKAGE.rglob("*.py"))}


def room_of(module: str) -> str:
    name = (module.split(".") + ["__init__"])[1]
    return "ground" if name in GROUND else name


def imports_of(file: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "nerfkit":
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names & set(MODULES) or {node.module}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.split(".")[0] == "nerfkit"}
    return {name for name in found if name in MODULES}


GRAPH = {module: imports_of(file) for module, file in MODULES.items()}


def test_no_arrow_runs_back():
    for module, imported in GRAPH.items():
        room = room_of(module)
        for other in imported:
            if room not in OUTSIDE and room_of(other) != room:
                assert FLOORS.index(room_of(other)) < FLOORS.index(room), f"{module} imports {other}"


@pytest.mark.parametrize("room", ["data", "training"])
def test_rooms_of_a_room_do_not_import_each_other(room: str):
    inside = {module: module.split(".")[2] for module in GRAPH if module.startswith(f"nerfkit.{room}.")}
    arrows = {(inside[module], inside[other]) for module in inside for other in GRAPH[module] & set(inside)}
    assert not {(a, b) for a, b in arrows if a != b and (b, a) in arrows}
