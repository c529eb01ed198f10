"""Options that the engine would refuse, read otherwise than meant, or has no longer."""

from __future__ import annotations

from collections.abc import Iterator

from tailrace.engines.advice.case import Case
from tailrace.engines.flags.command_line import Given
from tailrace.engines.flags.given import is_secret, size, stray_value
from tailrace.engines.flags.option import Found, Option, Takes, option_key
from tailrace.engines.flags.version import Version
from tailrace.engines.flags.vllm_history import CHANGES, Change, Fate, default_chunked_prefill
from tailrace.model.check import CheckFinding, Weight
from tailrace.model.finding import Evidence

CHUNKED = "--enable-chunked-prefill"
_WHOLE = frozenset(
    {
        "max_num_seqs",
        "max_num_batched_tokens",
        "block_size",
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "data_parallel_size",
        "long_prefill_token_threshold",
        "max_num_queued_reqs",
        "max_num_queued_tokens",
        "num_gpu_blocks_override",
        "stream_interval",
        "port",
    }
)
"""Options of vLLM that take a whole number. `--max-model-len` also takes `auto` and is not among them."""


_MAY_BE_ZERO = frozenset({"port", "long_prefill_token_threshold"})


def judge_options(case: Case) -> Iterator[CheckFinding]:
    """Every option of the command line against what the engine has."""
    if case.command is None:
        return
    seen: dict[str, Given] = {}
    for given in case.command.options:
        found = case.table.find(given.name) if case.table is not None else None
        if case.vllm and _is_chunked(given.name) and _has_word(given):
            yield _chunked_with_word(case, given)
            continue
        problem = _fate(case, given, found) or (_unknown(case, given) if found is None else _value(case, given, found))
        if problem is not None:
            yield problem
        if found is not None:
            name = found.option.name
            again = name in seen and found.option.takes is not Takes.VALUES and "." not in given.name
            if again and (seen[name].value, seen[name].name) != (given.value, given.name):
                yield _twice(case, given, seen[name])
            seen[name] = given
            if found.abbreviated and case.fits_table:
                yield _abbreviated(case, given, found.option)
    if case.vllm and case.command.program == "vllm" and case.command.last("--model") is not None:
        yield case.finding(
            "OPTION_RENAMED",
            Weight.WARNING,
            "`vllm serve` takes the model as its first word; `--model` is deprecated there and will go.",
            subject="--model",
            evidence=[_as_given(case.command.last("--model"))],
            advice="vllm serve MODEL …",
            effect="The same engine, without the warning at its start.",
            price="None.",
            verify="vllm serve --help=model",
        )


def _is_chunked(name: str) -> bool:
    return name.replace("_", "-") in {CHUNKED, "--no-enable-chunked-prefill"}


def _has_word(given: Given) -> bool:
    return given.value is not None or stray_value(given) is not None


def _as_given(given: Given | None) -> Evidence:
    if given is None:
        return Evidence("", "command line")
    shown = given.name if is_secret(given.name) else given.words
    return Evidence(shown, "command line", option_key(given.name))


def chunked_spelling(version: Version | None) -> str:
    """How chunked prefill is switched on in this version."""
    default = default_chunked_prefill(version)
    if version is not None and version < Version(0, 8, 5):
        return f"`{CHUNKED} true` (this version takes `true` or `false`; without the option it is off)"
    if default is None:
        return f"`{CHUNKED}` (nothing behind it; V1 has it on without the option, V0 only beyond 32K of context)"
    return f"`{CHUNKED}`, or nothing at all: it is on unless `--no-enable-chunked-prefill` is given"


