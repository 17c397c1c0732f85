# SPDX-License-Identifier: Apache-2.0
"""What a trained field gives to other programs: meshes, points, cameras, depth, splats, a page."""
