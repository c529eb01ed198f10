"""What was asked for and what runs are two things: contradictions between sources, and what the log complains of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tailrace.engines.advice.case import Case
from tailrace.engines.facts import spoken
from tailrace.engines.flags.given import COMMAND
from tailrace.model.check import CheckFinding, Weight
from tailrace.model.finding import Evidence

# Keys that engines legitimately spell in two ways: a path and a served name, a version with a build behind it.
_LOOSE: Final = frozenset({"model", "version", "host", "port", "served_model_name", "device", "dtype"})

_LOG: Final = {
    "LOG_OPTION_REFUSED": (
        Weight.ERROR,
        "The engine refused its command line.",
        "Give the command line to this tool (--command), with the engine's own list (--help-of or --help-text).",
    ),
    "LOG_OUT_OF_MEMORY": (
        Weight.ERROR,
        "The engine ran out of the card's memory.",
        (
            "A smaller --gpu-memory-utilization leaves room for graphs and other processes; fewer max_num_seqs and "
            "max_num_batched_tokens shrink what a step needs."
        ),
    ),
    "LOG_KV_TOO_SMALL": (
        Weight.ERROR,
        "Not one request of the longest length fits the KV cache.",
        "Lower --max-model-len to what is really sent, quantise, or spread over more cards.",
    ),
    "LOG_ENGINE_DIED": (
        Weight.ERROR,
        "The engine's process died.",
        "The first error above that line is the cause; the last ones only say that it is gone.",
    ),
    "LOG_JIT": (
        Weight.WARNING,
        "Kernels were compiled while requests ran: each such moment stops every stream.",
        "Warm up with the shapes of real traffic before the engine takes requests.",
    ),
}


def judge_sources(case: Case) -> Iterator[CheckFinding]:
    """Contradictions, then the log's complaints: each kind once, with where it stands first and how often."""
    for one in case.facts.contradictions:
        if one.key in _LOOSE:
            continue
        asked = COMMAND in one.other.source
        yield case.finding(
            "FLAG_NOT_IN_FORCE" if asked else "SOURCES_DISAGREE",
            Weight.WARNING,
            f"{one.key} is {spoken(one.believed.value)} ({one.believed.source}), and {spoken(one.other.value)} "
            f"according to {one.other.source}.",
            subject=one.key,
            evidence=[
                Evidence(f"{one.key} = {spoken(fact.value)}", fact.source, one.key)
                for fact in (one.believed, one.other)
            ],
            advice=(
                "Restart the engine with the options that are meant: what runs was started otherwise, or the engine "
                "changed the value at its start (its log says so)."
                if asked
                else "Make sure that log, command line and address belong to the same engine."
            ),
            effect="The value that was tuned is the one that runs.",
            price="A restart.",
            verify=f"tailrace check {case.url or 'URL'}",
        )
    codes = list(dict.fromkeys(problem.code for problem in case.problems))
    for code in codes:
        weight, statement, advice = _LOG[code]
        hits = [problem for problem in case.problems if problem.code == code]
        yield case.finding(
            code,
            weight,
            statement,
            subject=f"{case.log_name}:{hits[0].line}",
            evidence=[Evidence(hit.text[:240], f"{case.log_name}:{hit.line}", code) for hit in hits[:3]],
            advice=advice,
            effect="The engine starts, or stays up."
            if weight is Weight.ERROR
            else "No stop of all streams in traffic.",
            price="Depends on the lever; each has its own finding here.",
            verify="The log of the next start.",
        )