def _chunked_with_word(case: Case, given: Given) -> CheckFinding:
    word = given.value if given.value is not None else stray_value(given)
    version = case.version
    old = version is not None and version < Version(0, 8, 5)
    if old and (word or "").lower() in {"true", "false"}:
        return case.finding(
            "OPTION_VALUE",
            Weight.INFO,
            f"`{CHUNKED} {word}` is this version's spelling; from 0.8.5 on the option takes no value and this is an "
            "error.",
            subject=CHUNKED,
            evidence=[_as_given(given)],
            verify="vllm serve --help=all | grep -A2 chunked-prefill",
        )
    if old:
        said = f"Invalid boolean value: {word}. Expected 'true' or 'false'"
    elif given.joined:
        said = f"ignored explicit argument '{word}'"
    else:
        said = f"unrecognized arguments: {word}"
    return case.finding(
        "CHUNKED_PREFILL_VALUE",
        Weight.ERROR,
        f"The engine does not start: `{CHUNKED}` is a switch, and {word!r} behind it is refused "
        f'("{said}"). Recipes that quote it are wrong.',
        subject=CHUNKED,
        evidence=[
            Evidence(f"{given.name}, followed by {word!r}", "command line", "enable_chunked_prefill"),
            Evidence("'auto' is refused by 0.32.0 and 0.6.6 alike", "engine run", "message"),
        ],
        advice=f"Write {chunked_spelling(version)}.",
        effect="The engine starts; long prompts are computed in pieces beside decoding requests.",
        price="The largest gaps shrink, middling gaps become more frequent.",
        verify="vllm serve --help=all | grep -A2 chunked-prefill",
    )


def _fate(case: Case, given: Given, found: Found | None) -> CheckFinding | None:
    if not case.vllm or case.helped:
        return None  # its own --help knows better
    name = found.option.name if found is not None else given.name.partition(".")[0].replace("_", "-")
    change = CHANGES.get(name)
    fate = change.fate(case.version) if change is not None else Fate.THERE
    if change is None or fate is Fate.THERE:
        return None
    version = f"{case.version}" if case.version is not None else "today's versions"
    if fate is Fate.GONE:
        return case.finding(
            "OPTION_REMOVED",
            Weight.ERROR,
            f"{name} does not exist in {version}: it was gone by {change.first_gone}"
            + (f" ({change.why})" if change.why else "")
            + ". The engine refuses to start with it.",
            subject=name,
            evidence=[_as_given(given), *_seen(change)],
            advice=f"Instead: {change.instead}.",
            effect="The engine starts.",
            price="What the option did is decided by the engine itself now.",
            verify="vllm serve --help=all | grep -- " + name,
        )
    if fate is Fate.NOT_YET:
        return case.finding(
            "OPTION_TOO_NEW",
            Weight.ERROR,
            f"{name} does not exist in {version}: it came after {change.last_without}.",
            subject=name,
            evidence=[_as_given(given), *_seen(change)],
            advice=f"Instead: {change.instead}; or a newer engine.",
            effect="The engine starts.",
            price="Without it, what it controls stays at this version's default.",
            verify="vllm serve --help=all | grep -- " + name,
        )
    return case.finding(
        "OPTION_UNSURE",
        Weight.WARNING,
        f"{name} came or went near {version}; this tool has not looked at that release.",
        subject=name,
        evidence=[_as_given(given), *_seen(change)],
        advice="Check the option against the engine's own list: tailrace check --help-of vllm --command '…'.",
        effect="Certainty before the restart.",
        price="None.",
        verify="vllm serve --help=all | grep -- " + name,
    )


def _seen(change: Change) -> list[Evidence]:
    rows = (
        ("absent in", change.last_without),
        ("present in", change.first_with),
        ("last seen in", change.last_with),
        ("gone in", change.first_gone),
    )
    return [Evidence(f"{word} {version}", "releases looked at", word) for word, version in rows if version is not None]


def _unknown(case: Case, given: Given) -> CheckFinding | None:
    table = case.table
    if table is None:
        return None
    near = table.nearest(given.name)
    guess = f" Meant perhaps: {near}." if near else ""
    evidence = [_as_given(given), Evidence(f"{len(table)} options", table.source, "options")]
    if table.complete and case.fits_table:
        return case.finding(
            "OPTION_UNKNOWN",
            Weight.ERROR,
            f"The engine has no option {given.name} ({table.source}) and refuses to start with it.{guess}",
            subject=given.name,
            evidence=evidence,
            advice=f"Write {near}." if near else "Leave it out, or look for it in the engine's --help.",
            effect="The engine starts.",
            price="None.",
            verify="vllm serve --help=all" if case.vllm else "the engine's --help",
        )
    if table.complete:
        return case.finding(
            "OPTION_UNKNOWN",
            Weight.WARNING,
            f"{given.name} is not among the options of {table.version}, and this engine's version is "
            f"{case.version or 'not known'}: perhaps it was removed, perhaps it is a slip.{guess}",
            subject=given.name,
            evidence=evidence,
            advice="Give the engine's own list: --help-text FILE, or --help-of vllm.",
            effect="Certainty before the restart.",
            price="None.",
            verify="vllm serve --help=all",
        )
    if near and not given.name.startswith(near):
        return case.finding(
            "OPTION_UNKNOWN",
            Weight.WARNING,
            f"This tool does not know {given.name}.{guess}",
            subject=given.name,
            evidence=evidence,
            advice="Check the spelling, or give the engine's own --help with --help-text FILE.",
            effect="Certainty before the restart.",
            price="None.",
            verify="the engine's --help",
        )
    return None


