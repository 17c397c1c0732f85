# SPDX-License-Identifier: Apache-2.0
from tests.ops.harness import checks_of

TestDistortion = checks_of("distortion")
