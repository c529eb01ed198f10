"""Gateways that log one JSON object a request: Envoy, Higress, nginx, APISIX, Kong, LiteLLM, Traefik, Caddy, Azure's
Application Gateway, our own. The same keys and values between bars (`httpStatus|504|timeTaken|20.002`) are read alike.

Keys are compared with `-` and `.` written as `_`, and what stands in an object inside the object is asked as
`outer_inner`: `http.status_code`, `{"response": {"status": 200}}`, `x-litellm-overhead-duration-ms`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from functools import lru_cache
from typing import Any, Final

import msgspec

from tailrace.diagnose.observed import Clock
from tailrace.diagnose.readers.logs.access_text import attempts_of
from tailrace.diagnose.readers.logs.accesses import Access
from tailrace.diagnose.readers.logs.context import Context
from tailrace.diagnose.readers.logs.stamps import nginx_stamp, stamp_in
from tailrace.measure.dialect import UNREADABLE

__all__ = ["AccessJson", "is_access_object"]

_NAN: Final = float("nan")
_DECODER: Final = msgspec.json.Decoder()

MARKS: Final = (
    frozenset({"response_flags"}),
    frozenset({"upstream_response_time"}),
    frozenset({"upstream_service_time"}),
    frozenset({"request_time", "status"}),
    frozenset({"response_code", "duration"}),
    frozenset({"status", "duration_ms"}),
    frozenset({"status", "duration", "request"}),
    frozenset({"status", "latency_ms"}),
    frozenset({"status_code", "latency_ms"}),
    frozenset({"status_code", "duration_ms"}),
    frozenset({"status_code", "response_time"}),
    frozenset({"litellm_call_id"}),
    frozenset({"litellm_overhead_time_ms"}),
    frozenset({"call_type", "startTime", "endTime"}),
    frozenset({"call_type", "response_time"}),
    frozenset({"DownstreamStatus", "Duration"}),
    frozenset({"ai_log"}),
    frozenset({"latencies", "request"}),
    frozenset({"http_status_code", "duration_ms"}),
    frozenset({"EdgeResponseStatus", "EdgeStartTimestamp"}),
    frozenset({"x_litellm_overhead_duration_ms"}),
    frozenset({"httpStatus", "timeTaken"}),
)
"""Keys of which one set is in every object of such a log."""
_STATUSES: Final = frozenset(
    {"status", "status_code", "http_status", "http_status_code", "response_code", "response_status", "http_code"}
)
_TIMED: Final = re.compile(
    r"(?:^|_)(?:duration|latency|elapsed|took|(?:request|response|total)_time)_(?:ms|s|sec|us|ns)$"
)
_OF_REQUESTS: Final = frozenset({"t_send_ms", "prompt_tokens", "input_tokens", "output_tokens", "ttft_ms", "ttft"})
_ASKED: Final = frozenset(
    {"method", "path", "uri", "url", "route", "http_route", "http_method", "http_target", "handler"}
)


def is_access_object(keys: Collection[str]) -> bool:
    """Whether an object with these keys tells of one request through a gateway."""
    names = {plain_key(key) for key in keys}
    if "t_send_ms" in names:
        return False
    if any(marks.issubset(names) for marks in MARKS):
        return True
    # Any server's own line: what was asked, how it ended, how long it took.
    return (
        not names & _OF_REQUESTS
        and bool(names & _STATUSES and names & _ASKED)
        and any(_TIMED.search(name) for name in names)
    )


@lru_cache(maxsize=4096)
def plain_key(key: str) -> str:
    """A key with `_` for what separates its words."""
    return key.replace("-", "_").replace(".", "_")


def _number(value: object) -> float:
    if isinstance(value, bool) or value is None:
        return _NAN
    if isinstance(value, (int, float)):
        return float(value)
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return _NAN
    return _NAN


_SUFFIX: Final = re.compile(r"^\s*([\d.]+)\s*(ns|µs|us|ms|s)\s*$")
_TO_MS: Final = {"ns": 1e-6, "us": 1e-3, "µs": 1e-3, "ms": 1.0, "s": 1e3}


def _millis(scale: float) -> Callable[[object], float]:
    def read(value: object) -> float:
        if isinstance(value, str):
            unit = _SUFFIX.match(value)
            if unit is not None:
                return float(unit[1]) * _TO_MS[unit[2]]
        return _number(value) * scale

    return read


# (field, keys in order of preference, how a value becomes the field's). A key names its unit, or its maker fixed it.
_FIELDS: Final[tuple[tuple[str, tuple[str, ...], Callable[[object], float]], ...]] = (
    (
        "e2e",
        (
            *("duration_ms", "latency_ms", "request_time_ms", "elapsed_ms", "total_ms", "response_time_ms"),
            *("request_duration_ms", "total_time_ms", "took_ms", "http_duration_ms", "latencies_request"),
            "x_litellm_response_duration_ms",
        ),
        _millis(1.0),
    ),
    ("e2e", ("request_time", "response_time", "duration_s", "latency_s", "elapsed_s", "duration_sec"), _millis(1e3)),
    ("e2e", ("duration_us", "latency_us", "elapsed_us"), _millis(1e-3)),
    ("e2e", ("duration_ns", "latency_ns", "elapsed_ns"), _millis(1e-6)),
    # Azure's second generation writes seconds; the first wrote whole milliseconds, and has no latency of the server.
    ("upstream", ("serverResponseLatency",), _millis(1e3)),
    # Cloudflare: the first byte at its edge, what its origin took in ns (later versions: ms).
    ("e2e", ("EdgeTimeToFirstByteMs",), _millis(1.0)),
    ("upstream", ("OriginResponseDurationMs",), _millis(1.0)),
    ("upstream", ("OriginResponseTime",), _millis(1e-6)),
    ("ttft", ("ttft_ms", "time_to_first_token_ms", "llm_first_token_duration"), _millis(1.0)),
    ("ttft", ("ttft", "time_to_first_token"), _millis(1e3)),
    (
        "overhead",
        (
            *("litellm_overhead_time_ms", "x_litellm_overhead_duration_ms", "overhead_ms", "gateway_overhead_ms"),
            "latencies_kong",
        ),
        _millis(1.0),
    ),
    ("upstream", ("llm_api_duration_ms", "upstream_ms", "llm_service_duration", "upstream_latency_ms"), _millis(1.0)),
    ("upstream_header", ("upstream_service_time", "upstream_service_time_ms", "latencies_proxy"), _millis(1.0)),
    (
        "upstream_header",
        (
            *("upstream_ttfb_ms", "ttfb_ms", "first_byte_ms", "upstream_first_byte_ms", "time_to_first_byte_ms"),
            "upstream_header_time_ms",
        ),
        _millis(1.0),
    ),
    ("upstream_header", ("upstream_header_time", "upstream_ttfb", "ttfb", "time_to_first_byte"), _millis(1e3)),
    ("upstream_connect", ("upstream_connect_time",), _millis(1e3)),
    (
        "status",
        (
            *("response_code", "status_code", "status", "http_status", "DownstreamStatus", "response_status"),
            *("http_status_code", "http_response_status_code", "http_code", "httpStatus", "EdgeResponseStatus"),
        ),
        _number,
    ),
    ("upstream_status", ("OriginStatus", "serverStatus", "OriginResponseStatus"), _number),
    (
        "bytes",
        (
            *("bytes_sent", "body_bytes_sent", "size", "DownstreamContentSize", "response_size", "bytes_out"),
            *("response_bytes", "sentBytes"),
        ),
        _number,
    ),
    (
        "upstream_bytes",
        (
            *("upstream_bytes", "upstream_bytes_received", "upstream_wire_bytes_received", "bytes_from_upstream"),
            "upstream_body_bytes",
        ),
        _number,
    ),
    ("attempts", ("attempts", "upstream_request_attempt_count", "request_attempt_count"), _number),
    ("prompt_tokens", ("prompt_tokens", "input_tokens", "input_token"), _number),
    ("output_tokens", ("completion_tokens", "output_tokens", "output_token"), _number),
)
_METHODS: Final = ("method", "request_method", "RequestMethod", "http_method", "httpMethod", "ClientRequestMethod")
_PATHS: Final = (
    *("path", "uri", "request_uri", "RequestPath", "url", "http_route", "http_target", "http_path", "route", "handler"),
    *("call_type", "requestUri", "ClientRequestURI", "ClientRequestPath"),
)
_STAMPS: Final = (
    "timeStamp",
    "start_time",
    "startTime",
    "time_iso8601",
    "time_local",
    "StartUTC",
    "timestamp",
    "@timestamp",
    "time",
    "ts",
    "started_at",
    "EdgeStartTimestamp",
)
_ADDRESSES: Final = (
    "upstream_host",
    "upstream_addr",
    "ServiceAddr",
    "upstream_address",
    "api_base",
    "upstream_cluster",
    "serverRouted",
)
_REASONS: Final = ("error_info", "response_code_details", "exception", "error_str", "error", "reason", "end_reason")


def _text(found: dict[str, Any], keys: tuple[str, ...]) -> str:
    for key in keys:
        value = found.get(key)
        if isinstance(value, str) and value and value != "-":
            return value[:120]
    return ""


def _when(value: object) -> tuple[float, Clock] | None:
    if isinstance(value, str):
        raw = value.encode()
        local = nginx_stamp(b"[" + raw.strip(b"[]") + b"]")
        return (local, Clock.UTC) if local is not None else stamp_in(raw)
    number = _number(value)
    if number != number or number <= 0:  # noqa: PLR0124  (NaN)
        return None
    # Seconds, milliseconds, microseconds, nanoseconds since 1970: told apart by their size.
    while number > 1e11:
        number /= 1e3
    return (number, Clock.UTC) if number > 1e9 else None


def _flat(found: dict[str, Any]) -> dict[str, Any]:
    """The object with plain keys. Caddy keeps the request apart, Kong its latencies too: `outer_inner`, and by its own
    name what stands in `request`.
    """
    out: dict[str, Any] = {}
    for key, value in found.items():
        if isinstance(value, dict):
            for name, inner in value.items():
                out.setdefault(f"{plain_key(key)}_{plain_key(str(name))}", inner)
                if key == "request":
                    out.setdefault(plain_key(str(name)), inner)
    return out | {plain_key(key): value for key, value in found.items()}


_DONE: Final = ("done_seen", "stream_done", "stream_complete", "stream_completed", "done", "response_complete")
_SAID: Final = ("msg", "message", "detail", "details", "event")
_GONE: Final = re.compile(
    r"disconnect|connection (?:reset|closed|aborted)|broken pipe|hung up|client (?:gone|left|closed|abort)|"
    r"stream (?:cut|ended early|aborted|truncated)",
    re.IGNORECASE,
)


@lru_cache(maxsize=4096)
def _gone(said: str) -> bool:
    """Remembered: a gateway says the same few things."""
    return _GONE.search(said) is not None


_TIMED_OUT: Final = re.compile(r"time[ -]?out|timed out", re.IGNORECASE)


_Ends = tuple[tuple[str, ...], str, bool]
"""Keys that say whether a stream was seen to its end, the key of the words, whether a finish reason could stand."""
_Plan = tuple[list[tuple[str, str, Callable[[object], float]]], _Ends | None]


class AccessJson:
    """What a JSON object a request says."""

    def __init__(self, context: Context) -> None:
        """`context` gets the rows."""
        self.context = context
        self.unitless = 0
        """Durations whose unit neither the key nor the maker tells."""
        self._plans: dict[tuple[str, ...], _Plan] = {}

    def line(self, text: bytes) -> bool:
        """A line that begins with `{`; False where it is no object of such a log."""
        try:
            found = _DECODER.decode(text)
        except UNREADABLE:
            return False
        if not isinstance(found, dict):
            return False
        inner = found.get("properties")
        if isinstance(inner, dict):
            found = {**inner, **found}  # Azure keeps what is of the request apart
        if not is_access_object(found.keys()):
            return False
        self.context.accesses.add(*self._row(found))
        return self.context.understood("json gateway log")

    def bars(self, text: bytes) -> bool:
        """A line of keys and values between bars, `key=value|key=value` or `key|value|key|value`; a stamp may lead.
        False where it is none of such a log.
        """
        parts = [part.strip() for part in text.decode("utf-8", "replace").split("|")]
        pairs = [part.partition("=") for part in parts]
        found: dict[str, Any] = {key.strip(): value.strip() for key, sign, value in pairs if sign}
        if not is_access_object(found.keys()):
            if stamp_in(parts[0].encode()) is not None:
                parts = parts[1:]
            found = dict(zip(parts[::2], parts[1::2], strict=False))
            if not is_access_object(found.keys()):
                return False
        stamp = self.context.stamp(text)
        row, clock = self._row(found)
        if clock is Clock.NONE and stamp is not None:
            row.at, clock = stamp
        self.context.accesses.add(row, clock)
        return self.context.understood("gateway log between bars")

    def _row(self, found: dict[str, Any]) -> tuple[Access, Clock]:
        found = _flat(found)
        told = found.get("ai_log")
        if isinstance(told, str):
            try:
                ai = _DECODER.decode(told.encode())
            except UNREADABLE:
                ai = None
            if isinstance(ai, dict):
                found = {**ai, **found}
        row = Access(line=self.context.number)
        plan, ends = self._plan(tuple(found))
        for name, key, read in plan:
            value = found[key]
            # The first key that says something is believed.
            if value is not None and getattr(row, name) != getattr(row, name):
                setattr(row, name, read(value))
        self._duration(row, found)
        self._attempts(row, found)
        row.method, row.path = _text(found, _METHODS), _text(found, _PATHS)
        row.upstream_address, row.reason = _text(found, _ADDRESSES)[-60:], _text(found, _REASONS)
        self._cut(row, found, ends)
        if (
            found.get("upstream_header_time") in ("", "-")
            and row.status >= 500
            and row.upstream_bytes != row.upstream_bytes
        ):
            row.upstream_bytes = 0.0  # no header had come, so nothing had
        flags = found.get("response_flags")
        row.flags = flags if isinstance(flags, str) and flags != "-" else ""
        if found.get("status") in ("failure", "success"):
            row.status = 200.0 if found["status"] == "success" else _number(found.get("error_code"))
            if row.status != row.status and _TIMED_OUT.search(row.reason):
                row.status = 504.0  # a word, and no code: the upstream was given up
        stamp = next((at for key in _STAMPS if (at := _when(found.get(key))) is not None), None)
        self._of_stamps(row, found)
        if stamp is None:
            return row, Clock.NONE
        row.at = stamp[0]
        return row, stamp[1]

    def _cut(self, row: Access, found: dict[str, Any], ends: _Ends | None) -> None:
        """A stream whose end was never seen, by the gateway's own fields: it has 200 all the same."""
        if ends is None:
            return
        done, said_in, streams = ends
        unseen = streams and found["stream"] is True and found["finish_reason"] is None
        for key in done:
            unseen = unseen or found[key] is False
        said = found[said_in] if said_in else ""
        if not unseen and not (isinstance(said, str) and _gone(said) and row.status < 400):
            return
        said = said[:120] if isinstance(said, str) else ""
        row.reason = row.reason or said or "the end of the stream was not seen"
        words = " ".join(filter(None, (said, "no end of the stream seen" if unseen else "")))
        self.context.events.add("disconnect", self.context.number, None, words.encode())

    def _plan(self, keys: tuple[str, ...]) -> _Plan:
        """Which keys of such an object say what: the same for every line of one writer."""
        plan = self._plans.get(keys)
        if plan is None:
            done = tuple(key for key in _DONE if key in keys)
            said_in = next((key for key in _SAID if key in keys), "")
            streams = "stream" in keys and "finish_reason" in keys
            plan = (
                [(name, key, read) for name, wanted, read in _FIELDS for key in wanted if key in keys],
                (done, said_in, streams) if done or said_in or streams else None,
            )
            if len(self._plans) < 256:
                self._plans[keys] = plan
        return plan

    def _duration(self, row: Access, found: dict[str, Any]) -> None:
        """A key `duration` says no unit: milliseconds in Envoy, seconds in Caddy, nanoseconds in Traefik."""
        if "timeTaken" in found and row.e2e != row.e2e:
            taken = str(found["timeTaken"])
            row.e2e = _number(taken) * (1e3 if "serverResponseLatency" in found or "." in taken else 1.0)
        if "Duration" in found and "DownstreamStatus" in found:
            row.e2e = _number(found["Duration"]) / 1e6
            row.upstream = _number(found.get("OriginDuration")) / 1e6
            row.attempts = 1.0 + (_number(found.get("RetryAttempts")) if "RetryAttempts" in found else 0.0)
        elif "duration" in found and row.e2e != row.e2e:
            if "response_flags" in found or "response_code" in found or "upstream_service_time" in found:
                row.e2e = _millis(1.0)(found["duration"])
            elif str(found.get("logger", "")).startswith("http.log"):
                row.e2e = _millis(1e3)(found["duration"])
            elif isinstance(found["duration"], str) and _SUFFIX.match(found["duration"]):
                row.e2e = _millis(1.0)(found["duration"])
            else:
                self.unitless += 1

    @staticmethod
    def _attempts(row: Access, found: dict[str, Any]) -> None:
        """Nginx writes what it knows of each attempt as a list in one string."""
        times = found.get("upstream_response_time")
        if times not in (None, "", "-"):
            values = attempts_of(str(times).encode())
            known = [value * 1e3 for value in values if value == value]  # noqa: PLR0124
            row.attempts = float(len(values))
            if known:
                row.upstream, row.upstream_last = sum(known), known[-1]
        for key, name in (("upstream_status", "upstream_status"), ("upstream_response_length", "upstream_bytes")):
            if found.get(key) not in (None, "", "-"):
                setattr(row, name, attempts_of(str(found[key]).encode())[-1])

    @staticmethod
    def _of_stamps(row: Access, found: dict[str, Any]) -> None:
        """LiteLLM gives start, first token and end as stamps."""
        start, end = _when(found.get("startTime")), _when(found.get("endTime"))
        first = _when(found.get("completionStartTime"))
        if start and end and row.e2e != row.e2e:
            row.e2e = (end[0] - start[0]) * 1e3
        if start and first and row.ttft != row.ttft:
            row.ttft = (first[0] - start[0]) * 1e3
