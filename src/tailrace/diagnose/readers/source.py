"""One source of evidence: a run file, records as JSON lines, a data directory, Triton's trace file, a scrape, signals
of a machine, a log of nvidia-smi, a summary of nsys, the result of another load generator.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec

from tailrace.analyze.aggregate import Aggregate
from tailrace.analyze.vantage import one_vantage
from tailrace.diagnose.hardware import Hardware
from tailrace.diagnose.observed import Observed
from tailrace.diagnose.readers.binary import NULS_REMEDY, binary_words
from tailrace.diagnose.readers.data_directory import read_directory
from tailrace.diagnose.readers.encodings import encoding_of
from tailrace.diagnose.readers.foreign import HEAD_BYTES, Foreign, foreign_of, read_foreign
from tailrace.diagnose.readers.format import Format, UnknownFormatError
from tailrace.diagnose.readers.formats import format_of
from tailrace.diagnose.readers.imported import chosen, split_number
from tailrace.diagnose.readers.json_lines import read_lines
from tailrace.diagnose.readers.json_numbers import read_numbers
from tailrace.diagnose.readers.metric_quantities import is_known
from tailrace.diagnose.readers.metric_readings import Reading, is_query_answer, is_scrape, read_readings
from tailrace.diagnose.readers.nsys import is_profile_header, read_nsys
from tailrace.diagnose.readers.prose import is_code
from tailrace.diagnose.readers.request_columns import looks_like_requests
from tailrace.diagnose.readers.request_table import table_of_requests
from tailrace.diagnose.readers.requests import has_columns, read_requests
from tailrace.diagnose.readers.scrape import state_of
from tailrace.diagnose.readers.signals import MARK, read_signals
from tailrace.diagnose.readers.speech_events import SPEECH_EVENTS
from tailrace.diagnose.readers.table_text import first_headings
from tailrace.diagnose.readers.tables import numbered_lines
from tailrace.diagnose.readers.text import TEXT, observed_text
from tailrace.diagnose.readers.triton_trace import read_triton_trace
from tailrace.diagnose.readers.unpacked import LOG_ENDINGS, unpacked
from tailrace.diagnose.readers.voice_payload import VOICE_PAYLOAD
from tailrace.engines.nvidia_smi import is_query_header, read_query
from tailrace.model.engine_state import EngineState
from tailrace.model.errors import InputError
from tailrace.model.record import RequestRecord
from tailrace.store.run_file import Run, is_run_file, read_run
from tailrace.store.table import RecordTable

__all__ = ["Kind", "Source", "UnknownFormatError", "kind_of", "read_source"]

MOST_DEVICES: Final = 1_000
_JSON_HEAD: Final = 4096
_HOLE: Final = 1 << 22
_HEADING: Final = re.compile(rb"#{1,6} (?!TYPE |HELP |UNIT |EOF)[^\n]*\n\s*\n")
"""Markdown: a title and a blank line; a comment of a scrape has its samples below."""
_LOOKED_AT: Final = 200
_FEWEST_LINES: Final = 2
_MOST_CODE: Final = 0.2
_REMEDY: Final = (
    "Give an engine's or a proxy's log, a table, a run file (`tailrace bench … --out`), records as JSON lines "
    "(`tailrace records export`), a gateway's data "
    "directory, a result of vllm bench, SGLang's bench, GuideLLM, AIPerf, GenAI-Perf, inference-perf, LLMPerf or "
    "genai-bench, Triton's trace file, two saved scrapes of /metrics, a gateway's admin URL, a CSV log of nvidia-smi, "
    "or `nsys stats` as CSV."
)

_SAMPLE: Final = re.compile(
    rb"[A-Za-z_:][\w:.]*(?:\{.*\})?\s+(?:[-+]?\d[\d.eE+-]*|[-+]?Inf|NaN)(?:\s+-?\d+)?\s*$", re.IGNORECASE
)
Decode = Callable[[bytes, str], RequestRecord]
"""Reads one line of records in the public form; gets the line and its place."""


class Kind(StrEnum):
    """What a source is."""

    RUN = "run"
    LINES = "lines"
    DIRECTORY = "directory"
    SCRAPE = "scrape"
    SIGNALS = "signals"
    HAPPENINGS = "happenings"
    NVIDIA_SMI = "nvidia-smi"
    PROFILE = "profile"
    TRITON = "triton trace"
    OBSERVED = "observed"
    """One of `formats.FORMATS`; `Source.observed` is what it says."""
    LOAD_TOOL = "load tool"
    """The result of another load generator; `Source.foreign` says whose."""


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """What was read."""

    name: str
    kind: Kind
    table: RecordTable | None = None
    """Records of one vantage: whoever counts them counts each request once."""
    applications: RecordTable | None = None
    """What services before the gateway have reported of the same requests, where that stood beside the others."""
    run: Run | None = None
    foreign: Foreign | None = None
    aggregate: Aggregate | None = None
    """A load test of which only the summary is left; there is no table then."""
    state: EngineState | None = None
    earlier: list[EngineState] = []
    """Of a file that holds several scrapes, those before `state`."""
    readings: list[Reading] = []
    """The scrapes of a file; what they say is known when all of them are together (`metric_observations`)."""
    hardware: Hardware | None = None
    observed: Observed | None = None
    events: list[tuple[float, str]] = []
    """What is known to have happened: (wall clock in s, words)."""
    dropped: float = 0.0
    """Share of records that were lost on their way into a data directory."""
    notes: list[str] = []
    """What was there but not understood."""


def kind_of(path: Path) -> Kind:
    """Tell what `path` is by its content. InputError when it does not exist or is nothing that is known."""
    return _look(path)[0]


def _look(path: Path) -> tuple[Kind, Foreign | Format | None]:
    """What it is, and whose where it is another load generator's, or which format of foreign evidence."""
    place = str(path)
    try:
        if path.is_dir():
            return Kind.DIRECTORY, None
        # A pipe without a writer would hold the opening of it for ever, and what is read of one cannot be read again.
        if not stat.S_ISREG(path.stat().st_mode):
            raise InputError("this is no regular file", place=place, remedy="Save what it holds to a file.")
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
    except FileNotFoundError:
        raise InputError(
            "there is no such file", place=place, remedy="Give the path of one, or - for a paste."
        ) from None
    except OSError as error:
        raise InputError(
            f"cannot be read: {error.strerror or error}", place=place, remedy="Give a file that you may read."
        ) from None
    if is_run_file(head):
        return Kind.RUN, None
    _refuse_nuls(head, path)
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if not start:
        raise InputError("the file is empty", place=place, remedy="See whether what should write it did, and where to.")
    foreign = foreign_of(start)
    if foreign is not None:
        return Kind.LOAD_TOOL, foreign
    return _other_kind(start, path.name) or _anything(head, start, place)


