# SPDX-License-Identifier: Apache-2.0
import os
import signal

import pytest

from nerfkit.commands.signals import StopSignals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_is_remembered_and_the_second_stops_at_once(number):
    before = signal.getsignal(number)
    with StopSignals() as signals:
        assert not signals.arrived()
        os.kill(os.getpid(), number)
        assert signals.arrived() and signals.number == number
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            signal.pause()
    assert signal.getsignal(number) is before


def test_what_nohup_ignores_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignals() as signals:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not signals.arrived()
    finally:
        signal.signal(signal.SIGHUP, before)
