"""The configuration: one YAML file, every key with a default that is right for one vLLM on one GPU.

Durations are human (`5s`, `150ms`); an unknown key, a wrong type or an impossible value is a `ConfigError` that
names the path and the remedy. `json_schema()` is what editors validate against.
"""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from tailrace.gateway.address import HTTP_UNIX, unix_path
from tailrace.gateway.alert_keys import AlertsConfig, DiagnosisConfig, check_alerts, check_diagnosis
from tailrace.gateway.balance_keys import (
    BalanceConfig,
    BreakerConfig,
    HedgeConfig,
    OutliersConfig,
    RetryConfig,
    check_balance,
    check_share,
)
from tailrace.gateway.cache_keys import CacheConfig, CacheRouteConfig, EmbeddingConfig, check_cache
from tailrace.gateway.canary_keys import CanaryConfig, ShadowConfig, check_routes
from tailrace.gateway.config_sections import (
    BackendConfig,
    BudgetsConfig,
    EngineTlsConfig,
    InferenceConfig,
    LaneConfig,
    LimitsConfig,
    RecordsConfig,
    ScrapeConfig,
    SignalsConfig,
    SlowConfig,
    TlsConfig,
    TracesConfig,
    WebsocketConfig,
)
from tailrace.gateway.config_values import Duration, Section, human, lasting, parse_duration
from tailrace.gateway.degradation_keys import DegradationConfig, SignalConfig, check_degradation
from tailrace.gateway.foresight_keys import PredictionsConfig, check_predictions
from tailrace.gateway.grpc_keys import check_grpc
from tailrace.gateway.guard_keys import GapConfig, PaceConfig, check_guard, stream_guard
from tailrace.gateway.lane_keys import (
    AdaptiveConfig,
    EngineRoomConfig,
    KeyConfig,
    SharingConfig,
    TenantConfig,
    check_engine_room,
    check_keys,
    check_match,
    check_sharing,
    sharing_of,
)
from tailrace.gateway.lane_limits import check_lane_limits, lane_limits, lane_objectives
from tailrace.gateway.plain_yaml import read_yaml
from tailrace.gateway.token_keys import TokenLimitsConfig, TokensConfig, check_limits, check_tokens
from tailrace.gateway.traces_keys import check_traces
from tailrace.govern.lane import DEFAULT_LANE, LaneMatch, LanePolicy
from tailrace.govern.objectives import FORM, objective_name, objective_text
from tailrace.govern.sharing import Sharing
from tailrace.model.errors import ConfigError
from tailrace.model.thresholds import MS, UNITS, Objectives, S

_MODE: Final = re.compile(r"0?[0-7]{3}")
MAX_WORKERS: Final = 128
_PRIORITIES: Final = {"high": -10, "normal": 0, "low": 10}


