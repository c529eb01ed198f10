"""What is known of one engine when its options are judged, and how a rule writes what it found."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from tailrace.engines.advice.card import Card
from tailrace.engines.advice.lengths import Lengths, Of
from tailrace.engines.advice.model_shape import ModelShape, precision_in
from tailrace.engines.facts import NO_FACTS, EngineFacts
from tailrace.engines.flags.command_line import CommandLine
from tailrace.engines.flags.option import OptionTable
from tailrace.engines.flags.start_log import LoadSeen, Problem
from tailrace.engines.flags.triton_model import TritonModel
from tailrace.engines.flags.version import Version, parse_version
from tailrace.engines.prometheus_text import Scrape
from tailrace.model.check import CheckFinding, Weight
from tailrace.model.engine_state import EngineState
from tailrace.model.finding import Evidence
from tailrace.model.thresholds import Objectives, SlowThresholds

LIKE_VLLM: Final = frozenset({"vllm", "simulated"})
"""Engines with vLLM's scheduler and names."""


class Case(msgspec.Struct, kw_only=True):
    """Everything that was read of one engine. `needs` grows while rules run."""

    name: str
    engine: str
    facts: EngineFacts = NO_FACTS
    command: CommandLine | None = None
    table: OptionTable | None = None
    """Options that are known; `helped` says whether the engine's own `--help` is behind it."""
    helped: bool = False
    lengths: Lengths | None = None
    objectives: Objectives = msgspec.field(default_factory=Objectives)
    slow: SlowThresholds = SlowThresholds()
    scrape: Scrape | None = None
    state: EngineState | None = None
    load: LoadSeen | None = None
    problems: list[Problem] = []
    log_name: str = ""
    models: list[TritonModel] = []
    not_ready: list[tuple[str, str]] = []
    """(model, why) of those that a server lists and does not serve."""
    shape: ModelShape | None = None
    card: Card | None = None
    url: str = ""
    needs: list[str] = []

    @property
    def version(self) -> Version | None:
        """The engine's release; `None` where nobody told it."""
        return parse_version(self.facts.text("version"))

    @property
    def vllm(self) -> bool:
        """Whether vLLM's rules hold for it."""
        return self.engine in LIKE_VLLM

    @property
    def fits_table(self) -> bool:
        """Whether the table of options is this engine's own: from its `--help`, or of its very version.

        A version that nobody told is taken for the table's.
        """
        if self.helped or self.table is None:
            return self.helped
        version = self.version
        return version is None or version == parse_version(self.table.version)

    def at_least(self, text: str) -> bool | None:
        """Whether the version is this one or later; `None` where it is not known."""
        if self.engine == "simulated":
            return True  # it plays the current release
        wanted, version = parse_version(text), self.version
        return None if wanted is None or version is None else version >= wanted

    @property
    def precision(self) -> str:
        """Precision of the weights: quantisation, then dtype, then what the model's name tells, then 16 bit."""
        told = (self.facts.text("quantization"), self.facts.text("dtype"), precision_in(self.facts.text("model")))
        return next((name for name in told if name and name not in {"none", "auto"}), "bfloat16")

    @property
    def on_cpu(self) -> bool:
        """Whether it computes on the CPU, as far as anybody said."""
        return "cpu" in self.facts.text("device") or "+cpu" in self.facts.text("version")

    def number(self, key: str) -> float | None:
        """A fact as a number."""
        return self.facts.number(key)

    def source(self, key: str) -> str:
        """Where a fact comes from; empty where it is not known."""
        fact = self.facts.get(key)
        return "" if fact is None else fact.source

    def need(self, text: str) -> None:
        """Say once what could not be judged and what to provide."""
        if text not in self.needs:
            self.needs.append(text)

    def shown(self, *keys: str) -> list[Evidence]:
        """Facts as evidence, those that are known."""
        out = []
        for key in keys:
            fact = self.facts.get(key)
            if fact is not None:
                value = fact.value
                number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
                out.append(Evidence(f"{key} = {self.facts.text(key)}", fact.source, key, number))
        return out

    def measured(self, text: str, name: str, value: float, unit: str = "") -> Evidence:
        """A number from the lengths."""
        return Evidence(text, self.lengths.source if self.lengths is not None else "", name, value, unit)

    def length_evidence(self, of: Of = Of.TOTAL) -> list[Evidence]:
        """The lengths behind a statement."""
        if self.lengths is None:
            return []
        out = []
        median = self.lengths.quantile(0.5, of)
        points = [None if median is None else (median, "p50"), self.lengths.upper(of), self.lengths.tail(of)]
        for point in dict.fromkeys(points):
            if point is not None:
                value, word = point
                most = "" if self.lengths.exact else "at most "
                out.append(
                    self.measured(
                        f"{of} length {word}: {most}{value:,.0f} tokens (n = {self.lengths.count(of):,})",
                        f"{of}_tokens.{word}",
                        value,
                        "tokens",
                    )
                )
        return out

    def compare_runs(self, before: str = "before.run", after: str = "after.run") -> str:
        """The commands that show whether a change helped."""
        url = self.url or "URL"
        return (
            f"tailrace bench {url} --rate R --duration 300 --out {before}; change it; tailrace bench {url} --rate R "
            f"--duration 300 --out {after}; tailrace compare {before} {after}"
        )

    def finding(
        self,
        code: str,
        weight: Weight,
        statement: str,
        *,
        subject: str = "",
        evidence: Iterable[Evidence] = (),
        advice: str = "",
        effect: str = "",
        price: str = "",
        verify: str | None = None,
    ) -> CheckFinding:
        """One finding. Advice to tune is verified by two runs unless `verify` says otherwise."""
        return CheckFinding(
            code=code,
            weight=weight,
            about=self.name,
            subject=subject,
            statement=statement,
            evidence=list(evidence),
            advice=advice,
            effect=effect,
            price=price,
            verify=(self.compare_runs() if weight is Weight.ADVICE else "") if verify is None else verify,
        )


Rule = Callable[[Case], Iterable[CheckFinding]]
"""Reads a case, yields what it has to say of it; adds to `Case.needs` what it would have needed."""


def percent(share: float) -> str:
    """A share as people read it."""
    return f"{share * 100:.0f} %" if share >= 0.095 or not share else f"{share * 100:.1f} %"


def amount(nbytes: float) -> str:
    """Bytes as people read them."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(nbytes) >= size:
            return f"{nbytes / size:.1f} {unit}"
    return f"{nbytes:.0f} B"
