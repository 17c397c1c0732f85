# SPDX-License-Identifier: Apache-2.0
import os
import signal

import pytest

from nerfkit.commands.signals import StopSignals

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(autouse=True)
def handlers():
    """As in a terminal: a process of nohup or of a script's background begins with some of them ignored."""
    before = {number: signal.signal(number, signal.default_int_handler) for number in STOPPING}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", STOPPING)
def test_the_first_is_remembered_and_the_second_stops_at_once(number):
    before = signal.getsignal(number)
    with StopSignals() as signals:
        assert not signals.arrived()
        signal.raise_signal(number)
        assert signals.arrived() and signals.number == number
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(number) is before


def test_what_nohup_ignores_stays_ignored():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with StopSignals() as signals:
        os.kill(os.getpid(), signal.SIGHUP)
        assert not signals.arrived()