def _value(case: Case, given: Given, found: Found) -> CheckFinding | None:
    option = found.option
    stray = stray_value(given)
    text = given.value
    wrong = ""
    if option.takes in {Takes.NOTHING, Takes.SWITCH} and (text is not None or stray is not None):
        word = text if text is not None else stray
        off = f"--no-{option.name.removeprefix('--')}" if option.takes is Takes.SWITCH else "leave it out"
        wrong = f"{option.name} takes no value, and {word!r} behind it is refused"
        advice = f"Write {option.name} alone to switch it on; to switch it off: {off}."
    elif option.takes is Takes.VALUE and text is None and "." not in given.name:
        wrong, advice = f"{option.name} wants a value and has none", f"Write {option.name} VALUE."
    elif text is not None and option.choices and text not in option.choices:
        wrong = f"{option.name} does not take {text!r}"
        advice = f"One of: {', '.join(option.choices)}."
    elif text is not None and case.vllm and option.key in _WHOLE and not isinstance(size(text), int):
        wrong, advice = f"{option.name} takes a whole number, not {text!r}", f"Write {option.name} NUMBER."
    sure = case.fits_table or not option.choices
    if not wrong and text is not None and case.vllm:
        wrong, advice, sure = *_out_of_range(option, text), False
    if not wrong:
        return None
    return case.finding(
        "OPTION_VALUE",
        Weight.ERROR if sure else Weight.WARNING,
        f"{wrong}." + (" The engine does not start." if sure else ""),
        subject=option.name,
        evidence=[_as_given(given), *([Evidence(case.table.source, "options")] if case.table is not None else [])],
        advice=advice,
        effect="The engine starts with what was meant.",
        price="None.",
        verify="the engine's --help",
    )


def _out_of_range(option: Option, text: str) -> tuple[str, str]:
    """(what is wrong, what to write) of a number with which no engine can work; empty where it can."""
    value = size(text)
    if option.key == "gpu_memory_utilization":
        share = value if isinstance(value, int | float) and not isinstance(value, bool) else None
        if share is None or not 0 < share <= 1:
            return f"{option.name} is a share of the card, above 0 and at most 1, not {text!r}", "Write 0.9, say."
    elif option.key == "max_model_len":
        if isinstance(value, int) and value < 1 and value != -1:
            return f"{option.name} {text} leaves no room for a token", f"Write {option.name} NUMBER, or leave it out."
    elif option.key in _WHOLE - _MAY_BE_ZERO and isinstance(value, int) and value < 1:
        return f"{option.name} {text} leaves nothing to work with: it begins at 1", f"Write {option.name} NUMBER."
    return "", ""


def _twice(case: Case, given: Given, before: Given) -> CheckFinding:
    return case.finding(
        "OPTION_TWICE",
        Weight.WARNING,
        f"{given.name} is given twice; the last one holds.",
        subject=given.name,
        evidence=[_as_given(before), _as_given(given)],
        advice="Leave out the one that was not meant.",
        effect="Nobody tunes the value that is not in force.",
        price="None.",
        verify="tailrace check on the running engine's address",
    )


def _abbreviated(case: Case, given: Given, option: Option) -> CheckFinding:
    return case.finding(
        "OPTION_ABBREVIATED",
        Weight.WARNING,
        f"{given.name} is taken for {option.name}, because no other option begins so in this version; a later one may "
        "have two.",
        subject=option.name,
        evidence=[_as_given(given)],
        advice=f"Write {option.name}.",
        effect="The command line survives the next release.",
        price="None.",
        verify="the engine's --help",
    )