class Config(Section):
    """Everything that `tailrace serve` reads."""

    listen: str = "127.0.0.1:8080"
    """The data port: `HOST:PORT`, `[::]:PORT` for IPv6, or a Unix socket `unix:/run/tailrace.sock`."""
    listen_mode: str = "660"
    """Permissions of the Unix socket, in octal: who may connect."""
    tls: TlsConfig | None = None
    admin: str = "127.0.0.1:9480"
    grpc_listen: str | None = None
    """Where clients reach Triton's gRPC through the gateway, for example `0.0.0.0:8081`; absent: no gRPC at all."""
    workers: int = 1
    """Processes that serve the data port; 1 is a single process without a supervisor. Limits hold over all of them."""
    backends: list[BackendConfig] = msgspec.field(default_factory=list)
    lanes: list[LaneConfig] = msgspec.field(default_factory=list)
    """Requests that no lane matches go to one named `default`: yours, or a built-in one (running 256, queued 1024)."""
    total_running: int | None = None
    """Requests that the engine may have at once over all lanes; unset: the sum of the lanes' own."""
    sharing: SharingConfig = msgspec.field(default_factory=SharingConfig)
    engine_room: EngineRoomConfig | None = None
    """Let nobody start while the engine's own metrics say that it is full; absent: they are not asked."""
    keys: dict[str, KeyConfig] = msgspec.field(default_factory=dict)
    """API keys of clients, by name. With any, `x-lane` is honoured only for keys that may ask for that lane."""
    require_key: bool = False
    """Refuse whoever presents none of the `keys` with 401."""
    tenant_header: str | None = None
    """The header that names the tenant of a request whose key does not; only where a proxy of yours sets it."""
    tenants: dict[str, TenantConfig] = msgspec.field(default_factory=dict)
    """Tenants with another weight than 1."""
    balance: BalanceConfig = msgspec.field(default_factory=BalanceConfig)
    retry: RetryConfig = msgspec.field(default_factory=RetryConfig)
    breaker: BreakerConfig = msgspec.field(default_factory=BreakerConfig)
    outliers: OutliersConfig = msgspec.field(default_factory=OutliersConfig)
    hedge: HedgeConfig = msgspec.field(default_factory=HedgeConfig)
    budgets: BudgetsConfig = msgspec.field(default_factory=BudgetsConfig)
    objectives: dict[str, Duration] = msgspec.field(
        default_factory=lambda: {"ttft_p99": Duration(500 * MS), "tpot_p99": Duration(80 * MS)}
    )
    tokens: TokensConfig = msgspec.field(default_factory=TokensConfig)
    """How prompts are counted, and the limits of paths."""
    slow: SlowConfig = msgspec.field(default_factory=SlowConfig)
    limits: LimitsConfig = msgspec.field(default_factory=LimitsConfig)
    scrape: ScrapeConfig = msgspec.field(default_factory=ScrapeConfig)
    signals: SignalsConfig = msgspec.field(default_factory=SignalsConfig)
    inference: InferenceConfig = msgspec.field(default_factory=InferenceConfig)
    records: RecordsConfig = msgspec.field(default_factory=RecordsConfig)
    websocket: WebsocketConfig = msgspec.field(default_factory=WebsocketConfig)
    canary: CanaryConfig | None = None
    shadow: ShadowConfig | None = None
    traces: TracesConfig = msgspec.field(default_factory=TracesConfig)
    degradation: DegradationConfig = msgspec.field(default_factory=DegradationConfig)
    """What is given up under load, and in which order; off unless `enabled`."""
    alerts: AlertsConfig = msgspec.field(default_factory=AlertsConfig)
    diagnosis: DiagnosisConfig = msgspec.field(default_factory=DiagnosisConfig)
    cache: CacheConfig = msgspec.field(default_factory=CacheConfig)
    predictions: PredictionsConfig = msgspec.field(default_factory=PredictionsConfig)
    passthrough: list[str] = msgspec.field(default_factory=list)
    """Further paths to relay, timed but unread; a trailing `*` matches the rest."""
    aliases: dict[str, str] = msgspec.field(default_factory=dict)
    """Model names of clients -> the engine's own. The request's `model` is replaced; the record keeps both."""
    trust_request_id: bool = False
    """Take a caller's `x-request-id` for the id of the record, because the caller is ours."""
    header_hold: Duration = lasting(250 * MS)
    """How long the status line waits for the first event, so that a first error frame becomes its real status."""
    connect_timeout: Duration = lasting(2 * S)
    upstream_keepalive: Duration = lasting(4 * S)
    """Shorter than uvicorn's 5 s and llama.cpp's 5 s: a pooled connection is dropped before the engine drops it."""
    drain: Duration = lasting(1000 * MS)
    """How long a stop waits for streams before it ends them with an error event."""
    admin_token: str | None = None
    """Bearer token of the admin port; needed where it is not on loopback."""

    @classmethod
    def for_upstream(cls, url: str, *, engine: str = "auto") -> Config:
        """The defaults, for one engine at `url`."""
        config = cls(backends=[BackendConfig(url=url, engine=engine)])
        check(config)
        return config

    def lane_policies(self) -> list[LanePolicy]:
        """Lanes as the governor reads them; a last lane `default` takes what no match accepted."""
        out = [
            LanePolicy(
                name=lane.name,
                match=lane.match,
                running=lane.running,
                queued=lane.queued,
                order=lane.order,
                priority=_PRIORITIES[lane.priority] if isinstance(lane.priority, str) else lane.priority,
                budgets=(lane.budgets or self.budgets).resolve(),
                guard=stream_guard(lane.gap, lane.pace),
                objectives=objectives,
                **lane_limits(lane, objectives),
            )
            for lane in self.lanes
            for objectives in (self._objectives_of(lane),)
        ]
        if not any(lane.name == "default" for lane in out):
            out.append(
                LanePolicy(budgets=self.budgets.resolve(), objectives=parse_objectives(self.objectives)),
            )
        return out

    def _objectives_of(self, lane: LaneConfig) -> Objectives:
        own = parse_objectives(lane.objectives) if lane.objectives else None
        return lane_objectives(lane, own, parse_objectives(self.objectives))

    def lane_bounds(self) -> dict[str, dict[str, int]]:
        """Lane -> objective (`ttft_p99`) -> bound (ns), of every lane that there is."""
        return {
            policy.name: {
                objective_text(metric, quantile): bound
                for metric, bounds in policy.objectives.bounds.items()
                for quantile, bound in bounds.items()
            }
            for policy in self.lane_policies()
        }

    def governor(self) -> Sharing:
        """What lanes and tenants share, as the governor reads it."""
        return sharing_of(self.sharing, self.tenants)


