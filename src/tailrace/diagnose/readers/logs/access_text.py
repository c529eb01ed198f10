"""Access logs as text: uvicorn; nginx with and without times, the Kubernetes ingress, APISIX; Envoy."""

from __future__ import annotations

import re
from typing import Final

from tailrace.diagnose.observed import Clock
from tailrace.diagnose.readers.logs.accesses import Access
from tailrace.diagnose.readers.logs.context import Context
from tailrace.diagnose.readers.logs.stamps import nginx_stamp, stamp_in

__all__ = ["AccessText"]

_NAN: Final = float("nan")
_BETWEEN: Final = re.compile(rb", | : ")
# A retried request has one value an attempt: `0.100, 1.2`, and `a : b` where a request was redirected inside nginx.
_LIST: Final = rb"[^\s,]+(?:(?:, | : )[^\s,]+)*"
_UVICORN: Final = re.compile(rb'(?:^|[\s\])])(\S+) - "([A-Z]+) (\S+) HTTP/[\d.]+" (\d{3})(?: |$)')
_LINE: Final = re.compile(rb'"([A-Z]{3,10}) (\S+)(?: HTTP/[\d.]+)?" (\d{3}) (\d+|-)(.*)$', re.DOTALL)
_BROKEN: Final = re.compile(rb'\] "([^"]*)" (\d{3}) (\d+|-)(.*)$', re.DOTALL)
_INGRESS: Final = re.compile(
    rb' "[^"]*" "[^"]*" (\d+|-) ([\d.]+|-) \[([^\]]*)\] \[([^\]]*)\] (' + _LIST + rb") (" + _LIST + rb") (" + _LIST
    + rb") (" + _LIST + rb")(?: (\S+))?"
)  # fmt: skip
_APISIX: Final = re.compile(rb' ([\d.]+) "[^"]*" "[^"]*" (' + _LIST + rb") (" + _LIST + rb") (" + _LIST + rb")(?: |$)")
_AFTER_AGENT: Final = re.compile(rb' "[^"]*" "[^"]*"(?: "[^"]*")?((?: +"?(?:[\d.]+|-)(?:(?:, | : )(?:[\d.]+|-))*"?)+)')
_NUMBERS: Final = re.compile(rb'"?((?:[\d.]+|-)(?:(?:, | : )(?:[\d.]+|-))*)"?')
_NAMED: Final = re.compile(rb'(?<![\w$])([a-z_]{2,30})[=:] ?"?((?:[\w.:-]+)(?:(?:, | : )[\w.:-]+)*)"?(?=[\s,;|}]|$)')
_NAMES: Final = {
    b"rt": "e2e",
    b"request_time": "e2e",
    b"urt": "upstream",
    b"upstream_response_time": "upstream",
    b"upstream_time": "upstream",
    b"uht": "upstream_header",
    b"upstream_header_time": "upstream_header",
    b"uct": "upstream_connect",
    b"upstream_connect_time": "upstream_connect",
    b"us": "upstream_status",
    b"upstream_status": "upstream_status",
    b"ua": "upstream_address",
    b"upstream": "upstream_address",
    b"upstream_addr": "upstream_address",
    b"url": "upstream_bytes",
    b"upstream_response_length": "upstream_bytes",
}
_ENVOY: Final = re.compile(
    rb'\[([^\]]+)\] "([A-Z]{3,10}|-) (\S+) ([^"]*)" (\d{1,3}) (\S+)(?: (\S+))??(?: \S+)??(?: "[^"]*")?? '
    rb"(\d+) (\d+) (\d+) (\d+|-) (.*)$"
)
_QUOTED: Final = re.compile(rb'"([^"]*)"')
_PAIRS: Final = re.compile(rb'(?<![\w-])([A-Za-z][\w.-]{1,60})=("[^"]*"|[^\s,;]+)')
_PAIR_NAMES: Final = {
    "method": "method", "request_method": "method", "verb": "method",
    "path": "path", "request": "path", "uri": "path", "request_uri": "path", "url": "path", "request_path": "path",
    "status": "status", "response_code": "status", "code": "status", "status_code": "status",
    "response_flag": "flags", "response_flags": "flags", "flags": "flags",
    "status_details": "reason", "response_code_details": "reason",
    "upstream_status": "upstream_status", "upstream": "upstream_address", "upstream_host": "upstream_address",
    "upstream_addr": "upstream_address", "response_size": "bytes", "bytes_sent": "bytes",
}  # fmt: skip
_PAIR_TIMES: Final = {
    "total_time": "e2e", "duration": "e2e", "request_time": "e2e", "request_duration": "e2e", "latency": "e2e",
    "elapsed": "e2e", "took": "e2e", "response_time": "e2e",
    "upstream_response_time": "upstream", "upstream_time": "upstream", "upstream_duration": "upstream",
    "upstream_service_time": "upstream_header", "x_envoy_upstream_service_time": "upstream_header",
}  # fmt: skip
_PAIR_UNITS: Final = {"_ms": 1.0, "_s": 1e3, "_sec": 1e3, "_seconds": 1e3, "_us": 1e-3, "_ns": 1e-6}
_IN_SECONDS: Final = frozenset({"request_time", "upstream_response_time"})
"""nginx's own words: seconds."""
_GIN: Final = re.compile(
    rb"\[GIN\] (\d{4}/\d\d/\d\d) - (\d\d:\d\d:\d\d) \|\s*(\d{3})\s*\|\s*([\d.hm\xc2\xb5\xce\xbcuns]+s)\s*\|"
    rb'\s*\S+\s*\|\s*([A-Z]+)\s+"?([^\s"]+)'
)
_GO: Final = re.compile(rb"([\d.]+)(h|ms|m|us|\xc2\xb5s|\xce\xbcs|ns|s)")
_GO_MS: Final = {b"h": 3.6e6, b"m": 6e4, b"s": 1e3, b"ms": 1.0, b"us": 1e-3, b"ns": 1e-6}
NO_TIMES: Final = (
    "request times of the proxy: the plain `combined` format has none; add $request_time and $upstream_response_time "
    "(and $upstream_status, $upstream_response_length) to log_format"
)


