# SPDX-License-Identifier: Apache-2.0
"""`nerfkit view`: look at a run in a browser until Ctrl-C. Needs the run folder; images of the scene are optional."""

from nerfkit.commands import StopSignals
from nerfkit.commands.options import ViewOptions
from nerfkit.training.run.load import load_run
from nerfkit.viewer.page import Page, import_viser


def main(options: ViewOptions) -> int:
    import_viser()  # fails, if it does, before anything is loaded
    run = load_run(options.run, options.device, options.module, options.ops)
    if options.data:
        run.config.data.path, run.config.data.sfm_dir = options.data, ""
    from nerfkit.viewer.scene import ViewerScene
    from nerfkit.viewer.viewer import Viewer

    page = Page(options.viewer, f"nerfkit: {run.scene.name}")
    try:
        viewer = Viewer(ViewerScene.from_run(run), page)
        with StopSignals() as signals:
            print(f"run       {options.run}, step {run.state['step']}, on {run.device}")
            for note in viewer.scene.notes:
                print(f"note      {note}")
            print(f"{page.how_to_reach()}\nCtrl-C ends it", flush=True)
            viewer.serve(signals.arrived)
    finally:
        page.stop()
    return 0
