"""One rule that fails must not take the answers of all others with it: it is left out, and named."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, TypeVar

from tailrace.model.errors import InputError

__all__ = ["BrokenRules"]

T = TypeVar("T")


class BrokenRules:
    """The rules that failed on one body of evidence."""

    strict: ClassVar[bool] = False
    """A defect is raised instead: for tests, in which a rule that is left out must not pass for one that is calm."""

    def __init__(self) -> None:
        self._said: dict[str, str] = {}

    def ask(self, code: str, rule: Callable[[], T]) -> T | None:
        """What the rule says; `None` where it failed, which `said` then tells.

        What the user is to mend (`InputError`) and what no other rule would survive (`MemoryError`) is raised.
        """
        try:
            return rule()
        except (InputError, MemoryError):
            raise
        except ArithmeticError as error:
            # Numbers at the edge of what a float holds are the evidence's doing, not a defect.
            self._said[code] = f"{code}: its arithmetic is impossible with these numbers ({error})"
        except Exception as error:
            if self.strict:
                raise
            what = f"{type(error).__name__}: {error}".splitlines()[0][:200]
            self._said[code] = (
                f"{code}: this rule failed on this evidence and was left out ({what}); the other rules were asked. "
                "That is a defect of Tailrace"
            )
        return None

    @property
    def said(self) -> list[str]:
        """One sentence a rule that failed, in the order in which they were asked."""
        return list(self._said.values())