def attempts_of(text: bytes) -> list[float]:
    """The values of a list with one value an attempt; NaN for `-`."""
    if b" " not in text:
        return [_number(text)]
    return [_number(part) for part in _BETWEEN.split(text)]


def _number(text: bytes) -> float:
    try:
        return float(text)
    except ValueError:
        return _NAN


def _set_attempts(row: Access, times: bytes) -> None:
    values = attempts_of(times)
    known = [value * 1e3 for value in values if value == value]  # noqa: PLR0124  (not NaN)
    row.attempts = float(len(values))
    if known:
        row.upstream, row.upstream_last = sum(known), known[-1]


def _times_by_name(row: Access, named: dict[str, bytes]) -> bool:
    """`rt=0.123 urt="0.100, 0.020"`, and the like."""
    if "upstream" in named:
        _set_attempts(row, named["upstream"])
    if "upstream_address" in named:
        row.upstream_address = named["upstream_address"].decode("utf-8", "replace")[-60:]
    for name, scale in (("e2e", 1e3), ("upstream_header", 1e3), ("upstream_connect", 1e3)):
        if name in named:
            setattr(row, name, attempts_of(named[name])[-1] * scale)
    for name in ("upstream_status", "upstream_bytes"):
        if name in named:
            setattr(row, name, attempts_of(named[name])[-1])
    if "upstream_header" in named and "upstream_bytes" not in named and row.upstream_header != row.upstream_header:
        row.upstream_bytes = 0.0  # `-`: no header had come from the last attempt, so nothing had
    return "e2e" in named or "upstream" in named


def _bare_times(row: Access, rest: bytes) -> bool:
    """Numbers after the agent."""
    after = _AFTER_AGENT.match(rest)
    if after is not None:
        # A time has a fraction, a size has none.
        times = [value for value in _NUMBERS.findall(after[1]) if b"." in value or value == b"-"]
        if times and b"." in times[0]:
            row.e2e = _number(times[0]) * 1e3
            if len(times) > 1:
                _set_attempts(row, times[1])
            return True
    return False