def _anything(head: bytes, start: bytes, place: str) -> tuple[Kind, Format]:
    """Text that no reader knows; InputError where it is none."""
    binary = binary_words(head)
    if binary is not None:
        raise InputError(binary[0], place=place, remedy=binary[1])
    if _speaks(start):
        return Kind.OBSERVED, TEXT
    # As a person would read it: the first line, and no b'…'.
    line = head[:40].split(b"\n", maxsplit=1)[0].decode("utf-8", "replace").rstrip("\r")
    raise UnknownFormatError(f"this is no evidence that is known; it begins with {line!r}", place=place, remedy=_REMEDY)


def _refuse_nuls(head: bytes, path: Path) -> None:
    """Before anybody looks for lines in it: a sparse file of zeros is one line of gigabytes.

    A log in UTF-16 is read as it is, any other text in it was turned into UTF-8 before. One that begins with a hole, as
    cutting it while it is written leaves, is read too.
    """
    if head.count(0) * 10 <= len(head) or (path.suffix in LOG_ENDINGS and (encoding_of(head) or _ends_soon(path))):
        return
    words, remedy = binary_words(head) or ("it begins with NUL bytes", NULS_REMEDY)
    raise InputError(words, place=str(path), remedy=remedy)


def _ends_soon(path: Path) -> bool:
    """Whether a hole at the beginning ends within `_HOLE` bytes."""
    with path.open("rb") as file:
        return bool(file.read(_HOLE).lstrip(b"\0"))


def _other_kind(start: bytes, name: str) -> tuple[Kind, Format | None] | None:
    if is_query_answer(start) or is_scrape(start):
        return Kind.SCRAPE, None
    kind = _json_kind(start[:_JSON_HEAD]) or _table_kind(start[:_JSON_HEAD])
    if kind is not None and not (kind is Kind.LINES and _foreign_requests(start)):
        return kind, None
    read_as = format_of(start.decode("utf-8", "replace"), name)
    if read_as is not None:
        return Kind.OBSERVED, read_as
    if _HEADING.match(start):
        return Kind.OBSERVED, TEXT
    return (Kind.SCRAPE, None) if start.startswith(b"#") or _looks_like_samples(start) else None


