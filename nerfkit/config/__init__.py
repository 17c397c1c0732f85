# SPDX-License-Identifier: Apache-2.0
"""The options of a run: what they are, what they may be, who decides those left as auto, and their files.

A TOML file changes some of them (`configs/*.toml` are such differences), the command line overrides the file.
"""

from nerfkit.config.files import dump as dump
from nerfkit.config.files import dumps as dumps
from nerfkit.config.files import fixed_differences as fixed_differences
from nerfkit.config.files import flat as flat
from nerfkit.config.files import from_dict as from_dict
from nerfkit.config.files import load as load
from nerfkit.config.files import merged as merged
from nerfkit.config.files import preset_path as preset_path
from nerfkit.config.files import to_dict as to_dict
from nerfkit.config.options import Box as Box
from nerfkit.config.options import Config as Config
from nerfkit.config.options import DataConfig as DataConfig
from nerfkit.config.options import EvalConfig as EvalConfig
from nerfkit.config.options import ModelConfig as ModelConfig
from nerfkit.config.options import OpsConfig as OpsConfig
from nerfkit.config.options import ResolvedConfig as ResolvedConfig
from nerfkit.config.options import SamplingConfig as SamplingConfig
from nerfkit.config.options import TrainerConfig as TrainerConfig
from nerfkit.config.recipe import BASE as BASE
from nerfkit.config.recipe import DEFAULT_BOX as DEFAULT_BOX
from nerfkit.config.recipe import FIELD as FIELD
from nerfkit.config.recipe import OTHERWISE as OTHERWISE
from nerfkit.config.recipe import Condition as Condition
from nerfkit.config.recipe import Found as Found
from nerfkit.config.recipe import Recipe as Recipe
from nerfkit.config.resolve import Decision as Decision
from nerfkit.config.resolve import check as check
