# SPDX-License-Identifier: Apache-2.0
"""The ops as modules, for any project: the module holds the parameters, the backend is chosen at each call."""

from nerfkit.nn.depthwise_conv import DepthwiseConv1d, DepthwiseConv2d
from nerfkit.nn.field import MLP, FeatureGrid
from nerfkit.nn.lltm import LLTM, LLTMCell

__all__ = ["LLTM", "MLP", "DepthwiseConv1d", "DepthwiseConv2d", "FeatureGrid", "LLTMCell"]
