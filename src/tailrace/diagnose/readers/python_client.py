"""Python client code: limits, timeouts and retries of aiohttp, httpx, openai and requests, read and never executed.

What a call leaves out is the library's default; such settings have `(default)` in their scope. Numbers are constants,
names of constants in the same file, or arithmetic on them.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tailrace.diagnose.observed import Observed, Place, Setting, Understood
from tailrace.diagnose.readers.format import Format
from tailrace.model.errors import InputError

__all__ = ["PYTHON_CLIENT"]

_NAME: Final = "Python client code"
_LARGEST: Final = 1 << 20
_TELLS: Final = re.compile(
    r"\b(?:aiohttp\.(?:ClientSession|TCPConnector|ClientTimeout)|httpx\.(?:Async)?Client|TCPConnector\(|AsyncOpenAI\(|"
    r"\bOpenAI\(|httpx\.(?:Limits|Timeout)|requests\.(?:get|post|Session)|VADParams\(|AgentSession\(|LiveOptions\()"
)
_WORDS: Final = ("aiohttp.", "httpx.", "requests.", "TCPConnector(", "OpenAI(", "VADParams(", "AgentSession(", "LiveO")
"""One of them stands in whatever it finds: asked of every text before."""
_MOST_OTHERS: Final = 20
"""Lines of a paste that are no Python, at most; each is found by parsing again."""
_CODE: Final = re.compile(
    r"^[^\S\n]*(?:import \w|from [\w.]+ import |async def |def |class |[\w.]+\s*=\s*|async with |with |await )",
    re.MULTILINE,
)
_DEFAULT: Final = " (default)"

Number = int | float

# -- what libraries do when nobody says


_AIOHTTP_LIMIT: Final = 100.0
_AIOHTTP_TOTAL_MS: Final = 300_000.0
_HTTPX_LIMIT: Final = 100.0
_HTTPX_TIMEOUT_MS: Final = 5_000.0
_OPENAI_LIMIT: Final = 1000.0
_OPENAI_TIMEOUT_MS: Final = 600_000.0
_OPENAI_RETRIES: Final = 2.0
_REQUESTS_POOL: Final = 10.0


_ASKS: Final = re.compile(r"completions|responses|messages|\bchat\b")
_ASKED: Final = {
    "max_tokens": "max_tokens", "max_completion_tokens": "max_tokens", "max_output_tokens": "max_tokens",
    "max_new_tokens": "max_tokens",
}  # fmt: skip
"""How long an answer may be, in the words of the interfaces."""


def _matches(head: str, name: str) -> bool:
    if head.lstrip()[:1] in {"{", "[", "|", "<"}:
        return False
    found = any(word in head for word in _WORDS) and _TELLS.search(head) is not None
    return found and (name.endswith((".py", ".ipynb.py")) or _CODE.search(head) is not None)


def _read(path: Path, name: str) -> Observed:
    place = str(path)
    if path.stat().st_size > _LARGEST:
        raise InputError(f"is larger than {_LARGEST >> 20} MiB", place=place, remedy="Give the file with the client.")
    text = path.read_text(encoding="utf-8-sig", errors="replace")
    tree, others = _parsed(text, place)
    reader = _Calls(tree, name)
    settings = list(reader.settings())
    if not settings:
        raise InputError(
            "no client of aiohttp, httpx, openai or requests is made in it",
            place=place,
            remedy="Give the file in which the client or its connector is made.",
        )
    return Observed(
        settings=settings,
        understood=[
            Understood(source=name, format=_NAME, understood=reader.read, total=reader.calls, what="calls of clients",
                       examples=reader.unknown[:3]),
            *([Understood(source=name, format=_NAME, understood=0, total=len(others), what="lines that are no Python",
                          examples=others[:3])] if others else []),
        ],
    )  # fmt: skip


def _parsed(text: str, place: str) -> tuple[ast.Module, list[str]]:
    """(the tree, lines that are no Python); a piece cut out of a function is taken as one. Some lines of a paste are
    what the program printed, or a remark.
    """
    first: Exception | None = None
    plain = textwrap.dedent(text)
    for form in (text, plain, "async def _():\n" + textwrap.indent(plain, " ")):
        try:
            return ast.parse(form), []
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            first = first or error
    if isinstance(first, SyntaxError) and (found := _without_others(plain)) is not None:
        return found
    line = getattr(first, "lineno", None)
    raise InputError(
        f"this is no Python: {getattr(first, 'msg', '') or str(first) or 'it is nested too deeply'}",
        place=f"{place}:{line}" if line else place,
        remedy="Give the whole file.",
    ) from None


def _without_others(text: str) -> tuple[ast.Module, list[str]] | None:
    """What is left without the lines at which the parser stops; `None` where those are too many, or no client
    is left.
    """
    lines, others = text.splitlines(), []
    for _ in range(_MOST_OTHERS):
        try:
            tree = ast.parse("\n".join(lines))
        except SyntaxError as error:
            place = (error.lineno or 0) - 1
            if not 0 <= place < len(lines) or not lines[place].strip():
                return None
            others.append(lines[place].strip())
            lines[place] = ""
        except (ValueError, RecursionError, MemoryError):
            return None
        else:
            return (tree, others) if _TELLS.search("\n".join(lines)) else None
    return None


class _Calls:
    """The calls that make clients, in a tree."""

    def __init__(self, tree: ast.Module, source: str) -> None:
        self._tree = tree
        self._source = source
        self._constants = _constants(tree)
        self.calls = 0
        self.read = 0
        self.unknown: list[str] = []

    def settings(self) -> Iterator[Setting]:
        nested: set[int] = set()
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Dict):
                yield from self._payload(node)
            if not isinstance(node, ast.Call):
                continue
            called = _dotted(node.func)
            kind = called.rpartition(".")[2]
            found = list(self._of_call(called, kind, node, nested))
            if kind in _MAKERS:
                self.calls += 1
                self.read += bool(found) or id(node) in nested
            yield from found

    def _of_call(  # noqa: C901  (one library after the other)
        self, called: str, kind: str, node: ast.Call, nested: set[int]
    ) -> Iterator[Setting]:
        if kind == "ClientSession":
            connector = _argument(node, "connector")
            if isinstance(connector, ast.Call):
                nested.add(id(connector))
            yield from self._connector(connector, node)
            yield from self._aiohttp_timeout(_argument(node, "timeout"), node)
        elif kind == "TCPConnector" and id(node) not in nested:
            yield from self._limit(node, "limit", "aiohttp.TCPConnector", _AIOHTTP_LIMIT)
        elif kind in {"AsyncClient", "Client"} and "httpx" in called:
            yield from self._httpx(node)
        elif kind in {"OpenAI", "AsyncOpenAI", "AzureOpenAI", "AsyncAzureOpenAI"}:
            yield from self._openai(node, kind)
        elif kind == "HTTPAdapter":
            yield from self._limit(node, "pool_maxsize", "requests.HTTPAdapter", _REQUESTS_POOL)
        elif called in {"requests.get", "requests.post", "requests.request"} or kind == "wait_for":
            timeout = _argument(node, "timeout") or (
                node.args[1] if kind == "wait_for" and len(node.args) > 1 else None
            )
            yield from self._time(timeout, "timeout", called, node)
        elif kind in {"Semaphore", "BoundedSemaphore"}:
            value = self._number(node.args[0] if node.args else _argument(node, "value"))
            if value is not None:
                yield self._setting("client.concurrency", value, "", called, node)
        elif kind in {"create", "acreate", "generate", "stream"} and _ASKS.search(called):
            for name in _ASKED:
                yield from self._asked(name, _argument(node, name), called)
            yield from self._time(_argument(node, "timeout"), "timeout", called, node)
        elif kind in {"VADParams", "AgentSession", "LiveOptions", "SileroVAD", "load"}:
            yield from self._speech(node, called)

    def _payload(self, node: ast.Dict) -> Iterator[Setting]:
        """The body of a request that is written as a dict: `json={"max_tokens": 2048, ...}`."""
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and key.value in _ASKED:
                yield from self._asked(str(key.value), value, "the request's body")

    def _asked(self, name: str, given: ast.expr | None, scope: str) -> Iterator[Setting]:
        value = self._number(given)
        if value is not None and value > 0 and given is not None:
            yield self._setting(_ASKED[name], value, "", scope, given)

    def _connector(self, connector: ast.expr | None, node: ast.Call) -> Iterator[Setting]:
        if connector is None:
            yield self._setting("client.connection_limit", _AIOHTTP_LIMIT, "", "aiohttp.ClientSession" + _DEFAULT, node)
        elif isinstance(connector, ast.Call):
            yield from self._limit(connector, "limit", "aiohttp.TCPConnector", _AIOHTTP_LIMIT)

    def _limit(self, node: ast.Call, key: str, scope: str, default: float) -> Iterator[Setting]:
        given = _argument(node, key)
        if given is None:
            yield self._setting("client.connection_limit", default, "", scope + _DEFAULT, node)
        else:
            value = self._number(given)
            if value is None and isinstance(given, ast.Constant) and given.value is None:
                value = 0.0
            if value is not None:
                yield self._setting("client.connection_limit", value, "", scope, given)
            else:
                self.unknown.append(f"{node.lineno}: {key} is no number that stands in this file")
        host = self._number(_argument(node, "limit_per_host"))
        if host:
            yield self._setting("client.connection_limit_per_host", host, "", scope, node)

    def _aiohttp_timeout(self, timeout: ast.expr | None, node: ast.Call) -> Iterator[Setting]:
        if timeout is None:
            yield self._setting("client.timeout", _AIOHTTP_TOTAL_MS, "ms", "aiohttp.ClientSession" + _DEFAULT, node)
        elif isinstance(timeout, ast.Call):
            for key, ours in (("total", "timeout"), ("sock_read", "read_timeout"), ("connect", "connect_timeout")):
                yield from self._time(_argument(timeout, key), ours, "aiohttp.ClientTimeout", timeout)
            if _argument(timeout, "total") is None and not timeout.args:
                yield self._setting(
                    "client.timeout", _AIOHTTP_TOTAL_MS, "ms", "aiohttp.ClientTimeout" + _DEFAULT, timeout
                )
        else:
            yield from self._time(timeout, "timeout", "aiohttp.ClientSession", node)

    def _httpx(self, node: ast.Call) -> Iterator[Setting]:
        limits = _argument(node, "limits")
        if isinstance(limits, ast.Call):
            yield from self._limit(limits, "max_connections", "httpx.Limits", _HTTPX_LIMIT)
        elif limits is None:
            yield self._setting("client.connection_limit", _HTTPX_LIMIT, "", "httpx.Client" + _DEFAULT, node)
        timeout = _argument(node, "timeout")
        if timeout is None:
            yield self._setting("client.read_timeout", _HTTPX_TIMEOUT_MS, "ms", "httpx.Client" + _DEFAULT, node)
        elif isinstance(timeout, ast.Call):
            yield from self._httpx_timeout(timeout)
        else:
            yield from self._time(timeout, "read_timeout", "httpx.Client", node)

    def _httpx_timeout(self, timeout: ast.Call) -> Iterator[Setting]:
        read = _argument(timeout, "read") or (timeout.args[0] if timeout.args else _argument(timeout, "timeout"))
        yield from self._time(read, "read_timeout", "httpx.Timeout", timeout)
        yield from self._time(_argument(timeout, "connect"), "connect_timeout", "httpx.Timeout", timeout)
        yield from self._time(_argument(timeout, "pool"), "pool_timeout", "httpx.Timeout", timeout)

    def _openai(self, node: ast.Call, kind: str) -> Iterator[Setting]:
        timeout = _argument(node, "timeout")
        if timeout is None:
            yield self._setting("client.timeout", _OPENAI_TIMEOUT_MS, "ms", kind + _DEFAULT, node)
        elif isinstance(timeout, ast.Call):
            yield from self._httpx_timeout(timeout)
        else:
            yield from self._time(timeout, "timeout", kind, node)
        retries = _argument(node, "max_retries")
        value = self._number(retries) if retries is not None else _OPENAI_RETRIES
        if value is not None:
            yield self._setting("client.retries", value, "", kind + ("" if retries is not None else _DEFAULT), node)
        if _argument(node, "http_client") is None:
            yield self._setting("client.connection_limit", _OPENAI_LIMIT, "", kind + _DEFAULT, node)

    def _speech(self, node: ast.Call, called: str) -> Iterator[Setting]:
        """How long a turn's end waits for silence, and the audio's rate."""
        units = {"_ms": 1.0, "_secs": 1e3, "_delay": 1e3, "_duration": 1e3}
        for keyword in node.keywords:
            name = keyword.arg or ""
            value = self._number(keyword.value)
            if value is None:
                continue
            if name in {
                "stop_secs",
                "min_endpointing_delay",
                "min_silence_duration",
                "utterance_end_ms",
                "endpointing",
            }:
                scale = next((scale for ending, scale in units.items() if name.endswith(ending)), 1.0)
                yield self._setting(f"speech.{name.removesuffix('_ms')}", value * scale, "ms", called, node)
            elif name in {"sample_rate", "encoding_rate"}:
                yield self._setting("speech.sample_rate", value, "Hz", called, node)

    def _time(self, given: ast.expr | None, what: str, scope: str, node: ast.Call) -> Iterator[Setting]:
        value = self._number(given)
        if value is not None and value >= 0:
            yield self._setting(f"client.{what}", value * 1e3, "ms", scope, given or node)

    def _setting(self, name: str, value: Number, unit: str, scope: str, node: ast.AST) -> Setting:
        line = int(getattr(node, "lineno", 0))
        return Setting(name=name, value=float(value), unit=unit, scope=scope, place=Place(self._source, line))

    def _number(self, node: ast.expr | None) -> float | None:
        return _number(node, self._constants, 0)


_MAKERS: Final = frozenset({"ClientSession", "TCPConnector", "AsyncClient", "OpenAI", "AsyncOpenAI", "HTTPAdapter"})


def _constants(tree: ast.Module) -> dict[str, ast.expr]:
    """Names that are given one value, once."""
    out: dict[str, ast.expr] = {}
    twice: set[str] = set()
    for node in ast.walk(tree):
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        for target in targets:
            value = getattr(node, "value", None)
            if isinstance(target, ast.Name) and value is not None:
                twice.update({target.id} if target.id in out else ())
                out[target.id] = value
    return {name: value for name, value in out.items() if name not in twice}


def _number(node: ast.expr | None, names: dict[str, ast.expr], depth: int) -> float | None:
    """A number that needs no running of the code; `None` for anything else."""
    if node is None or depth > 20:
        return None
    if isinstance(node, ast.Constant):
        return _constant(node.value)
    if isinstance(node, ast.Name):
        return _number(names.get(node.id), names, depth + 1)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _number(node.operand, names, depth + 1)
        return None if inner is None else -inner
    if isinstance(node, ast.BinOp):
        left, right = _number(node.left, names, depth + 1), _number(node.right, names, depth + 1)
        return None if left is None or right is None else _joined(node.op, left, right)
    return None


def _constant(value: object) -> float | None:
    good = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e12
    return float(value) if good and isinstance(value, int | float) else None


def _joined(operator: ast.operator, left: float, right: float) -> float | None:
    if isinstance(operator, ast.Div):
        return left / right if right else None
    work = {ast.Mult: left * right, ast.Add: left + right, ast.Sub: left - right}
    return work.get(type(operator))


def _dotted(node: ast.expr) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([*([node.id] if isinstance(node, ast.Name) else []), *reversed(parts)])


def _argument(node: ast.Call, name: str) -> ast.expr | None:
    return next((keyword.value for keyword in node.keywords if keyword.arg == name), None)


PYTHON_CLIENT: Final = Format(name=_NAME, matches=_matches, read=_read)
