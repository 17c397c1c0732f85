# SPDX-License-Identifier: Apache-2.0
"""nerfkit under the interfaces of other projects."""
