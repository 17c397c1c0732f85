# SPDX-License-Identifier: Apache-2.0
"""Errors that a user can fix: the commands print their message alone, without a traceback."""


class UserError(Exception):
    """Something outside the code is wrong; the message says what, and what to do."""


class ConfigError(UserError, ValueError):
    """An option is unknown or has a value that does not fit."""


class SceneError(UserError, ValueError):
    """A scene on disk cannot be used."""


class RunError(UserError, RuntimeError):
    """A run folder cannot be written, read or resumed."""


class TrainingError(UserError, RuntimeError):
    """Training cannot go on."""
