"""The target: from what the user typed to an endpoint that is known to answer as it should.

The look before the run sends one or two tiny requests. It turns the mistakes that would make every later request
fail (nobody there, a web page, a wrong path, an unknown model, a missing key, no streaming) into one sentence with
its remedy, learns which optional fields the server takes, and calibrates the length of prompts by what the server
counts.
"""

from __future__ import annotations

import ssl
from typing import Any, Final

import msgspec

from tailrace.engines.registry import adapter
from tailrace.measure.dialect import UNREADABLE, Dialect, Meaning
from tailrace.measure.dialects import ANY, CHAT
from tailrace.measure.sse import SseFramer
from tailrace.model.errors import TargetError
from tailrace.model.thresholds import S
from tailrace.model.timeline import EventKind
from tailrace.probe.compose import composer
from tailrace.probe.connection import MAX_HEAD
from tailrace.probe.pool import Address, Answer, ConnectError, ConnectionPool, ask, resolve
from tailrace.probe.reading import DIALECTS, dialect_named, name_of
from tailrace.probe.request import GENERATING, Api, Ask, Envelope, Options, api_of
from tailrace.probe.spec import BenchSpec
from tailrace.probe.tokenizer import load_tokenizer
from tailrace.probe.upload import CONTENT_TYPE
from tailrace.probe.url import Url, parse_url
from tailrace.workload.call import Call
from tailrace.workload.exact_text import ExactWriter
from tailrace.workload.template import Template
from tailrace.workload.text import Calibration, FixedPrompt, Prompts, PromptWriter

_LOOK_TOKENS = (48, 384)
"""Prompts of the look: two lengths tell characters per token and the template's overhead apart."""
_LOOK_AUDIO_MS = 1000
_SAME_OVERHEAD = 1
"""Tokens: a word at the seam of template and text may be cut in another way."""
_BUSY = (408, 429, 500, 502, 503, 504, 529)
"""The server is there but would not or could not serve this one; the run will measure how often."""


class Target(msgspec.Struct, kw_only=True):
    """An endpoint that answered, and how to ask it."""

    url: str
    path: str
    api: Api | None
    """`None`: whatever its template makes of it."""
    address: Address
    envelope: Envelope
    options: Options
    reads: str = "chat"
    """The dialect in which its answers are read, by name. A target is plain data: it goes to other processes."""
    server: str = ""
    """Its `Server` header."""
    headers: dict[str, str] = {}
    """All headers of the first answer."""
    calibration: tuple[float, float]
    """Characters per token, tokens of overhead a prompt."""
    calibrated: bool = False
    metric_names: list[str] = []
    """Of its `/metrics`, where it has one; they tell which engine it is."""
    models: list[str] = []
    max_model_len: int | None = None
    notes: list[str] = []
    others: dict[str, Target] = {}
    """Targets of the classes that are asked in another way than the rest, by class."""

    @property
    def dialect(self) -> Dialect:
        """In which its answers are read."""
        return DIALECTS[self.reads]

    @property
    def stream(self) -> bool:
        """Whether its answers are asked for as streams."""
        return self.options.stream


async def find_target(spec: BenchSpec) -> Target:
    """Look at the target of `spec`. Raises `TargetError` (or `InputError` for a bad URL) with the remedy."""
    url = parse_url(spec.url, spec.endpoint, verbatim=bool(spec.template))
    pool = ConnectionPool(
        await resolve(url.host, url.port, tls_for(spec) if url.tls else None),
        connect_timeout_s=spec.limits.connect_ns / S,
    )
    try:
        calls = {one.name: one.traits.call for one in spec.workload.mix}
        target: Target | None = None
        if not calls or any(call.plain for call in calls.values()):
            target = await _Look(spec, url, pool).run()
        others: dict[str, Target] = {}
        for name, call in calls.items():
            if not call.plain:
                mine = spec_of_call(spec, call)
                others[name] = await _Look(mine, parse_url(mine.url, mine.endpoint), pool).run()
                others[name].notes[:] = [f"class {name}: {note}" for note in others[name].notes]
        if target is None:
            target = next(iter(others.values()))
        target.others = others
        target.notes += [note for one in others.values() if one is not target for note in one.notes]
    except ConnectError as error:
        raise TargetError(
            f"no answer from {url.origin} ({error})",
            remedy="Is the server running, and are host and port right?",
        ) from None
    else:
        return target
    finally:
        pool.close()


