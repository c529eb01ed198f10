"""The reader of logs: each line goes to the dialect that knows it, whatever else the file holds."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

import numpy as np

from tailrace.diagnose.observed import Clock, Observed, Place, Rows, Setting, Understood
from tailrace.diagnose.readers.engine_settings import settings_of_words, split_line
from tailrace.diagnose.readers.format import Format
from tailrace.diagnose.readers.logs.access_json import AccessJson
from tailrace.diagnose.readers.logs.access_text import NO_TIMES, AccessText
from tailrace.diagnose.readers.logs.accesses import Accesses
from tailrace.diagnose.readers.logs.balancers import Balancers
from tailrace.diagnose.readers.logs.context import Context
from tailrace.diagnose.readers.logs.happenings import Happenings
from tailrace.diagnose.readers.logs.jit import is_jit, jit
from tailrace.diagnose.readers.logs.kubernetes import Kubernetes
from tailrace.diagnose.readers.logs.lines import Batch, CutError, batches, read_batches, record_starts
from tailrace.diagnose.readers.logs.llamacpp import LlamaCpp
from tailrace.diagnose.readers.logs.prefix import unprefixed, words_of
from tailrace.diagnose.readers.logs.proxy_error import is_proxy_error, proxy_error
from tailrace.diagnose.readers.logs.sglang import Sglang
from tailrace.diagnose.readers.logs.tgi import Tgi
from tailrace.diagnose.readers.logs.trtllm import TrtLlm
from tailrace.diagnose.readers.logs.vllm import MARK, Vllm
from tailrace.diagnose.readers.printed import is_titled
from tailrace.engines.flags.start_log import StartLog
from tailrace.model.errors import InputError

__all__ = ["LOG", "Log", "read_log", "read_log_text"]

_EXAMPLES: Final = 5
_HELD: Final = 16_384
"""A record is put together from so many bytes of broken lines at most."""
_COLOUR: Final = re.compile(rb"\x1b\[[0-9;]*[A-Za-z]")
_RECORD: Final = re.compile(
    rb"\s*(?:\[GIN\] |\[?\d{4}[-/]\d\d[-/]\d\d[T ]|\([A-Za-z][\w .-]* pid=\w+\)|"
    rb"(?:INFO|WARNING|WARN|ERROR|DEBUG|CRITICAL|TRACE|FATAL)[ :\[]|"
    rb"\d{1,3}(?:\.\d{1,3}){3} |[0-9a-f]*:[0-9a-f:]+ - |\{|slot |srv |main: |que |llama_|"
    rb"prompt eval time|eval time|total time|draft acceptance|graphs reused|"
    rb"[A-Z][a-z]{2} +\d+ \d\d:\d\d|\[\d+\] |\[\d\d/\d\d/\d{4}-\d\d:\d\d:\d\d\]|"
    rb"\d+\.\d\d\.\d{3}\.\d{3} [A-Z] |Traceback |=+ |\d+ \d)"
)
_HAPPENED: Final = (
    (b"EngineDeadError", "died"),
    (b"EngineCore encountered", "died"),
    (b"Engine core initialization failed", "died"),
    (b"Started server process", "restart"),
    (b"LLM engine (v", "restart"),
    (b"server is fired up", "restart"),
    (b"ERROR", "error"),
    (b"CRITICAL", "error"),
    (b"Traceback (most recent call last)", "error"),
)
_STARTED: Final = re.compile(
    rb"\s*(?:[$%#>]\s*)?(?:[\w./~-]*python[\d.]*\s+-m\s+)?[\w./~-]*"
    rb"(?:llama-server|vllm\s+serve|vllm\.entrypoints[\w.]*|sglang\.launch_server|sglang\s+serve|"
    rb"text-generation-launcher|trtllm-serve|tritonserver)\s+(?:\S+\s+)?-"
)
_TAGS: Final = 4096
_USELESS: Final = 50
"""So many lines of one place in the engine's source, nothing learned from any, and the rest is not looked at."""
_WORTH_FACTS: Final = (
    b"args",
    b"rgs {",
    b"onfig",
    b"max_",
    b"KV",
    b"model len",
    b"n_",
    b"version",
    b"oncurrency",
    b"build",
)


