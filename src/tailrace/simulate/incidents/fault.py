"""A fault: its label, the system in which it can happen, and the change that makes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from tailrace.simulate.incidents.setting import Setting

Prepare = Callable[[Setting, np.random.Generator], Setting]
Change = Callable[[Setting, float, np.random.Generator], Setting]


def as_it_is(setting: Setting, rng: np.random.Generator) -> Setting:
    """Any system will do."""
    del rng
    return setting


class Fault(NamedTuple):
    """One kind of fault.

    `change` gets the healthy setting, a strength from 0 (hardly there) to 1 (gross), and a generator. What it draws by
    chance must not depend on the strength: a stronger incident is the same one, only more so.
    """

    kind: str
    code: str
    """The answer that is wanted."""
    change: Change
    prepare: Prepare = as_it_is
    also: tuple[str, ...] = ()
    """Codes that are as right: the same mechanism by another name, or one that no evidence at hand tells from it."""
    without_signals: tuple[str, ...] = ()
    """Codes that are right where the machine's signals are absent."""
    signals: str = ""
    """The signals that decide: `gpu`, `host`, or none."""
    before: bool | None = None
    """Needs a window from before (True), makes no sense with one (False), or either."""
