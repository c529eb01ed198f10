"""The target: from what the user typed to an endpoint that is known to answer as it should.

The look before the run sends one or two tiny requests. It turns the mistakes that would make every later request
fail (nobody there, a web page, a wrong path, an unknown model, a missing key, no streaming) into one sentence with
its remedy, learns which optional fields the server takes, and calibrates the length of prompts by what the server
counts.
"""

from __future__ import annotations

import ssl
from typing import Any, Final, NamedTuple
from urllib.parse import SplitResult, urlsplit

import msgspec

from tailrace.measure.dialect import UNREADABLE, Meaning
from tailrace.measure.dialects import dialect_for
from tailrace.measure.sse import SseFramer
from tailrace.model.errors import InputError, TargetError
from tailrace.model.thresholds import S
from tailrace.model.timeline import EventKind
from tailrace.probe.connection import MAX_HEAD
from tailrace.probe.pool import Address, Answer, ConnectError, ConnectionPool, ask, resolve
from tailrace.probe.request import Api, Envelope, Options, api_of, body
from tailrace.probe.spec import BenchSpec
from tailrace.workload.text import Calibration, PromptWriter

_DEFAULT_PORTS = {"http": 80, "https": 443}
_LOOK_TOKENS = (48, 384)
"""Prompts of the look: two lengths tell characters per token and the template's overhead apart."""
_BUSY = (408, 429, 500, 502, 503, 504, 529)
"""The server is there but would not or could not serve this one; the run will measure how often."""


class Url(NamedTuple):
    """A target URL taken apart. `paths` are the endpoint paths it may stand for, likeliest first."""

    tls: bool
    host: str
    port: int
    host_header: str
    paths: tuple[str, ...]

    @property
    def origin(self) -> str:
        """Scheme, host and port."""
        return f"{'https' if self.tls else 'http'}://{self.host_header}"


def parse_url(text: str) -> Url:
    """Read a base URL, with or without `/v1`, or the whole URL of an endpoint. A missing scheme is `http://`."""
    remedy = "Give the server's base URL, for example http://localhost:8000"
    whole = text if "://" in text else f"http://{text}"
    try:
        parts: SplitResult = urlsplit(whole)
        port = parts.port
    except ValueError as error:
        raise InputError(f"{text!r} is no URL ({error})", place="URL", remedy=remedy) from None
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname or parts.username is not None:
        raise InputError(f"{text!r} is no http:// or https:// URL of a server", place="URL", remedy=remedy)
    if any(c <= " " or c > "~" for c in parts.path + parts.query):
        raise InputError(f"the path of {text!r} has characters that must be percent-encoded", place="URL")
    default = _DEFAULT_PORTS[parts.scheme]
    path, query = parts.path.rstrip("/"), f"?{parts.query}" if parts.query else ""
    if api_of(path):
        paths: tuple[str, ...] = (path + query,)
    elif path.rpartition("/")[2] in ("v1", "v2", "v3", "openai"):
        paths = (path + Api.CHAT + query,)
    else:
        paths = (path + "/v1" + Api.CHAT + query, path + Api.CHAT + query)
    host = parts.hostname
    shown = f"[{host}]" if ":" in host else host
    header = shown if port in (None, default) else f"{shown}:{port}"
    return Url(parts.scheme == "https", host, port or default, header, paths)


class Target(msgspec.Struct, kw_only=True):
    """An endpoint that answered, and how to ask it."""

    url: str
    path: str
    api: Api
    address: Address
    envelope: Envelope
    options: Options
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


