# SPDX-License-Identifier: Apache-2.0
"""The options of a run: what they are, what they may be, who decides those left as auto, and their files.

A TOML file changes some of them (`configs/*.toml` are such differences), the command line overrides the file.
"""

from nerfkit.config.files import dump, dumps, fixed_differences, flat, from_dict, load, merged, preset_path, to_dict
from nerfkit.config.options import (
    Box,
    Config,
    DataConfig,
    EvalConfig,
    ModelConfig,
    OpsConfig,
    ResolvedConfig,
    SamplingConfig,
    TrainerConfig,
)
from nerfkit.config.recipe import BASE, DEFAULT_BOX, FIELD, OTHERWISE, Condition, Found, Recipe
from nerfkit.config.resolve import Decision, check

__all__ = [
    "BASE", "DEFAULT_BOX", "FIELD", "OTHERWISE", "Box", "Condition", "Config", "DataConfig", "Decision", "EvalConfig",
    "Found", "ModelConfig", "OpsConfig", "Recipe", "ResolvedConfig", "SamplingConfig", "TrainerConfig", "check", "dump",
    "dumps", "fixed_differences", "flat", "from_dict", "load", "merged", "preset_path", "to_dict",
]  # fmt: skip