def to_plain(value: msgspec.Struct) -> dict[str, Any]:
    """A part of the configuration as the YAML file spells it; `config_from` reads it back."""
    plain: dict[str, Any] = msgspec.to_builtins(value, enc_hook=_encode_hook, builtin_types=())
    return plain


def _encode_hook(value: object) -> object:
    if isinstance(value, Duration):
        return human(value)
    raise NotImplementedError(type(value))  # how a hook tells msgspec that a type is not its own


def parse_objectives(raw: dict[str, Duration]) -> Objectives:
    """`{"ttft_p99": 500 ms}` -> `Objectives`. Raises `ConfigError` for an unknown name."""
    bounds: dict[str, dict[float, int]] = {}
    for key, value in raw.items():
        name = objective_name(key)
        if name is None:
            raise ConfigError(
                f"{key!r} is no objective", place=f"objectives.{key}", remedy=f"{FORM}, for example `ttft_p99: 500ms`."
            )
        bounds.setdefault(name[0], {})[name[1]] = int(value)
    return Objectives(bounds=bounds)


def _decode_hook(kind: type, value: object) -> object:
    if kind is Duration:
        return parse_duration(value)
    raise NotImplementedError(kind)  # see `_encode_hook`


def _schema_hook(kind: type) -> dict[str, Any]:
    if kind is Duration:
        return {"type": "string", "pattern": rf"^\s*\d+(\.\d+)?\s*({'|'.join(UNITS)})\s*$", "examples": ["150ms", "2s"]}
    raise NotImplementedError(kind)  # see `_encode_hook`


def json_schema() -> dict[str, Any]:
    """The JSON Schema of the file, for editors."""
    schema = msgspec.json.schema(Config, schema_hook=_schema_hook)
    for kind in (
        BudgetsConfig, SlowConfig, LimitsConfig, ScrapeConfig, SignalsConfig, InferenceConfig, RecordsConfig,
        WebsocketConfig, GapConfig, DegradationConfig, CacheConfig, EngineRoomConfig, AdaptiveConfig, BalanceConfig,
        RetryConfig, BreakerConfig, OutliersConfig, HedgeConfig, Config,
    ):  # fmt: skip
        values = kind()
        properties = schema["$defs"][kind.__name__]["properties"]
        for name in kind.__struct_fields__:
            value = getattr(values, name)
            if isinstance(value, Duration):
                properties[name]["default"] = human(value)
    return schema


_SEE: Final = "`docs/reference/config.md` lists the keys."
_PATH: Final = re.compile(r" - at `\$?\.?(?P<path>[^`]*)`$")
_VISIBLE: Final = re.compile(r"[!-~]*")
_UNKNOWN: Final = re.compile(r"unknown field `(?P<field>[^`]+)`")


def config_from(raw: object, *, where: str = "config", upstream: str | None = None) -> Config:
    """Validate plain data (a YAML document, a JSON body). Raises `ConfigError` with the path and the remedy.

    `upstream` is the engine's URL where the data names no backend.
    """
    try:
        config = msgspec.convert(raw, Config, dec_hook=_decode_hook)
    except msgspec.ValidationError as error:
        raise _explain(str(error), where) from None
    if upstream is not None and not config.backends:
        config.backends = [BackendConfig(url=upstream)]
    check(config, where=where)
    return config


