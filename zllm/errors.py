"""Errors that users may see: one line each, saying what was wrong, expected, and how to fix it."""

from __future__ import annotations

import warnings


class ZllmError(ValueError):
    """Base of every error caused by input from outside: files, requests, devices, flags."""


class LoadError(ZllmError):
    """A model file or folder cannot be used."""


class RequestError(ZllmError):
    """A request names an unknown field, a bad value or something the model cannot do."""


class BackendError(ZllmError):
    """A backend is missing, refuses an operation or lost its device."""


class DeviceLost(BackendError):
    """The device is gone with all that it held: a driver was reset, a card was taken away."""


class GenerationError(ZllmError):
    """A generation failed on its way: logits were not finite, or the cache is too small."""


class Notice(UserWarning):
    """Something goes on differently from what was asked for; commands show it as one line."""


def notice(text: str) -> None:
    warnings.warn(text, Notice, stacklevel=3)