def _speaks(start: bytes) -> bool:
    """Whether it is text with numbers in some of its lines and no program: what it holds is looked for, the rest is
    listed as not understood.
    """
    lines = [line for line in start.decode("utf-8", "replace").splitlines()[:_LOOKED_AT] if line.strip()]
    numbers = sum(any(letter.isdigit() for letter in line) for line in lines)
    code = sum(map(is_code, lines))
    return len(lines) >= _FEWEST_LINES and numbers >= _FEWEST_LINES and code <= _MOST_CODE * len(lines)


def _foreign_requests(start: bytes) -> bool:
    """Whether lines that name a `request_id` are somebody's own requests or speech events, and no records of ours."""
    if b'"e2e_ms"' in start or b'"e2e_ns"' in start or b'"start_unix_ns"' in start:
        return False
    head = start.decode("utf-8", "replace")
    # Recognisers name a `request_id`, too.
    speech = any(form.matches(head, "") for form in (SPEECH_EVENTS, VOICE_PAYLOAD))
    return speech or looks_like_requests(first_headings(head))


def _json_kind(start: bytes) -> Kind | None:
    """JSON by its first keys."""
    if start.startswith(b"{") and MARK in start[:64]:
        return Kind.SIGNALS
    if start.startswith(b"{") and (b'"request_id"' in start or b'"start_unix_ns"' in start):
        return Kind.LINES
    if start.startswith(b'[{"id"') and (b'"timestamps"' in start or b'"model_name"' in start):
        return Kind.TRITON
    return None


def _table_kind(head: bytes) -> Kind | None:
    """A CSV file by the line that names its columns; a profiler's own sentences may stand before it."""
    for line in head.decode("utf-8", "replace").splitlines():
        if is_profile_header(line):
            return Kind.PROFILE
        if is_query_header(line):
            return Kind.NVIDIA_SMI
    return None


def _looks_like_samples(head: bytes) -> bool:
    """A line `name{labels} number`, as Prometheus' text format has it."""
    return _SAMPLE.match(head.split(b"\n", maxsplit=1)[0]) is not None


def read_source(
    name: str,
    decode: Decode,
    *,
    at_ns: int = 0,
    allow_partial: bool = False,
    together: bool = False,
    columns: Mapping[str, str] | None = None,
    records: bool = True,
) -> Source:
    """Read one source. `at_ns` orders scrapes, which carry no stamp of their own. InputError says what is wrong.

    Of a file that holds several runs of another load generator, `name#2` is the second one. `together`: of summaries
    without requests all are wanted at once, as the arms of `observed`. `columns` (our name -> heading) is for a table
    of requests that has all of these headings; other files are read as ever. What is packed is unpacked beside it.
    Without `records` the run of a run file has its table only: an object a request costs several times as much.
    """
    plain, number = split_number(name)
    with unpacked(Path(plain)) as path:
        try:
            read = _read(path, name, number, decode, at_ns, allow_partial, together, columns, records)
        except InputError as error:
            if path == Path(plain):
                raise
            # The copy is nobody's file.
            message, where, remedy = (
                text.replace(str(path), plain) for text in (error.message, error.place, error.remedy)
            )
            raise type(error)(message, place=where, remedy=remedy) from None
    return read


def _read(  # noqa: PLR0911  (one return a kind)
    path: Path,
    name: str,
    number: int | None,
    decode: Decode,
    at_ns: int,
    allow_partial: bool,  # noqa: FBT001
    together: bool,  # noqa: FBT001
    columns: Mapping[str, str] | None,
    records: bool,  # noqa: FBT001
) -> Source:
    if columns and has_columns(path, columns):
        observed = read_requests(path, path.name, columns)
        return Source(name=name, kind=Kind.OBSERVED, observed=observed, table=table_of_requests(observed))
    kind, foreign = _look(path)
    if isinstance(foreign, Format):
        observed = foreign.read(path, path.name)
        return Source(name=name, kind=kind, observed=observed, table=table_of_requests(observed))
    if foreign is not None:
        all_of_them = together and number is None
        found = _summaries(path, foreign, name, allow_partial=allow_partial) if all_of_them else None
        return found or _foreign(path, foreign, name, number, allow_partial=allow_partial)
    if number is not None:
        raise InputError(
            f"#{number} names one of several runs; this is a {kind}", place=name, remedy=f"Give {split_number(name)[0]}"
        )
    if kind is Kind.RUN:
        run = read_run(path, allow_partial=allow_partial, columns=not records)
        notes = [f"{name}: only what is whole was read ({run.problem})"] if run.problem else []
        return Source(name=name, kind=kind, table=run.table(), run=run, notes=notes)
    if kind is Kind.LINES:
        table, applications = one_vantage(read_lines(path, decode))
        return Source(name=name, kind=kind, table=table, applications=applications)
    if kind is Kind.DIRECTORY:
        read, dropped = read_directory(path)
        table, applications = one_vantage(read)
        return Source(name=name, kind=kind, table=table, applications=applications, dropped=dropped)
    return _other(path, name, kind, at_ns)