class Log:
    """Reads lines as they come; `observed` at the end."""

    def __init__(self, source: str) -> None:
        """`source` stands in the places of everything that is read."""
        self.source = source
        self.context = Context(source=source, events=Happenings(source), accesses=Accesses(source))
        self.vllm, self.sglang = Vllm(self.context), Sglang(self.context)
        self.llamacpp, self.tgi = LlamaCpp(self.context), Tgi(self.context)
        self.trtllm = TrtLlm(self.context)
        self.access_text, self.access_json = AccessText(self.context), AccessJson(self.context)
        self.balancers, self.kubernetes = Balancers(self.context), Kubernetes(self.context)
        self.facts = StartLog(source)
        self.records = 0
        """Records: lines, and what was put together of broken ones."""
        self.understood = 0
        self.ordinary = 0
        """Records of a log that say nothing of speed."""
        self.examples: list[str] = []
        self.commands: list[Setting] = []
        """Options of the command that started the engine, where it stands above its output."""
        self.cut = ""
        """Why it was not read to its end, where it was not."""
        self._held: list[bytes] = []
        self._held_line = 0
        self._partial = b""
        self._useless: dict[bytes, int] = {}
        self._rare: tuple[tuple[bytes, Callable[[bytes], bool]], ...] = (
            (b"Iteration(", self.vllm.step),
            (b"num_ctx_tokens", self.trtllm.line),
            (b"SpecDecoding metrics", self.vllm.speculation),
            (b"reempt", self.vllm.preempted),
            (b"etract", self._retracted),
            (b"Decode out of memory happened", self.sglang.retracted),
            (b"borted", self.vllm.aborted),
            (b"Generated response ", self.vllm.finished),
            (b"Finished request ", self.vllm.finished),
            (b"_time=", self.tgi.line),
            (b"eval time", self.llamacpp.line),
            (b"total time", self.llamacpp.line),
            (b"slot ", self.llamacpp.line),
            (b"srv ", self.llamacpp.line),
            (b"que ", self.llamacpp.line),
            (b" request: ", self.llamacpp.line),
            (b'] "', self.access_text.line),
            (b"[GIN]", self.access_text.gin),
            (b"status=", self.access_text.pairs),
            (b"code=", self.access_text.pairs),
            (b"probe", self.kubernetes.line),
            (b"iveness: ", self.kubernetes.line),
            (b"OOMKill", self.kubernetes.line),
            (b"timeTaken", self.access_json.bars),
        )

    # -- lines

    def feed(self, batch: Batch) -> None:
        """Some lines in a row."""
        number = batch.first - 1
        context, load = self.context, self.vllm.load
        for raw in batch.lines:
            number += not batch.pieces
            context.number = number + batch.pieces
            line = raw[:-1] if raw[-1:] == b"\r" else raw
            context.outer = None
            begin = line[:1]
            if begin != b"(" and begin != b"I":  # noqa: PLR1714  (lines are many)
                bare = self._unprefixed(line)
                if bare is None:
                    continue
                line = bare
            tail = line.find(b' - "')
            if tail > 0 and self.access_text.repeated(line[tail:]):
                self._release()
                self.records += 1
                self.understood += 1
                continue
            tag = _tag(line)
            if tag and not self._held and self._useless.get(tag, 0) >= _USELESS and line.find(MARK) < 0:
                # Of such a line nothing was ever learned; what follows it may still belong to it.
                self._held, self._held_line = [line], context.number
                continue
            at = line.find(MARK)
            # The commonest line of an engine's log, whole and alone: nothing else is looked at.
            if (
                at >= 0
                and line[:1] != b"{"
                and line.find(MARK, at + 20) < 0
                and _whole_line(line, at)
                and load(line, at)
            ):
                self._release()
                self.records += 1
                self.understood += 1
                continue
            self._line(line)

    def _unprefixed(self, line: bytes) -> bytes | None:
        found = unprefixed(line)
        if found is None:
            self.context.origin = ""
            return line
        self.context.outer, self.context.origin = found.stamp, found.origin
        if found.partial:
            self._partial = (self._partial + found.text)[:_HELD]
            return None
        text, self._partial = self._partial + found.text, b""
        return text

    def _line(self, line: bytes) -> None:
        if b"\x1b" in line:
            line = _COLOUR.sub(b"", line)
        if not line.strip():
            return
        if b"\r" in line:
            for part in line.split(b"\r"):
                if part.strip():
                    self._one(part)
            return
        self._one(line)

    def _one(self, line: bytes) -> None:
        if not _may_be_glued(line):
            self._record(line)
            return
        starts = [at for at in record_starts(line) if at > 0]
        for begin, end in zip([0, *starts], [*starts, len(line)], strict=True):
            if line[begin:end].strip():
                self._record(line[begin:end])

    def _record(self, line: bytes) -> None:
        if self._held:
            if not _RECORD.match(line) and sum(map(len, self._held)) + len(line) < _HELD:
                self._held.append(line)
                return
            self._release()
        if self._known(line):
            self.records += 1
            self.understood += 1
        elif _RECORD.match(line) is not None:
            self._held, self._held_line = [line], self.context.number
        else:
            self.records += 1
            self._missed(line)

    def _release(self) -> None:
        """The record in hand is over: put it together, where it was broken, and say what it is."""
        if not self._held:
            return
        held, self._held = self._held, []
        self.records += 1
        whole = held[0]
        tag = _tag(whole)
        if tag and self._useless.get(tag, 0) >= _USELESS:
            self.ordinary += 1
            self.understood += 1
            return
        now, self.context.number = self.context.number, self._held_line
        if len(held) > 1:
            for glue in (b"", b" "):
                whole = glue.join(part.strip() if glue else part for part in held)
                if self._known(whole):
                    self.understood += 1
                    self.context.number = now
                    return
            whole = b"\n".join(held)
        self.sglang.lenient = True
        if b" batch" in held[0] and self._known(held[0]):
            self.understood += 1
        else:
            self._of_no_dialect(whole, tag)
        self.sglang.lenient = False
        self.context.number = now

    def _of_no_dialect(self, text: bytes, tag: bytes) -> None:
        """A record that no dialect claims: it may say what the engine is, or that something broke."""
        head = text[:_HELD]
        known = len(self.facts.facts)
        for word in _WORTH_FACTS:
            if word in head:
                self.facts.feed(head.decode("utf-8", "replace"))
                break
        told = len(self.facts.facts) > known
        for word, kind in _HAPPENED:
            if word in head:
                self.context.events.add(kind, self.context.number, self.context.stamp(head), head)
                told = True
                break
        if tag and not told and len(self._useless) < _TAGS:
            self._useless[tag] = self._useless.get(tag, 0) + 1
        if head[:1] == b"{" or _RECORD.match(head) is None:
            self._missed(head)
            return
        self.ordinary += 1
        self.understood += 1

    def _missed(self, line: bytes) -> None:
        if _STARTED.match(line[:_HELD]):
            options = settings_of_words(split_line(line[:_HELD]), source=self.source, line=self.context.number)
            if options:
                self.commands += options
                self.understood += 1
                return
        if len(self.examples) < _EXAMPLES:
            said = line[:80].decode("utf-8", "replace").strip()
            self.examples.append(f"{self.context.number}: {said}")

    # -- which dialect

    def _known(self, line: bytes) -> bool:
        """Whether some dialect understands it."""
        if line[:1] == b"{":
            return (
                self.access_json.line(line)
                or (b"print_timing" in line and self.llamacpp.line(line))
                or self._inside(line)
            )
        at = line.find(MARK)
        if at >= 0:
            return self.vllm.load(line, at)
        for words, decode in ((b"Decode batch", True), (b"Prefill batch", False)):
            at = line.find(words)
            if at >= 0:
                return self.sglang.batch(line, at, decode=decode)
        if b" HTTP/" in line and b'"' in line and (self.access_text.line(line) or self.balancers.line(line)):
            return True
        for word, read in self._rare:
            if word in line and read(line):
                return True
        return (is_jit(line) and jit(self.context, line)) or (is_proxy_error(line) and proxy_error(self.context, line))

    def _inside(self, line: bytes) -> bool:
        """A log that its writer or a collector put into JSON: the words stand in a field of it, a stamp in another."""
        words = words_of(line)
        if words is None:
            return False
        self.context.outer, self.context.origin = words.stamp, words.origin
        return self._known(words.text)

    def _retracted(self, line: bytes) -> bool:
        return (b"#retracted_reqs" in line or b"etract request" in line) and self.sglang.retracted(line)

    # -- the end

    def finish(self) -> None:
        """No line follows: what is in hand is a record."""
        self._release()
        if self._partial:
            partial, self._partial = self._partial, b""
            self._one(partial)
            self._release()

    def observed(self) -> Observed:
        """Everything that the lines said."""
        self.finish()
        served = [table for table in (self.llamacpp.table(), self.tgi.table()) if table is not None]
        access = self.context.accesses.table()
        rows: list[Rows] = [*served, *([access] if access is not None else [])]
        return Observed(
            series=[*self.vllm.series(self.source), *self.sglang.series(self.source), *self.trtllm.series(self.source)],
            events=self.context.events.events(),
            settings=[*self._settings()],
            rows=rows,
            understood=[self._account()],
        )

    def _settings(self) -> Iterator[Setting]:
        place = Place(self.source)
        names = {"kv_tokens": "kv_capacity_tokens", "version": "engine_version"}
        for key, fact in self.facts.facts.items():
            yield Setting(name=names.get(key, key), value=fact.value, place=place)
        yield from self.kubernetes.settings
        yield from self.commands
        if self.facts.engine:
            yield Setting(name="engine", value=self.facts.engine, place=place)
        if self.context.offsets and self.context.clock is Clock.LOCAL:
            value = float(np.median(self.context.offsets))
            yield Setting(name="clock_offset_s", value=value, unit="s", scope=self.source, place=place)

    def _account(self) -> Understood:
        context = self.context
        said = [*self.vllm.said(), *self.sglang.said(), *context.events.said()]
        said += [*self.llamacpp.requests.said(), *self.tgi.requests.said()]
        if self.cut:
            said.append(f"{self.cut}; what stands before that is read, what comes behind it is missing")
        if context.accesses.thinned:
            said.append(
                f"{context.accesses.total:,} access lines were thinned; each row that stayed counts for several"
            )
        if context.rejected:
            said.append(f"{context.rejected:,} values were dropped: negative, or shares outside 0..1")
        if context.unknown_keys:
            said.append("keys that mean nothing here: " + ", ".join(list(context.unknown_keys)[:10]))
        if self.access_json.unitless:
            said.append(f"{self.access_json.unitless:,} durations have no unit and were left out")
        wants = []
        if self.access_text.timeless and not self.access_text.timed:
            said.append("the access log has no times (plain `combined` format)")
            wants.append(NO_TIMES)
        return Understood(
            source=self.source,
            format=" + ".join(context.dialects) or "log",
            understood=self.understood,
            total=self.records,
            examples=self.examples,
            said=said,
            wants=wants,
        )


