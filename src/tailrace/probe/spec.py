"""What a load test is to do: target, workload, bounds. Everything that makes a run repeatable is here."""

from __future__ import annotations

from typing import Any

import msgspec

from tailrace.model.errors import InputError
from tailrace.model.thresholds import Objectives, S, SlowThresholds
from tailrace.workload.plan import Workload

_OWN_HEADERS = ("content-length", "transfer-encoding", "x-request-id", "connection", "expect")

_FEWEST_CHARS, _MOST_CHARS = 0.1, 100.0


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The longest that the client waits (ns). `None` leaves a bound to `total_ns`."""

    connect_ns: int = 10 * S
    first_token_ns: int | None = None
    idle_ns: int | None = None
    """Between token or progress events."""
    total_ns: int = 300 * S
    done_grace_ns: int = 5 * S
    """How long the end of the HTTP message may follow the stream's end marker: the answer is whole by then."""


class BenchSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One load test. With neither `requests` nor `duration_ns`, a trace runs to its end; others need one of them."""

    url: str
    """A base URL, with or without `/v1`, or the whole URL of an endpoint."""
    endpoint: str = ""
    """The API by its short name (`chat`, `embeddings`, ...) or its path; empty: what the URL's end says, else chat."""
    template: str = ""
    """The text of a request body with places (`workload.template`); it goes to the URL as that is."""
    dialect: str = ""
    """How answers are read, by name (`probe.reading`); empty: as the path says."""
    workload: Workload
    model: str | None = None
    """`None`: the first that `/v1/models` lists."""
    seed: int = 0
    requests: int | None = None
    duration_ns: int | None = None
    """Sending ends after this; answers still under way are awaited (up to their own bounds)."""
    warmup_requests: int = 0
    warmup_ns: int = 0
    """Requests before the measured ones, outside all statistics, from arrivals of their own."""
    stream: bool = True
    api_key: str = ""
    headers: list[tuple[str, str]] = []
    extra_body: dict[str, Any] = {}
    """Merged into each request's body last."""
    ignore_eos: bool = True
    """Ask engines that know it to answer with exactly the planned number of tokens; dropped where refused."""
    prompt: str | None = None
    """The text of every prompt, instead of drawn ones."""
    audio_files: list[str] = []
    """WAV files, or folders of them, to be transcribed in turn; none: synthetic ones."""
    tokenizer: str = ""
    """The model's `tokenizer.json`, or the folder that holds it: prompts are then exact in tokens."""
    hash_answers: bool = False
    """Whether records tell answers apart by a hash of their text."""
    limits: Limits = Limits()
    verify_tls: bool = True
    new_connections: bool = False
    """Open one for each request, instead of keeping them alive."""
    shared_prefix: int = 0
    """Tokens at the beginning that all prompts of the run share (0: none, so that prefix caches cannot answer)."""
    chars_per_token: float | None = None
    """`None`: calibrated by what the server counts in two small requests before the run."""
    nonce: str = ""
    """Makes this run's prompts differ from those of other runs with the same seed; empty: chosen at random."""
    part: tuple[int, int] = (0, 1)
    """`(index, count)`: this generator's share of the plan, of its workers, and of its rate."""
    thresholds: SlowThresholds = SlowThresholds()
    objectives: Objectives = msgspec.field(default_factory=Objectives)
    scrape_ns: int = S
    """How often the engine's metrics are read while the run goes on; 0: never."""
    metrics_url: str = ""
    """Where they are, when not beside the API."""
    command: str | None = None
    """The command line, without secrets (`probe.command`)."""
    mix_text: str = ""
    notes: list[str] = []

    def __post_init__(self) -> None:
        """Refuse what cannot be run."""
        if self.requests is None and self.duration_ns is None and not self.workload.trace:
            raise InputError("the run would never end", place="--requests", remedy="Give --requests or --duration")
        if self.requests is not None and self.requests < 1:
            raise InputError(f"must be at least 1, got {self.requests}", place="--requests")
        if self.duration_ns is not None and self.duration_ns <= 0:
            raise InputError("must be above 0", place="--duration")
        if self.chars_per_token is not None and not _FEWEST_CHARS <= self.chars_per_token <= _MOST_CHARS:
            raise InputError(
                f"{self.chars_per_token:g} is not between {_FEWEST_CHARS:g} and {_MOST_CHARS:g}",
                place="--chars-per-token",
                remedy="English has about 4; leave it out to calibrate by what the server counts",
            )
        index, count = self.part
        if not 0 <= index < count:
            raise InputError(f"part {index} of {count} does not exist", place="part")
        for name, value in self.headers:
            if any(c in name + value for c in "\r\n") or not name or ":" in name or " " in name:
                raise InputError(f"{name!r} is no header name or its value has a line end", place="--header")
            if name.lower() in _OWN_HEADERS:
                raise InputError(f"{name} is set by the load generator itself", place="--header")

    @property
    def plain_prompts(self) -> bool:
        """Whether every prompt is unlike all others, so that nothing of it can be in a prefix cache."""
        workload = self.workload
        sessions = [one.traits.sessions or one.traits.prefixes for one in workload.mix]
        blocks = any(row.blocks for row in workload.trace)
        shares = self.shared_prefix or blocks or workload.conversations or workload.traits.prefixes
        return self.prompt is None and not shares and not any(sessions)

    @property
    def workers(self) -> int | None:
        """This part's share of the concurrency, or `None` where nothing caps it."""
        whole = self.workload.arrivals.concurrency
        if whole is None:
            return None
        index, count = self.part
        return whole // count + (index < whole % count)
