"""Keys that come to nothing beside another: what a lane demands against what reaches it, and what never happens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tailrace.app.config_finding import config_finding
from tailrace.gateway.config import Config, parse_objectives
from tailrace.gateway.config_sections import LaneConfig
from tailrace.gateway.config_values import human
from tailrace.gateway.routes import ADMITTED
from tailrace.gateway.rpc.methods import INFER, STREAM_INFER
from tailrace.gateway.token_keys import resolve
from tailrace.govern.rungs import Rung
from tailrace.govern.token_limits import Over
from tailrace.model.check import CheckFinding, Weight
from tailrace.model.thresholds import S

_CHAT: Final = "/v1/chat/completions"
_PATHS: Final = ADMITTED | {INFER, STREAM_INFER}


def judge_never(config: Config, name: str) -> Iterator[CheckFinding]:
    """What the file says and no request ever sees."""
    for index, lane in enumerate(config.lanes):
        place = f"lanes[{index}]"
        yield from _path(lane, place, name)
        yield from _refuses_all(config, lane, place, name)
        yield from _pace(config, lane, place, name)
    yield from _comments(config, name)
    yield from _hedge(config, name)
    if config.degradation.enabled and Rung.CACHED in config.degradation.rungs and not config.cache.routes:
        yield config_finding(
            "CONFIG_RUNG_WITHOUT_EFFECT",
            Weight.WARNING,
            name,
            "degradation.rungs",
            "The rung cached gives answers of the response cache past their time, and no route is cached: it only "
            "takes its time before the next.",
            advice="cache: {routes: [{paths: [/v1/chat/completions]}]}, or leave the rung out.",
            effect="Every rung that is taken helps.",
            price="None.",
        )


def _path(lane: LaneConfig, place: str, name: str) -> Iterator[CheckFinding]:
    path = lane.match.path
    if path is None:
        return
    begins = path[:-1] if path.endswith("*") else None
    if any(one == path if begins is None else one.startswith(begins) for one in _PATHS):
        return
    yield config_finding(
        "CONFIG_LANE_PATH_UNKNOWN",
        Weight.ERROR,
        name,
        f"{place}.match.path",
        f"No request ever reaches lane {lane.name!r}: nothing that goes through a lane has the path {path!r}. (Paths "
        "of `passthrough` and lists of models go through none.)",
        advice=f"One of {', '.join(sorted(_PATHS))}; a trailing * matches the rest.",
        effect="Its limits and budgets come into force.",
        price="None.",
    )


def _refuses_all(config: Config, lane: LaneConfig, place: str, name: str) -> Iterator[CheckFinding]:
    shortest = lane.match.min_prompt_tokens
    path = lane.match.path or _CHAT
    limits = resolve(lane.tokens, config.tokens, path, chat=path == _CHAT)
    if shortest is None or limits.max_prompt is None or shortest <= limits.max_prompt or limits.over is not Over.REFUSE:
        return
    own = lane.tokens is not None and lane.tokens.max_prompt is not None
    yield config_finding(
        "CONFIG_LANE_REFUSES_ALL",
        Weight.WARNING,
        name,
        f"{place}.tokens.max_prompt" if own else f"{place}.match.min_prompt_tokens",
        f"Lane {lane.name!r} takes prompts from {shortest} tokens on, and refuses those above {limits.max_prompt} "
        "(max_prompt): every one of them.",
        advice=f"tokens: {{max_prompt: {2 * shortest}}}, or allow_truncation: true",
        effect="The lane serves what it takes.",
        price="Long prompts reach the engine, or are answered with less before the model's eyes.",
    )


def _pace(config: Config, lane: LaneConfig, place: str, name: str) -> Iterator[CheckFinding]:
    bounds = parse_objectives(lane.objectives or config.objectives).bounds.get("tpot", {})
    if lane.pace is None or not bounds:
        return
    slowest = max(int(bound) for bound in bounds.values())
    if lane.pace.min_tokens_per_s * slowest <= S:
        return
    yield config_finding(
        "CONFIG_PACE_ABOVE_OBJECTIVE",
        Weight.WARNING,
        name,
        f"{place}.pace.min_tokens_per_s",
        f"Lane {lane.name!r} ends streams below {lane.pace.min_tokens_per_s:g} tokens a second, and its objective "
        f"allows {human(slowest)} a token, {S / slowest:.3g} a second: streams die that meet it.",
        advice=f"min_tokens_per_s: {S / slowest / 2:.2g}",
        effect="Only streams far beyond the objective are ended.",
        price="A slow stream holds its place longer.",
    )


def _comments(config: Config, name: str) -> Iterator[CheckFinding]:
    every = config.predictions.comments
    longest = max(lane.budgets.queue_ns for lane in config.lane_policies())
    if not every or int(every) < longest:
        return
    yield config_finding(
        "CONFIG_COMMENTS_NEVER",
        Weight.WARNING,
        name,
        "predictions.comments",
        f"A stream that waits is told its place every {human(every)}, and no lane lets it wait longer than "
        f"{human(longest)}: it never is.",
        advice="predictions: {comments: 1s}, or a longer queue budget",
        effect="Who waits hears of it.",
        price="The status 200 is sent before the engine has said anything.",
    )


def _hedge(config: Config, name: str) -> Iterator[CheckFinding]:
    apart = [names.backends for names in (config.canary, config.shadow) if names is not None]
    served = [one.name for one in config.backends if not any(one.name in names for names in apart)]
    if not config.hedge.enabled or not served or len(served) > 1:
        return
    yield config_finding(
        "CONFIG_HEDGE_NEVER",
        Weight.WARNING,
        name,
        "hedge.enabled",
        f"A slow request is sent to another engine as well, and there is none beside {served[0]!r}.",
        advice="A second backend, or leave `hedge` out.",
        effect="The file says what happens.",
        price="None.",
    )
