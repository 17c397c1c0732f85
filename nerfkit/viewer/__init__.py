# SPDX-License-Identifier: Apache-2.0
"""A viewer in the browser, of a training or of a finished run: `nerfkit view`, `nerfkit train --viewer`.

engine      requests of clients -> which frame is drawn next, in chunks of milliseconds; knows no browser
pacing      measured times -> sizes of chunks and frames, and the share of a training
scene       a model with its cameras and images; frames: a scene, a camera and a look -> pixels
page        the web page: one port, guarded; the only module that starts viser
panels/     what is beside the frame; limits: what clients may change of it
"""