def spec_of_call(spec: BenchSpec, call: Call) -> BenchSpec:
    """The spec under which a class with a call of its own is looked at."""
    return msgspec.structs.replace(
        spec,
        endpoint=call.endpoint or spec.endpoint,
        template="" if call.endpoint else spec.template,
        model=call.model or spec.model,
        stream=spec.stream if call.stream is None else call.stream,
        ignore_eos=spec.ignore_eos if call.natural is None else not call.natural,
        extra_body=spec.extra_body | call.extra_body,
    )


def tls_for(spec: BenchSpec) -> ssl.SSLContext:
    """The TLS settings of connections to the target."""
    context = ssl.create_default_context()
    if not spec.verify_tls:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


_GATEWAY_HEADER: Final = "x-tailrace-lane"
"""A gateway has answered: its data port has no `/metrics`, and to ask would count as a failure on its dashboards."""


class _Look:
    def __init__(self, spec: BenchSpec, url: Url, pool: ConnectionPool) -> None:
        self.spec = spec
        self.url = url
        self.pool = pool
        self.timeout_s = spec.limits.total_ns / S
        self.api = None if spec.template else api_of(url.paths[0])
        # Vectors come in one piece, whatever else of the run streams.
        self.stream = spec.stream and self.api is not Api.EMBEDDINGS
        self.dialect: Dialect = CHAT
        self.writer: Prompts = PromptWriter(seed=spec.seed, nonce=f"look-{spec.nonce}")
        if spec.prompt is not None:
            self.writer = FixedPrompt(spec.prompt)
        elif spec.tokenizer:
            self.writer = ExactWriter(load_tokenizer(spec.tokenizer).count, seed=spec.seed, nonce=f"look-{spec.nonce}")
        self.notes: list[str] = []
        self.models: list[str] = []
        self.max_model_len: int | None = None

    def envelope(self, path: str) -> Envelope:
        kind = CONTENT_TYPE if self.api is Api.TRANSCRIPTIONS else "application/json"
        return Envelope(
            self.url.host_header, path, api_key=self.spec.api_key, headers=self.spec.headers, content_type=kind
        )

    async def run(self) -> Target:
        model = self.spec.model
        if model is None:
            named = not self.spec.template or "model" in Template(self.spec.template).names
            model = await self.first_model() if named else ""
        options = Options(
            model=model,
            stream=self.stream,
            ignore_eos=self.spec.ignore_eos and self.api in GENERATING,
            extra_body=self.spec.extra_body,
        )
        answer, path = await self.find_path(options)
        envelope = self.envelope(path)
        answer, options = await self.settle(answer, envelope, options)
        simulated = "tailrace-simulated" in answer.headers.get("server", "")
        options = msgspec.structs.replace(options, state_prompt_tokens=simulated and self.spec.plain_prompts)
        target = Target(
            url=f"{self.url.origin}{path}",
            path=path,
            api=self.api,
            address=self.pool.address,
            envelope=envelope,
            options=options,
            reads=name_of(self.dialect),
            server=answer.headers.get("server", ""),
            headers=answer.headers,
            calibration=Calibration().estimate(),
            models=self.models,
            max_model_len=self.max_model_len,
            notes=self.notes,
        )
        if self.spec.chars_per_token is not None:
            target.calibration = (self.spec.chars_per_token, 0.0)
        elif answer.status == 200 and self.api is not Api.TRANSCRIPTIONS:
            await self.calibrate(target, answer)
        if _GATEWAY_HEADER not in answer.headers:
            target.metric_names = await self.metric_names(envelope)
        return target

    async def metric_names(self, envelope: Envelope) -> list[str]:
        try:
            answer = await ask(self.pool, envelope.get("/metrics"), timeout_s=2.0, limit=16 << 20)
        except ConnectError:
            return []
        if answer.status != 200 or answer.cut or _is_page(answer):
            return []
        lines = answer.body.decode("utf-8", "replace").splitlines()
        names = {line.partition("{")[0].partition(" ")[0] for line in lines if line and not line.startswith("#")}
        return sorted(names)[:5000]

    # -- the model

    async def first_model(self) -> str:
        """The first model that the server lists."""
        tried: list[str] = []
        for path in self.url.paths:
            base = path.partition("?")[0].rstrip("/")
            listing = f"{base.removesuffix(self.api)}/models" if self.api else "/v1/models"
            answer = await ask(self.pool, self.envelope(path).get(listing), timeout_s=min(self.timeout_s, 30.0))
            if answer.status in (401, 403):
                raise self.unauthorized(answer)
            if _is_page(answer):
                raise self.web_page(answer)
            if answer.status == 200 and self.read_models(answer.body):
                if len(self.models) > 1:
                    self.notes.append(f"model {self.models[0]}, the first of {len(self.models)} that the server lists")
                return self.models[0]
            tried.append(f"{listing}: {answer.status}")
        raise TargetError(
            f"{self.url.origin} does not say which models it has ({', '.join(tried)})",
            remedy="Name one with --model, or check the path of the URL",
        )

    def read_models(self, content: bytes) -> bool:
        try:
            listing = msgspec.json.decode(content)
        except UNREADABLE:
            return False
        data = listing.get("data") if isinstance(listing, dict) else None
        if not isinstance(data, list):
            return False
        entries = [one for one in data if isinstance(one, dict) and isinstance(one.get("id"), str)]
        self.models = [one["id"] for one in entries]
        if entries and isinstance(entries[0].get("max_model_len"), int):
            self.max_model_len = entries[0]["max_model_len"]
        return bool(self.models)

    # -- the path

    def payload(self, envelope: Envelope, options: Options, tokens: int) -> tuple[bytes, int]:
        """A look request and the characters of its prompt."""
        text = self.writer.write(tokens, tokens)
        request_id = f"tailrace-look-{tokens}"
        content = composer(self.spec, self.api, options)(Ask(text, tokens, 1, request_id, audio_ms=_LOOK_AUDIO_MS))
        return envelope.post(content, request_id), len(text)

    async def find_path(self, options: Options) -> tuple[Answer, str]:
        """The first of the candidate paths that exists, with its answer."""
        missing: list[str] = []
        for path in self.url.paths:
            self.dialect = self.dialect_of(path)
            payload, _ = self.payload(self.envelope(path), options, _LOOK_TOKENS[0])
            answer = await ask(self.pool, payload, timeout_s=self.timeout_s)
            if answer.status in (404, 405) and not _is_about_model(answer, options.model):
                missing.append(path)
                continue
            return answer, path
        raise TargetError(
            f"{self.url.origin} has no {' and no '.join(missing)}",
            remedy="Give the base URL of an OpenAI-compatible server, or the whole URL of the endpoint",
        )

    def dialect_of(self, path: str) -> Dialect:
        """How answers of `path` are read: as the user says, else as the path says."""
        if self.spec.dialect:
            return dialect_named(self.spec.dialect)
        found = adapter("openai_compatible").dialect(path)
        # A path that names nothing known falls back to chat; of a template's answers that would be a guess.
        return ANY if self.spec.template and found is CHAT and api_of(path) is not Api.CHAT else found

    # -- the answer

    async def settle(self, answer: Answer, envelope: Envelope, options: Options) -> tuple[Answer, Options]:
        """Drop optional fields that the server refuses, then judge what it answers."""
        changes: list[tuple[str, dict[str, bool]]] = []
        if options.ignore_eos:
            fixed = self.api in (Api.CHAT, Api.COMPLETIONS)
            if fixed:
                changes.append(("ignore_eos; min_tokens in its place", {"ignore_eos": False, "min_tokens": True}))
            changes.append(("ignore_eos" + fixed * " and min_tokens", {"ignore_eos": False, "min_tokens": False}))
        changes.append(("include_usage", {"include_usage": False}))
        for what, change in changes:
            if answer.status not in (400, 422) or self.spec.template:
                break
            options = msgspec.structs.replace(options, **change)
            payload, _ = self.payload(envelope, options, _LOOK_TOKENS[0])
            answer = await ask(self.pool, payload, timeout_s=self.timeout_s)
            if answer.status not in (400, 422):
                self.notes.append(f"the server refuses {what}" + "; sent without it" * (";" not in what))
        await self.judge(answer, options)
        return answer, options

    async def judge(self, answer: Answer, options: Options) -> None:
        status = answer.status
        if status == 200:
            if _is_page(answer):
                raise self.web_page(answer)
            if answer.cut:
                self.notes.append(f"the answer to the look before the run was cut ({answer.cut})")
            else:
                self.judge_content(answer)
        elif status in (401, 403):
            raise self.unauthorized(answer)
        elif 300 <= status < 400:
            raise TargetError(
                f"{self.url.origin} redirects to {answer.headers.get('location', 'elsewhere')!r} ({status})",
                remedy="Give that URL",
            )
        elif status in _BUSY:
            self.notes.append(f"the look before the run was answered with {status} ({_said(answer) or 'no text'})")
        elif _is_about_model(answer, options.model):
            if not self.models:
                try:
                    await self.first_model()
                except TargetError:
                    self.models = []
            known = f"It has {', '.join(self.models[:8])}" if self.models else "`GET /v1/models` lists those it has"
            raise TargetError(f"the server does not know the model {options.model!r} ({_said(answer)})", remedy=known)
        else:
            raise TargetError(
                f"{self.url.origin} answers a minimal request with {status}: {_said(answer) or 'no text'}",
                remedy="Change the request with --extra-body or --header as that text says",
            )

    def judge_content(self, answer: Answer) -> None:
        kind = answer.headers.get("content-type", "no content type").partition(";")[0]
        dialect, shape = self.dialect, self.api or f"the dialect {self.dialect.name}"
        remedy = _NOT_OPENAI if self.api else "Name the shape of its answers with --dialect; `any` takes every shape"
        if not self.stream:
            if dialect.read_body(answer.body).kind is EventKind.OTHER:
                raise TargetError(f"{self.url.origin} does not answer as {shape} does ({kind})", remedy=remedy)
            return
        if kind != "text/event-stream" and answer.body.lstrip()[:1] in (b"{", b"["):
            whole = dialect.read_body(answer.body)
            if whole.fault is None and whole.kind is not EventKind.OTHER:
                raise TargetError(
                    f"{self.url.origin} does not stream: it answers stream=true with {kind}",
                    remedy="Measure whole answers with --no-stream",
                )
            raise TargetError(f"{self.url.origin} answers stream=true with {kind}", remedy=remedy)
        if (coding := answer.headers.get("content-encoding", "identity")) != "identity":
            raise TargetError(
                f"{self.url.origin} compresses its streams ({coding}), though nobody asked for it",
                remedy="Switch compression off for event streams, in the server or in the proxy before it",
            )
        meanings = read_events(dialect, answer.body)
        if not any(one.kind not in (EventKind.OTHER, EventKind.COMMENT) for one in meanings):
            raise TargetError(f"{self.url.origin} answers with {kind} that has no event of {shape}", remedy=remedy)

    def web_page(self, answer: Answer) -> TargetError:
        return TargetError(
            f"{self.url.origin} answers with a web page, not with an API (status {answer.status})",
            remedy="Check port and path: give the base URL of an OpenAI-compatible server",
        )

    def unauthorized(self, answer: Answer) -> TargetError:
        return TargetError(
            f"{self.url.origin} refuses the key ({answer.status}: {_said(answer) or 'no text'})",
            remedy="Give one with --api-key, or in the environment as OPENAI_API_KEY",
        )

    # -- the calibration

    async def calibrate(self, target: Target, first: Answer) -> None:
        """Two answers' counts of prompt tokens give characters per token and the template's overhead."""
        calibration = Calibration()
        overheads: list[int] = []
        answer = first
        for tokens in _LOOK_TOKENS:
            payload, chars = self.payload(target.envelope, target.options, tokens)
            if tokens != _LOOK_TOKENS[0]:
                answer = await ask(self.pool, payload, timeout_s=self.timeout_s)
            counted = _prompt_tokens(self.dialect, answer, stream=self.stream)
            if answer.status != 200 or counted is None:
                break
            calibration.observe(chars, counted)
            overheads.append(counted - tokens)
        if self.spec.tokenizer and self.spec.prompt is None:
            self.note_overhead(target, overheads)
        elif calibration.n and not target.options.state_prompt_tokens:
            target.calibration = calibration.estimate()
            target.calibrated = True

    def note_overhead(self, target: Target, overheads: list[int]) -> None:
        """What the server adds to a text that is exact in tokens: the same for every length, if they are its tokens."""
        target.options = msgspec.structs.replace(target.options, state_prompt_tokens=False)
        if not overheads:
            self.notes.append("the server does not count prompt tokens: what its template adds to them is unknown")
            return
        target.calibrated = True
        target.calibration = (target.calibration[0], float(min(overheads)))
        if max(overheads) - min(overheads) > _SAME_OVERHEAD:
            off = (overheads[-1] - overheads[0]) / (_LOOK_TOKENS[1] - _LOOK_TOKENS[0])
            self.notes.append(
                f"the server counts {off:+.1%} tokens beside the tokenizer: is it the one of {target.options.model}?"
            )