async def find_target(spec: BenchSpec) -> Target:
    """Look at the target of `spec`. Raises `TargetError` (or `InputError` for a bad URL) with the remedy."""
    url = parse_url(spec.url)
    pool = ConnectionPool(
        await resolve(url.host, url.port, tls_for(spec) if url.tls else None),
        connect_timeout_s=spec.limits.connect_ns / S,
    )
    try:
        return await _Look(spec, url, pool).run()
    except ConnectError as error:
        raise TargetError(
            f"no answer from {url.origin} ({error})",
            remedy="Is the server running, and are host and port right?",
        ) from None
    finally:
        pool.close()


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
        self.writer = PromptWriter(seed=spec.seed, nonce=f"look-{spec.nonce}")
        self.notes: list[str] = []
        self.models: list[str] = []
        self.max_model_len: int | None = None

    def envelope(self, path: str) -> Envelope:
        return Envelope(self.url.host_header, path, api_key=self.spec.api_key, headers=self.spec.headers)

    async def run(self) -> Target:
        model = self.spec.model
        if model is None:
            model = await self.first_model()
        options = Options(
            model=model, stream=self.spec.stream, ignore_eos=self.spec.ignore_eos, extra_body=self.spec.extra_body
        )
        answer, path = await self.find_path(options)
        api = api_of(path)
        assert api is not None
        envelope = self.envelope(path)
        answer, options = await self.settle(answer, envelope, api, options)
        simulated = "tailrace-simulated" in answer.headers.get("server", "")
        target = Target(
            url=f"{self.url.origin}{path}",
            path=path,
            api=api,
            address=self.pool.address,
            envelope=envelope,
            options=msgspec.structs.replace(options, state_prompt_tokens=simulated),
            server=answer.headers.get("server", ""),
            headers=answer.headers,
            calibration=Calibration().estimate(),
            models=self.models,
            max_model_len=self.max_model_len,
            notes=self.notes,
        )
        if self.spec.chars_per_token is not None:
            target.calibration = (self.spec.chars_per_token, 0.0)
        elif answer.status == 200:
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
            api = api_of(path)
            assert api is not None
            base = path.partition("?")[0].rstrip("/").removesuffix(api)
            listing = f"{base}/models"
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

    def payload(self, envelope: Envelope, api: Api, options: Options, tokens: int) -> tuple[bytes, int]:
        """A look request and the characters of its prompt."""
        text = self.writer.write(tokens, tokens)
        content = body(api, options, text, prompt_tokens=tokens, output_tokens=1)
        return envelope.post(content, f"tailrace-look-{tokens}"), len(text)

    async def find_path(self, options: Options) -> tuple[Answer, str]:
        """The first of the candidate paths that exists, with its answer."""
        missing: list[str] = []
        for path in self.url.paths:
            api = api_of(path)
            assert api is not None
            payload, _ = self.payload(self.envelope(path), api, options, _LOOK_TOKENS[0])
            answer = await ask(self.pool, payload, timeout_s=self.timeout_s)
            if answer.status in (404, 405) and not _is_about_model(answer, options.model):
                missing.append(path)
                continue
            return answer, path
        raise TargetError(
            f"{self.url.origin} has no {' and no '.join(missing)}",
            remedy="Give the base URL of an OpenAI-compatible server, or the whole URL of the endpoint",
        )

    # -- the answer

    async def settle(self, answer: Answer, envelope: Envelope, api: Api, options: Options) -> tuple[Answer, Options]:
        """Drop optional fields that the server refuses, then judge what it answers."""
        for change in ({"ignore_eos": False}, {"include_usage": False}):
            if answer.status not in (400, 422):
                break
            (name,) = change
            if not getattr(options, name):
                continue
            options = msgspec.structs.replace(options, **change)
            payload, _ = self.payload(envelope, api, options, _LOOK_TOKENS[0])
            answer = await ask(self.pool, payload, timeout_s=self.timeout_s)
            if answer.status not in (400, 422):
                self.notes.append(f"the server refuses {name}; sent without it")
        await self.judge(answer, api, options)
        return answer, options

    async def judge(self, answer: Answer, api: Api, options: Options) -> None:
        status = answer.status
        if status == 200:
            if _is_page(answer):
                raise self.web_page(answer)
            if answer.cut:
                self.notes.append(f"the answer to the look before the run was cut ({answer.cut})")
            else:
                self.judge_content(answer, api)
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

    def judge_content(self, answer: Answer, api: Api) -> None:
        kind = answer.headers.get("content-type", "no content type").partition(";")[0]
        if not self.spec.stream:
            if dialect_for(api).read_body(answer.body).kind is EventKind.OTHER:
                raise TargetError(f"{self.url.origin} does not answer as {api} does ({kind})", remedy=_NOT_OPENAI)
            return
        if kind != "text/event-stream" and answer.body.lstrip()[:1] in (b"{", b"["):
            if dialect_for(api).read_body(answer.body).fault is None and b'"choices"' in answer.body:
                raise TargetError(
                    f"{self.url.origin} does not stream: it answers stream=true with {kind}",
                    remedy="Measure whole answers with --no-stream",
                )
            raise TargetError(f"{self.url.origin} answers stream=true with {kind}", remedy=_NOT_OPENAI)
        meanings = read_events(api, answer.body)
        if not any(one.kind not in (EventKind.OTHER, EventKind.COMMENT) for one in meanings):
            raise TargetError(f"{self.url.origin} answers with {kind} that has no event of {api}", remedy=_NOT_OPENAI)

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
        answer = first
        for tokens in _LOOK_TOKENS:
            payload, chars = self.payload(target.envelope, target.api, target.options, tokens)
            if tokens != _LOOK_TOKENS[0]:
                answer = await ask(self.pool, payload, timeout_s=self.timeout_s)
            counted = _prompt_tokens(target.api, answer, stream=self.spec.stream)
            if answer.status != 200 or counted is None:
                break
            calibration.observe(chars, counted)
        if calibration.n and not target.options.state_prompt_tokens:
            target.calibration = calibration.estimate()
            target.calibrated = True


_NOT_OPENAI = "Give the URL of an OpenAI-compatible server"


def read_events(api: Api, content: bytes) -> list[Meaning]:
    """The meanings of all events in a whole streamed body."""
    dialect = dialect_for(api)
    events = SseFramer().feed(content)
    return [dialect.read(one.event, one.data) for one in events if one.data is not None]


def _prompt_tokens(api: Api, answer: Answer, *, stream: bool) -> int | None:
    meanings = read_events(api, answer.body) if stream else [dialect_for(api).read_body(answer.body)]
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
    fault = dialect_for("/chat/completions").read_body(answer.body).fault
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