def _whole_line(line: bytes, at: int) -> bool:
    """Whether the words before the load are those of its own record, and not another record glued to it."""
    return at < 130 or not record_starts(line[1:at])


def _tag(line: bytes) -> bytes:
    """Where in the engine's source a line comes from: ` [async_llm.py:578`; empty where it does not say."""
    dot = line.find(b".py:", 0, 160)
    if dot < 0:
        return b""
    return line[max(line.rfind(b" ", 0, dot), 0) : line.find(b"]", dot)][:80]


def _may_be_glued(line: bytes) -> bool:
    """Cheap: whether a second record may begin within the line."""
    return (
        line.find(b" pid=", 40) >= 0
        or line.find(b"INFO", 34) >= 0
        or line.find(b"WARNING", 34) >= 0
        or line.find(b"ERROR", 34) >= 0
        or line.find(b"DEBUG", 34) >= 0
        or line.find(b"[20", 12) >= 0
        or line.find(b" batch", 80) >= 0
    )


def read_log(path: Path, name: str) -> Observed:
    """Read a log of any length; one that is cut or damaged up to there, which is said. InputError when there is not one
    line of a log in it.
    """
    log = Log(name)
    try:
        for batch in read_batches(path):
            log.feed(batch)
    except CutError as error:
        log.finish()
        if not log.understood:
            raise
        log.cut = error.message
    return _whole(log, name)


