# SPDX-License-Identifier: Apache-2.0
"""A field that also looks at the training images: `model.kind` images."""