_NOT_OPENAI = "Give the URL of an OpenAI-compatible server"


def read_events(dialect: Dialect, content: bytes) -> list[Meaning]:
    """The meanings of all events in a whole streamed body."""
    events = SseFramer().feed(content)
    return [dialect.read(one.event, one.data) for one in events if one.data is not None]


def _prompt_tokens(dialect: Dialect, answer: Answer, *, stream: bool) -> int | None:
    meanings = read_events(dialect, answer.body) if stream else [dialect.read_body(answer.body)]
    counts = [one.usage.prompt for one in meanings if one.usage is not None and one.usage.prompt]
    return counts[-1] if counts else None


def _is_page(answer: Answer) -> bool:
    kind = answer.headers.get("content-type", "")
    start = answer.body[:200].lstrip().lower()
    return "html" in kind or start.startswith((b"<!doctype html", b"<html"))


def _json(answer: Answer) -> Any:
    try:
        return msgspec.json.decode(answer.body[: MAX_HEAD * 4])
    except UNREADABLE:
        return None


def _said(answer: Answer) -> str:
    """What the server said, in one line of at most 200 characters."""
    fault = CHAT.read_body(answer.body).fault
    if fault is not None:
        text = fault.message
    elif _is_page(answer):
        text = "a web page"
    else:
        text = answer.body[:400].decode("utf-8", "replace")
    return " ".join(text.split())[:200]


def _is_about_model(answer: Answer, model: str) -> bool:
    """Whether an error says that the model is unknown (vLLM and OpenAI answer so with 404)."""
    if answer.status not in (400, 404, 422) or not isinstance(_json(answer), dict):
        return False
    said = answer.body[:4000].decode("utf-8", "replace").lower()
    named = bool(model) and model.lower() in said
    return "model_not_found" in said or ("model" in said and (named or "does not exist" in said or "not found" in said))
