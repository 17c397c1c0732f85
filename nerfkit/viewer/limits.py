# SPDX-License-Identifier: Apache-2.0
"""Values that clients send for controls: viser takes any, of any property; here they come within the control's limits.

Whatever is not a browser may send what no control lets a user choose, to a training that must not end of it.
"""

from typing import Any

import numpy as np
import viser
from viser import _messages


def within_limits(control: Any, value: Any) -> Any:
    """The nearest value that the control allows; None if there is none."""
    known, options = control.value, getattr(control, "options", None)
    if options is not None:
        return value if value in options else None
    if isinstance(known, bool) or not isinstance(known, int | float | tuple):
        return value if type(value) is type(known) else None
    try:
        numbers = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        return None
    if numbers.shape != np.shape(known) or not np.isfinite(numbers).all():
        return None
    low, high = (getattr(control, name, None) for name in ("min", "max"))
    return numbers.clip(-np.inf if low is None else low, np.inf if high is None else high).tolist()


def keep_limits(gui: viser.GuiApi) -> None:
    """From now on, clients change the values of these controls, within their limits, and nothing else of them."""
    controls, update = gui._gui_input_handle_from_uuid, gui._handle_gui_updates
    uploads = {
        _messages.FileTransferStartUpload: gui._handle_file_transfer_start,
        _messages.FileTransferPart: gui._handle_file_transfer_part,
    }

    async def checked(client: int, message: _messages.GuiUpdateMessage) -> None:
        control = controls.get(message.uuid)
        value = None if control is None else within_limits(control, message.updates.get("value"))
        if value is not None:
            message.updates = {"value": value}
            await update(client, message)

    def upload(client: int, message: Any) -> None:  # viser puts a file into whatever control is named
        if isinstance(controls.get(message.source_component_uuid), viser.GuiUploadButtonHandle):
            uploads[type(message)](client, message)

    for kind, before in {_messages.GuiUpdateMessage: update, **uploads}.items():
        gui._websock_interface.unregister_handler(kind, before)
        gui._websock_interface.register_handler(kind, upload if kind in uploads else checked)