def _other(path: Path, name: str, kind: Kind, at_ns: int) -> Source:
    """Evidence that is no load test and no gateway's."""
    if kind is Kind.TRITON:
        return Source(name=name, kind=kind, table=read_triton_trace(path))
    if kind in (Kind.SIGNALS, Kind.NVIDIA_SMI, Kind.PROFILE):
        return _hardware(path, name, kind)
    text = path.read_text(encoding="utf-8-sig", errors="replace")
    readings = read_readings(text, path.name)
    head = text.lstrip().encode()[:_JSON_HEAD]
    if not readings and not is_scrape(head):
        # Many a file begins with a comment.
        kind, read_as = _anything(head, head, name)
        return Source(name=name, kind=kind, observed=read_as.read(path, path.name))
    if not readings:
        raise InputError("there is no sample in it", place=name, remedy="Save the whole answer of /metrics.")
    read = [state_of(reading.scrape, at_ns) for reading in readings]
    known = any(is_known(reading.scrape) for reading in readings)
    notes = {} if known else dict.fromkeys(f"{name}: {note}" for _, said in read for note in said)
    return Source(
        name=name,
        kind=kind,
        state=read[-1][0],
        earlier=[state for state, _ in read[:-1]],
        readings=readings,
        notes=list(notes),
    )


def _foreign(path: Path, foreign: Foreign, name: str, number: int | None, *, allow_partial: bool) -> Source:
    imported = read_foreign(path, foreign, allow_partial=allow_partial)
    item = chosen(imported, name if number is None else str(path), number)
    notes = [f"{name}: {note}" for note in (*imported.notes, *item.header.notes)]
    if isinstance(item, Aggregate):
        return Source(name=name, kind=Kind.LOAD_TOOL, foreign=foreign, aggregate=item, notes=notes)
    return Source(name=name, kind=Kind.LOAD_TOOL, foreign=foreign, table=item.table(), run=item, notes=notes)


def _summaries(path: Path, foreign: Foreign, name: str, *, allow_partial: bool) -> Source | None:
    """Summaries of runs as arms, whatever their own reader makes of them; `None` where the file holds requests."""
    try:
        imported = read_foreign(path, foreign, allow_partial=allow_partial)
    except InputError:
        imported = None
    if imported is not None and not all(isinstance(item, Aggregate) for item in imported.items):
        return None
    if foreign is Foreign.CONSOLE:
        observed = observed_text(numbered_lines(path), path.name)
    else:
        observed = read_numbers(path, path.name)
    if not observed.arms:
        return None
    items = [] if imported is None else imported.items
    notes = [f"{name}: {note}" for note in ([] if imported is None else imported.notes)]
    first = next((item for item in items if isinstance(item, Aggregate)), None)
    return Source(name=name, kind=Kind.LOAD_TOOL, foreign=foreign, aggregate=first, observed=observed, notes=notes)


def _hardware(path: Path, name: str, kind: Kind) -> Source:
    if kind is Kind.SIGNALS:
        return Source(name=name, kind=kind, hardware=read_signals(path.read_bytes(), name))
    text = path.read_text(encoding="utf-8-sig", errors="replace")
    if kind is Kind.NVIDIA_SMI:
        states, notes = read_query(text)
        devices = list(dict.fromkeys(state.index for state in states))
        if len(devices) > MOST_DEVICES:
            kept = set(devices[:MOST_DEVICES])
            states = [state for state in states if state.index in kept]
            notes = [*notes, f"{MOST_DEVICES:,} of {len(devices):,} devices are looked at: give those that matter"]
        hardware = Hardware(gpus=states, sources=[name])
    else:
        profiles, notes = read_nsys(text, name)
        hardware = Hardware(profiles=profiles, sources=[name])
    if not hardware:
        raise InputError("there is no row in it", place=name, remedy="Give the whole table, not only its header.")
    return Source(name=name, kind=kind, hardware=hardware, notes=[f"{name}: {note}" for note in notes])
