"""The error tree. Each error carries, as data, its stage, an HTTP status hint and whether a retry is safe.

::

    TailraceError
    ├── InputError            bad usage, configuration or file: exit code 2; names the place and the remedy
    │   ├── ConfigError       a key or value of the configuration
    │   ├── RunFileError      a run file that cannot be read whole
    │   └── TargetError       a URL that is no OpenAI-compatible server, or that nobody answers
    ├── RefusedError          admission refused the request (429 or 503)
    ├── UpstreamError         the engine failed, closed or spoke nonsense
    └── StoreError            records could not be written or read
"""

from __future__ import annotations

from typing import ClassVar

__all__ = [
    "ConfigError",
    "InputError",
    "RefusedError",
    "RunFileError",
    "StoreError",
    "TailraceError",
    "TargetError",
    "UpstreamError",
]


class TailraceError(Exception):
    """Base of everything that Tailrace raises on purpose. `str(error)` is one sentence fit for a user."""

    stage: ClassVar[str] = ""
    http_status: ClassVar[int] = 500
    retry_safe: ClassVar[bool] = False


class InputError(TailraceError):
    """The user's input is wrong. `place` says where, `remedy` what to type instead; the command exits with 2."""

    http_status: ClassVar[int] = 400

    def __init__(self, message: str, *, place: str = "", remedy: str = "") -> None:
        self.message = message
        self.place = place
        self.remedy = remedy
        head = f"{place}: {message}" if place else message
        super().__init__(f"{head}. {remedy}" if remedy else head)


class ConfigError(InputError):
    """A key or value of the configuration; `place` is its path, for example `lanes[1].running`."""


class RunFileError(InputError):
    """A run file that is no run, of another schema, or cut in the middle."""


class TargetError(InputError):
    """A target that does not answer, or does not answer as an OpenAI-compatible server."""

    http_status: ClassVar[int] = 502
    retry_safe: ClassVar[bool] = True


class RefusedError(TailraceError):
    """Admission refused the request before any work was done."""

    stage: ClassVar[str] = "queue"
    http_status: ClassVar[int] = 429
    retry_safe: ClassVar[bool] = True


class UpstreamError(TailraceError):
    """The engine failed. Safe to retry elsewhere only while no token has reached the client."""

    http_status: ClassVar[int] = 502


class StoreError(TailraceError):
    """Records could not be written or read; relaying goes on without them."""
