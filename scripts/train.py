#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Train a radiance field on a scene: `nerfkit train`.

python scripts/train.py --config lego --data.path scenes/lego
python scripts/train.py --resume runs/lego
"""

from start import run

if __name__ == "__main__":
    run("train")
