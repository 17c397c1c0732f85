# SPDX-License-Identifier: Apache-2.0
"""Pages of the site that are not files in docs/: README, CONTRIBUTING, CHANGELOG, and the API by its public names."""

from __future__ import annotations

import ast
import html
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
MOVED = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
API = {
    "nerfkit": "The names of the package itself. How they are used together: [Python](../python.md).",
    "ops": "Functions on tensors, each with a definition in PyTorch and kernels in C++ and CUDA.",
    "nn": "The ops as modules. Examples: [Ops](../ops.md#as-modules).",
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for name, target in MOVED.items():
        files.append(File.generated(config, target, content=moved((ROOT / name).read_text(encoding="utf-8"))))
    for package, text in API.items():
        files.append(File.generated(config, f"api/{package}.md", content=api_page(package, text)))
    files.append(File.generated(config, "api/options.md", content=options_page()))
    files.append(File.generated(config, "api/index.md", content=index_page()))
    return files


def on_page_content(content: str, **others: Any) -> str:
    """Equations as MathML, which browsers draw without a script."""

    def drawn(found: re.Match) -> str:
        return convert(html.unescape(found[3]).strip(), display="block" if found[1] == "div" else "inline")

    return re.sub(r'<(div|span) class="arithmatex">\\([\[(])(.*?)\\[\])]</\1>', drawn, content, flags=re.S)


def moved(page: str) -> str:
    """A page of the top level as a page of docs/: links into docs/ lose the folder, moved pages have other names."""
    page = re.sub(r"\]\(docs/", "](", page)
    return re.sub(r"\]\((\w+\.md)", lambda link: f"]({MOVED.get(link[1], link[1])}", page)


def api_page(package: str, text: str) -> str:
    module = "nerfkit" if package == "nerfkit" else f"nerfkit.{package}"
    parts = [f"# `{module}`", text]
    for name, home in public_names(module).items():
        parts.append(f"::: {home}.{name}\n    options:\n      heading: {module}.{name}")
    return "\n\n".join(parts) + "\n"


def index_page() -> str:
    """Every public name, with a link to its page."""
    parts = ["# API"]
    for package in API:
        module = "nerfkit" if package == "nerfkit" else f"nerfkit.{package}"
        names = ", ".join(f"[`{name}`][{home}.{name}]" for name, home in public_names(module).items())
        parts += [f"## [`{module}`]({package}.md)", names]
    return "\n\n".join([*parts, "## [Options](options.md)"]) + "\n"


def options_page() -> str:
    """The groups of options, in the order of nerfkit/config/options.py."""
    tree = ast.parse((ROOT / "nerfkit/config/options.py").read_text(encoding="utf-8"))
    groups = [
        node.name for node in tree.body if isinstance(node, ast.ClassDef) and re.fullmatch(r"\w+Config", node.name)
    ]
    parts = [
        "# Options",
        "Fields of `nerfkit.Config`; on the command line `--group.name value`, in a TOML file `[group]`.",
    ]
    parts += [f"::: nerfkit.config.options.{name}\n    options:\n      heading: {name}" for name in groups]
    return "\n\n".join(parts) + "\n"


def public_names(module: str) -> dict[str, str]:
    """Each public name and the module that defines it, read without importing: no torch is needed."""
    tree = ast.parse((ROOT / module.replace(".", "/") / "__init__.py").read_text(encoding="utf-8"))
    imported = {
        alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("nerfkit.")
        for alias in node.names
    }
    return {name: home for name, home in sorted(imported.items()) if name[0] != "_"}