class AccessText:
    """What access lines in text say."""

    def __init__(self, context: Context) -> None:
        """`context` gets the rows."""
        self.context = context
        self.timeless = 0
        """Lines of the plain combined format."""
        self.timed = 0
        self._uvicorn: dict[bytes, tuple[str, str, float]] = {}

    def repeated(self, tail: bytes) -> bool:
        """Whether a line of uvicorn that ends so was seen before; it is counted then."""
        known = self._uvicorn.get(tail)
        if known is None:
            return False
        self.context.accesses.count_more(known, 1)
        return self.context.understood("uvicorn access log")

    def line(self, text: bytes) -> bool:
        """Any line with a request in it; False where it is none that is known."""
        at = text.find(b' - "')
        if b'] "' in text[:60] and text[:1] == b"[" and self._envoy(text):
            return True
        if b'] "' in text or b" [" in text[:200]:
            found = _LINE.search(text)
            stamp = None if found is None else nginx_stamp(text[: found.start() + 1])
            if found is not None and stamp is not None:
                return self._proxy(found, stamp)
        found = _UVICORN.search(text)
        if found is not None:
            return self._answered(text, at, found)
        broken = _BROKEN.search(text)
        if broken is not None and nginx_stamp(text) is not None:
            row = Access(line=self.context.number, method="-", path="-", status=float(broken[2]))
            row.at = nginx_stamp(text) or _NAN
            self.context.accesses.add(row, Clock.UTC)
            return self.context.understood("nginx access log")
        return False

    def gin(self, text: bytes) -> bool:
        """Go servers with gin (Ollama, LocalAI): status and the whole duration, `1m2.5s`."""
        found = _GIN.search(text)
        if found is None:
            return False
        day, clock, status, took, method, path = found.groups()
        stamp = stamp_in(day + b" " + clock)
        row = Access(
            line=self.context.number,
            at=_NAN if stamp is None else stamp[0],
            method=method.decode(),
            path=path.decode("utf-8", "replace"),
            status=float(status),
            e2e=sum(float(number) * _GO_MS.get(unit, 1e-3) for number, unit in _GO.findall(took)),
        )
        self.timed += 1
        self.context.accesses.add(row, Clock.NONE if stamp is None else stamp[1])
        return self.context.understood("gin access log")

    def pairs(self, text: bytes) -> bool:
        """`method=POST path=/v1/completions status=504 response_flags=UT duration_ms=15001`: a status, and a time with
        its unit or a response flag. False where it has not both.
        """
        row = Access(line=self.context.number)
        told = False
        for raw, said in _PAIRS.findall(text):
            key = raw.decode().lower().replace("-", "_").replace(".", "_")
            value = said.strip(b'"')
            name = _PAIR_NAMES.get(key)
            if name in {"method", "path", "flags", "reason", "upstream_address"}:
                shown = value.decode("utf-8", "replace")
                setattr(row, name, "" if shown == "-" else shown[-120:] if name == "upstream_address" else shown)
            elif name is not None:
                setattr(row, name, _number(value))
            else:
                told = self._pair_time(row, key, value) or told
        if row.status != row.status or not 100 <= row.status < 600 or not (told or row.flags):
            return False
        stamp = self.context.stamp(text)
        if stamp is not None:
            row.at = stamp[0]
        self.timed += told
        self.context.accesses.add(row, Clock.NONE if stamp is None else stamp[1])
        return self.context.understood("envoy access log" if row.flags else "access log")

    @staticmethod
    def _pair_time(row: Access, key: str, value: bytes) -> bool:
        """A duration by the unit in its key, or in its value; one without either is a question and no value."""
        ending = next((end for end in _PAIR_UNITS if key.endswith(end)), "")
        name = _PAIR_TIMES.get(key) or _PAIR_TIMES.get(key.removesuffix(ending))
        if name is None:
            return False
        number = _number(value)
        if number == number:  # noqa: PLR0124  (not NaN)
            scale = _PAIR_UNITS.get(ending) or (
                1e3 if key in _IN_SECONDS else 1.0 if name == "upstream_header" and key not in _PAIR_TIMES else None
            )
            if scale is None and key in {"upstream_service_time", "x_envoy_upstream_service_time"}:
                scale = 1.0
            ms = None if scale is None else number * scale
        else:
            parts = _GO.findall(value)
            whole = b"".join(part + unit for part, unit in parts) == value and parts
            ms = sum(float(part) * _GO_MS.get(unit, 1e-3) for part, unit in parts) if whole else None
        if ms is None:
            return False
        if name == "upstream":
            row.upstream = row.upstream_last = ms
        else:
            setattr(row, name, ms)
        return True

    def _answered(self, text: bytes, at: int, found: re.Match[bytes]) -> bool:
        """A line of uvicorn: when the answer begins, without time or duration."""
        row = Access(
            line=self.context.number,
            method=found[2].decode(),
            path=found[3].decode("utf-8", "replace"),
            status=float(found[4]),
        )
        self.context.accesses.add(row)
        # Of the next line like it nothing is new.
        if at > 0 and len(self._uvicorn) < 4096 and row.path != "(others)":
            self._uvicorn[text[at:]] = (row.method, row.path, row.status)
        return self.context.understood("uvicorn access log")

    def _proxy(self, found: re.Match[bytes], at: float) -> bool:
        row = Access(
            line=self.context.number,
            at=at,
            method=found[1].decode(),
            path=found[2].decode("utf-8", "replace"),
            status=float(found[3]),
            bytes=_number(found[4]),
        )
        if self._times(row, found[5]):
            self.timed += 1
        else:
            self.timeless += 1
        self.context.accesses.add(row, Clock.UTC)
        return self.context.understood("nginx access log")

    @staticmethod
    def _times(row: Access, rest: bytes) -> bool:
        """Times in the order of the ingress, of APISIX, as `name=value`, or as bare numbers after the agent."""
        ingress = _INGRESS.match(rest)
        if ingress is not None:
            row.e2e = _number(ingress[2]) * 1e3
            row.upstream_address = ingress[5].decode("utf-8", "replace")[-60:]
            lengths, statuses = attempts_of(ingress[6]), attempts_of(ingress[8])
            row.upstream_bytes, row.upstream_status = lengths[-1], statuses[-1]
            _set_attempts(row, ingress[7])
            return True
        apisix = _APISIX.match(rest)
        if apisix is not None:
            row.e2e = _number(apisix[1]) * 1e3
            row.upstream_address = apisix[2].decode("utf-8", "replace")[-60:]
            row.upstream_status = attempts_of(apisix[3])[-1]
            _set_attempts(row, apisix[4])
            return True
        named = {_NAMES[key]: value for key, value in _NAMED.findall(rest) if key in _NAMES}
        return _times_by_name(row, named) if named else _bare_times(row, rest)

    def _envoy(self, text: bytes) -> bool:
        """Envoy's text format, with or without the mesh's further fields after the flags."""
        found = _ENVOY.match(text)
        if found is None:
            return False
        stamp = stamp_in(found[1])
        if stamp is None:
            return False
        flags = found[6].decode("utf-8", "replace")
        upstream = _number(found[11])
        quoted = _QUOTED.findall(found[12])
        row = Access(
            line=self.context.number,
            at=stamp[0],
            method=found[2].decode(),
            path=found[3].decode("utf-8", "replace"),
            status=float(found[5]),
            flags="" if flags == "-" else flags,
            reason=(found[7] or b"").decode("utf-8", "replace"),
            upstream_bytes=_number(found[9]),
            bytes=_number(found[9]),
            e2e=float(found[10]),
            upstream_header=upstream,
            upstream_address=quoted[-1].decode("utf-8", "replace")[-60:] if quoted else "",
        )
        self.timed += 1
        self.context.accesses.add(row, stamp[1])
        return self.context.understood("envoy access log")
