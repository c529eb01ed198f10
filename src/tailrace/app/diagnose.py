"""Diagnosis of whatever the user names: files, directories, or a live gateway's admin URL."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from tailrace.analyze.vantage import APPLICATION, one_vantage
from tailrace.diagnose.engine import diagnose
from tailrace.diagnose.gather import gather
from tailrace.diagnose.readers.facts import observed_facts
from tailrace.diagnose.readers.given_facts import PLACE, facts_from
from tailrace.diagnose.readers.happenings import read_happenings
from tailrace.diagnose.readers.json_lines import parse_lines
from tailrace.diagnose.readers.paste import MOST_BYTES, is_paste, read_paste
from tailrace.diagnose.readers.scrape import read_scrape
from tailrace.diagnose.readers.signals import read_signals
from tailrace.diagnose.readers.source import Kind, Source, UnknownFormatError, read_source
from tailrace.export.jsonl import from_public_json
from tailrace.model.errors import InputError
from tailrace.model.finding import Diagnosis
from tailrace.model.record import RequestRecord
from tailrace.model.thresholds import Objectives

__all__ = ["Given", "diagnose_sources", "is_url", "read_any"]

_LIVE_RECORDS: Final = 20_000


def is_url(source: str) -> bool:
    """Whether `source` is an address and not a file."""
    return source.startswith(("http://", "https://"))


def read_any(
    source: str,
    *,
    order: int = 0,
    allow_partial: bool = False,
    token: str = "",
    timeout_s: float = 30.0,
    together: bool = False,
    columns: Mapping[str, str] | None = None,
    records: bool = True,
) -> list[Source]:
    """Read a file, a directory, or a live server (its records and its scrape are two sources). `together`, `columns`
    and `records` as of `read_source`.

    InputError (exit 2) says what is wrong with it and what would do instead.
    """
    if source == "-":
        return read_paste(_standard_input(), "standard input", _decode)
    if not is_url(source):
        if together and not columns and is_paste(Path(source)):
            return read_paste(Path(source).read_bytes(), source, _decode)
        return [
            read_source(
                source,
                _decode,
                at_ns=order,
                allow_partial=allow_partial,
                together=together,
                columns=columns,
                records=records,
            )
        ]
    return _live(source, token, timeout_s)


def _standard_input() -> bytes:
    if sys.stdin.isatty():
        raise InputError(
            "nothing is piped to it", place="-", remedy="Pipe or paste a text into it: tailrace diagnose - < issue.md"
        )
    return sys.stdin.buffer.read(MOST_BYTES + 1)


class Given:
    """What the user named, read once: an interview asks what follows from it after each answer."""

    def __init__(
        self,
        sources: Sequence[str],
        *,
        before: str | None = None,
        objectives: Objectives | None = None,
        allow_partial: bool = False,
        token: str = "",
        columns: Mapping[str, str] | None = None,
    ) -> None:
        """`before` is the window to compare with; `columns` as of `read_source`. InputError as of `read_any`."""
        once, again = _each_once(sources)
        self._read: list[Source] = []
        unknown: list[UnknownFormatError] = []
        for order, source in enumerate(once):
            try:
                self._read += read_any(
                    source,
                    order=order,
                    allow_partial=allow_partial,
                    token=token,
                    together=True,
                    columns=columns,
                    records=False,
                )
            except UnknownFormatError as error:
                unknown.append(error)
        if unknown and not self._read:
            raise unknown[0]
        if unknown:
            # Beside evidence that is known it must not end the diagnosis, nor be dropped in silence.
            said = [f"{error.place}: {error.message}" for error in unknown]
            self._read[0] = msgspec.structs.replace(self._read[0], notes=[*self._read[0].notes, *said])
        if again and self._read:
            said = [f"{name} was given twice: it is read once" for name in again]
            self._read[0] = msgspec.structs.replace(self._read[0], notes=[*self._read[0].notes, *said])
        self._before = None
        if before is not None:
            self._before = next(iter(read_any(before, allow_partial=allow_partial, token=token, records=False)))
        self._objectives = objectives

    def diagnosis(self, facts: Sequence[str] = ()) -> Diagnosis:
        """What follows from it and from `facts` that were typed (`ttft_p99_ms=850`)."""
        read = list(self._read)
        if facts:
            read.append(Source(name=PLACE, kind=Kind.OBSERVED, observed=observed_facts(facts_from(facts), PLACE)))
        return diagnose(gather(read, before=self._before, objectives=self._objectives))


def diagnose_sources(
    sources: Sequence[str],
    *,
    before: str | None = None,
    objectives: Objectives | None = None,
    allow_partial: bool = False,
    token: str = "",
    facts: Sequence[str] = (),
    columns: Mapping[str, str] | None = None,
) -> Diagnosis:
    """Diagnose sources together, as of `Given`; `facts` are typed (`ttft_p99_ms=850`)."""
    given = Given(
        sources, before=before, objectives=objectives, allow_partial=allow_partial, token=token, columns=columns
    )
    return given.diagnosis(facts)


def _each_once(sources: Sequence[str]) -> tuple[list[str], list[str]]:
    """The sources, and those that were named again, by whatever path: twice the requests are not twice the evidence."""
    seen: set[str] = set()
    once: list[str] = []
    again: list[str] = []
    for source in sources:
        name = source if source == "-" or is_url(source) else os.path.realpath(source)
        (again if name in seen else once).append(source)
        seen.add(name)
    return once, again


def _decode(line: bytes, place: str) -> RequestRecord:
    return from_public_json(line, place=place)


def _live(url: str, token: str, timeout_s: float) -> list[Source]:
    # The load generator and its loop, only for a URL.
    import asyncio  # noqa: PLC0415

    from tailrace.probe.evidence import fetch_evidence  # noqa: PLC0415

    found = asyncio.run(fetch_evidence(url, limit=_LIVE_RECORDS, token=token, timeout_s=timeout_s))
    out = []
    place = f"{url}/records"
    lines = [*found.records.splitlines(), *_of_applications(found.applications, place)]
    if any(line.strip() for line in lines):
        table, applications = one_vantage(parse_lines(lines, _decode, place))
        out.append(Source(name=url, kind=Kind.LINES, table=table, applications=applications))
    if found.signals:
        out.append(_signals(found.signals, f"{url}/signals"))
    if found.happenings:
        out.append(_happenings(found.happenings, f"{url}/happenings"))
    for scrape in found.scrapes:
        state, notes = read_scrape(scrape.text, scrape.at_ns)
        # A gateway's own metrics are no engine's: only what was understood is evidence.
        if state.names:
            out.append(Source(name=f"{url}/metrics", kind=Kind.SCRAPE, state=state))
        elif not found.records:
            out.append(Source(name=f"{url}/metrics", kind=Kind.SCRAPE, state=state, notes=notes))
    if not any(source.table is not None for source in out):
        raise InputError(
            "it has no finished requests yet",
            place=url,
            remedy="Give the admin URL of a gateway (http://127.0.0.1:9480) that has served requests.",
        )
    return out


def _signals(body: bytes, name: str) -> Source:
    """What nobody asked for by name must not end the diagnosis."""
    try:
        return Source(name=name, kind=Kind.SIGNALS, hardware=read_signals(body, name))
    except InputError as error:
        return Source(name=name, kind=Kind.SIGNALS, notes=[f"{name}: {error.message}"])


def _happenings(body: bytes, name: str) -> Source:
    try:
        return Source(name=name, kind=Kind.HAPPENINGS, events=read_happenings(body, name))
    except InputError as error:
        return Source(name=name, kind=Kind.HAPPENINGS, notes=[f"{name}: {error.message}"])


def _of_applications(body: bytes, place: str) -> list[bytes]:
    """The lines that are records of services: a gateway that does not know the question gives its own again."""
    lines = [line for line in body.splitlines() if line.strip()]
    return [line for line in lines if _decode(line, place).vantage == APPLICATION]