def read_log_text(text: str | bytes, name: str, *, first: int = 1) -> Observed:
    """The same of text in memory; `first` is the number of its first line in what it was taken from."""
    raw = text.encode("utf-8", "replace") if isinstance(text, str) else text
    log = Log(name)
    for batch in batches([raw]):
        log.feed(Batch(batch.first + first - 1, batch.lines, pieces=batch.pieces))
    return _whole(log, name)


def _whole(log: Log, name: str) -> Observed:
    found = log.observed()
    if not log.understood:
        raise InputError(
            f"none of its {log.records:,} lines is a log line that is known",
            place=name,
            remedy="Give the log of the engine (vLLM, SGLang, TGI, llama.cpp) or the gateway's access log, as text.",
        )
    return found


def sample_of(lines: Iterable[bytes], name: str) -> Log:
    """A log read from a few lines, to see whether it is one."""
    log = Log(name)
    log.feed(Batch(1, list(lines)))
    log.observed()
    return log


_ENOUGH: Final = 0.5
_STRAY: Final = 8
_OF_LOAD: Final = frozenset(
    {"vllm log", "sglang log", "tgi log", "tensorrt-llm log", "gin access log", "envoy access log"}
)
_CUT: Final = 60_000


def is_log(head: str, name: str) -> bool:
    """Whether most of the first lines are log lines that are known, with at least one that some dialect claims; or a
    file that is called a log and whose lines begin like records.
    """
    raw = head.replace("\0", "").encode("utf-8", "replace")
    if head.startswith("\x1f\ufffd") or not raw.strip():
        # Packed by gzip; or it begins with a hole, as a log does that was cut while it was written.
        return head.startswith("\x1f\ufffd") or (len(head) > _CUT and name.endswith((".log", ".out", ".err")))
    lines = raw.split(b"\n")
    # Where more follows, the last line of the beginning is cut.
    log = sample_of(lines[:-1] if len(lines) > 1 and len(head) > _CUT else lines, name)
    if not log.records:
        return False
    share = log.understood / log.records
    if log.context.dialects:
        # A line or two of an engine's log among words: people paste that. A table with a title is the table's reader's.
        few = log.understood >= 1 and log.records - log.understood <= _STRAY and not is_titled(head)
        return share >= _ENOUGH or (few and bool(_OF_LOAD & set(log.context.dialects)))
    return log.ordinary >= 3 and share >= 0.9 and name.endswith((".log", ".out", ".err", ".txt"))


LOG: Final = Format(name="log", matches=is_log, read=read_log)
"""A log of an engine, a proxy, a gateway, or of several of them in one."""