def load_config(path: str | Path, *, upstream: str | None = None) -> Config:
    """Read and validate a YAML file. Raises `ConfigError` for a missing file, bad YAML or a bad value.

    `upstream` is the engine's URL where the file names no backend.
    """
    import yaml  # noqa: PLC0415  (only when a file is used)

    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror or error if isinstance(error, OSError) else "it is no UTF-8 text"
        raise ConfigError(
            f"cannot be read: {why}",
            place=str(file),
            remedy="Give an existing YAML file with -c, or use --upstream URL, which needs none.",
        ) from None
    try:
        raw = read_yaml(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{file}:{mark.line + 1}:{mark.column + 1}" if mark else str(file)
        raise ConfigError(
            f"is no valid YAML: {getattr(error, 'problem', error)}", place=place, remedy="Correct the line."
        ) from None
    return config_from(raw if raw is not None else {}, where=str(file), upstream=upstream)


def check(config: Config, *, where: str = "config") -> None:
    """Refuse what types cannot: no backend, bad URLs, bad limits, twice the same name."""
    _check_websocket(config.websocket, place=f"{where}: websocket")
    check_traces(config.traces, place=f"{where}: traces")
    check_tokens(config.tokens, place=f"{where}: tokens")
    check_cache(config.cache, place=f"{where}: cache", check_url=check_url)
    check_predictions(config.predictions, place=f"{where}: predictions")
    _check_inference(config.inference, place=f"{where}: inference")
    if not config.backends:
        raise ConfigError(
            "there is no backend",
            place=f"{where}: backends",
            remedy='Add `backends: [{url: "http://127.0.0.1:8000"}]` or give --upstream URL.',
        )
    backends = [backend.name for backend in config.backends]
    for index, backend in enumerate(config.backends):
        _check_backend(backend, place=f"{where}: backends[{index}]")
        check_share(backend, place=f"{where}: backends[{index}]")
        if backends.count(backend.name) > 1:
            raise ConfigError(
                f"two backends are named {backend.name!r}",
                place=f"{where}: backends[{index}].name",
                remedy="Give each its own name: records, views and lanes know it by that.",
            )
    check_routes(config.canary, config.shadow, backends, config.workers, where=where)
    check_balance(config.balance, config.retry, config.breaker, config.outliers, config.hedge, where=where)
    _check_listen(config, where)
    if not 1 <= config.workers <= MAX_WORKERS:
        raise ConfigError(
            f"there cannot be {config.workers} workers",
            place=f"{where}: workers",
            remedy=f"Write a number from 1 to {MAX_WORKERS}; one for each core that the gateway may use.",
        )
    check_grpc(
        listen=config.grpc_listen,
        targets=[backend.grpc_url for backend in config.backends],
        message_bytes=config.limits.grpc_message_bytes,
        where=where,
    )
    if not 0.0 <= config.scrape.jitter <= 0.5:
        raise ConfigError(
            f"{config.scrape.jitter} is no jitter",
            place=f"{where}: scrape.jitter",
            remedy="Write a share of the period from 0 to 0.5.",
        )
    names = [lane.name for lane in config.lanes]
    for index, lane in enumerate(config.lanes):
        place = f"{where}: lanes[{index}]"
        _check_lane(lane, names, place=place)
        check_guard(lane.gap, lane.pace, idle=(lane.budgets or config.budgets).idle, place=place)
        check_lane_limits(lane, backends, config.keys, place=place)
        check_match(lane.match, place=place)
    check_tokens(config.tokens, place=f"{where}: tokens")
    check_degradation(config.degradation, [lane.name for lane in config.lane_policies()], place=f"{where}: degradation")
    check_keys(config.keys, (*names, DEFAULT_LANE), require=config.require_key, where=where)
    check_sharing(config.sharing, config.tenants, config.tenant_header, where=where)
    check_engine_room(config.engine_room, where=where)
    parse_objectives(config.objectives)
    check_alerts(config.alerts, config.lane_bounds(), place=f"{where}: alerts")
    check_diagnosis(config.diagnosis, place=f"{where}: diagnosis")
    _check_signals(config.signals, place=f"{where}: signals")
    if config.limits.upstream_connections < 1:
        raise ConfigError(
            f"{config.limits.upstream_connections} connections serve nobody",
            place=f"{where}: limits.upstream_connections",
            remedy="Write at least 1; leave the key out for 8192.",
        )
    if not 0.0 <= config.records.sample <= 1.0:
        raise ConfigError(
            f"{config.records.sample} is no share",
            place=f"{where}: records.sample",
            remedy="Write a number from 0 to 1; 0.01 keeps one normal request in a hundred.",
        )


def _check_signals(signals: SignalsConfig, *, place: str) -> None:
    if signals.period < 100 * MS:
        raise ConfigError(
            "a sample every few milliseconds would cost more than it tells",
            place=f"{place}.period",
            remedy="Write at least `100ms`; `1s` is the default.",
        )
    if signals.gpu_source not in ("auto", "off"):
        check_url(signals.gpu_source.partition("?")[0], place=f"{place}.gpu")
    if signals.engine_pid is not None and signals.engine_pid < 1:
        raise ConfigError(
            f"{signals.engine_pid} is no process", place=f"{place}.engine_pid", remedy="Write the engine's process id."
        )


def _check_listen(config: Config, where: str) -> None:
    path = unix_path(config.listen)
    if path is not None and not _sound_path(path):
        raise ConfigError(
            f"{config.listen!r} names no socket",
            place=f"{where}: listen",
            remedy="Write an absolute path: unix:/run/tailrace.sock.",
        )
    if path is not None and config.tls is not None:
        raise ConfigError(
            "a Unix socket has no TLS", place=f"{where}: tls", remedy="Leave `tls` out, or listen on HOST:PORT."
        )
    if not _MODE.fullmatch(config.listen_mode):
        raise ConfigError(
            f"{config.listen_mode!r} is no mode",
            place=f"{where}: listen_mode",
            remedy='Write three octal digits in quotes, for example "660".',
        )


def _sound_path(path: str) -> bool:
    return path.startswith("/") and len(path) > 1 and "\0" not in path


_LONGEST_NAME: Final = 64
"""Characters of a lane's name."""


def _check_lane(lane: LaneConfig, names: list[str], *, place: str) -> None:
    if names.count(lane.name) > 1:
        raise ConfigError(f"two lanes are named {lane.name!r}", place=place, remedy="Give each its own name.")
    if not (lane.name.strip() and lane.name.isascii() and lane.name.isprintable() and len(lane.name) <= _LONGEST_NAME):
        raise ConfigError(
            f"{lane.name[:_LONGEST_NAME]!r} cannot be a lane's name: headers carry it",
            place=f"{place}.name",
            remedy=f"Write 1 to {_LONGEST_NAME} printable ASCII characters, for example interactive.",
        )
    if lane.running < 1 or lane.queued < 0:
        raise ConfigError(
            f"running is {lane.running} and queued is {lane.queued}",
            place=place,
            remedy="running must be at least 1, queued at least 0.",
        )
    if isinstance(lane.priority, str) and lane.priority not in _PRIORITIES:
        raise ConfigError(
            f"{lane.priority!r} is no priority",
            place=f"{place}.priority",
            remedy="Write high, normal, low or a number (lower goes first).",
        )
    if lane.tokens is not None:
        check_limits(lane.tokens, place=f"{place}.tokens")
    if lane.objectives:
        parse_objectives(lane.objectives)


def _check_backend(backend: BackendConfig, *, place: str) -> None:
    check_url(backend.url, place=f"{place}.url", unix=True)
    if backend.tls is not None and not backend.url.startswith("https://"):
        raise ConfigError(
            f"{backend.url!r} is not reached by TLS",
            place=f"{place}.tls",
            remedy="Write its address with https://, or leave `tls` out.",
        )
    if backend.metrics_url:
        check_url(backend.metrics_url.partition("?")[0], place=f"{place}.metrics_url")
    if backend.api_key and not (backend.api_key.isascii() and backend.api_key.isprintable()):
        raise ConfigError(
            "the key has a line end or another character that no header can carry",
            place=f"{place}.api_key",
            remedy="Copy the key again, without what follows it.",
        )


def check_url(url: str, *, place: str, unix: bool = False) -> None:
    """Refuse a URL that cannot be an engine's base address. Raises `ConfigError`."""
    remedy = "Write the engine's base address, for example http://127.0.0.1:8000."
    path = unix_path(url) if unix else None
    if path is not None:
        if not _sound_path(path) or not _VISIBLE.fullmatch(url.removeprefix(HTTP_UNIX)) or "?" in url or "#" in url:
            raise ConfigError(
                f"{url!r} names no socket",
                place=place,
                remedy="Write unix:/run/engine.sock, or http+unix://%2Frun%2Fengine.sock/PREFIX.",
            )
        return
    try:
        parts = urlsplit(url)
        sound = parts.scheme in ("http", "https") and (parts.port is None or parts.port > 0)
        # The resolver encodes names so, and raises for an empty or overlong label in the middle of a request.
        host = (parts.hostname or "").encode("idna")
    except ValueError:  # a bad port, an open bracket, a name that cannot be one (UnicodeError)
        sound, host = False, b""
    if not sound or not host or not _VISIBLE.fullmatch(host.decode("ascii")):
        raise ConfigError(f"{url!r} is no http:// or https:// address", place=place, remedy=remedy)
    if parts.username is not None or parts.password is not None:
        raise ConfigError(
            "the address holds a user name or password, which would not be sent",
            place=place,
            remedy="Leave it out; a key for the engine goes into `api_key`.",
        )
    if parts.query or parts.fragment:
        raise ConfigError(
            f"{url!r} has a query or fragment, which a base address cannot have", place=place, remedy=remedy
        )
    if not _VISIBLE.fullmatch(parts.path):
        raise ConfigError(
            f"the path of {url!r} has characters that cannot be sent as they are",
            place=place,
            remedy="Write them percent-encoded.",
        )


def _check_inference(section: InferenceConfig, *, place: str) -> None:
    if not 0 <= section.error_share <= 1:
        raise ConfigError(
            f"{section.error_share:g} is no share", place=f"{place}.error_share", remedy="Use a number from 0 to 1."
        )


def _check_websocket(websocket: WebsocketConfig, *, place: str) -> None:
    longest = websocket.idle if websocket.session is None else websocket.session
    if websocket.message_bytes < 1 or min(websocket.idle, longest) < 100 * MS:
        raise ConfigError(
            "no session could live with these bounds",
            place=place,
            remedy="message_bytes must be at least 1, idle and session at least `100ms`.",
        )


def _explain(message: str, where: str) -> ConfigError:
    path = _PATH.search(message)
    place = f"{where}: {path['path']}" if path and path["path"] else where
    text = _PATH.sub("", message)
    unknown = _UNKNOWN.search(message)
    if unknown is None:
        return ConfigError(
            text[:1].lower() + text[1:], place=place, remedy="`docs/reference/config.md` lists the keys."
        )
    known = _known_keys()
    near = difflib.get_close_matches(unknown["field"], known, n=1)
    remedy = f"Did you mean `{near[0]}`?" if near else _SEE
    if near and near[0] == unknown["field"]:
        remedy = "Another section has such a key: `docs/reference/config.md` lists which."
    key = unknown["field"]
    place = f"{place}.{key}" if path and path["path"] else f"{where}: {key}"
    return ConfigError(f"there is no key {key!r} here", place=place, remedy=remedy)


def _known_keys() -> list[str]:
    kinds = (
        Config,
        TlsConfig,
        EngineTlsConfig,
        BackendConfig,
        LaneConfig,
        LaneMatch,
        TokensConfig,
        TokenLimitsConfig,
        BudgetsConfig,
        SlowConfig,
        LimitsConfig,
        ScrapeConfig,
        SignalsConfig,
        RecordsConfig,
        TracesConfig,
        TokensConfig,
        TokenLimitsConfig,
        PredictionsConfig,
        WebsocketConfig,
        GapConfig,
        PaceConfig,
        DegradationConfig,
        SignalConfig,
        CacheConfig,
        CacheRouteConfig,
        EmbeddingConfig,
        SharingConfig,
        EngineRoomConfig,
        AdaptiveConfig,
        KeyConfig,
        TenantConfig,
        BalanceConfig,
        RetryConfig,
        BreakerConfig,
        OutliersConfig,
        HedgeConfig,
    )
    return [name for kind in kinds for name in kind.__struct_fields__]
