"""What every finding must keep to, whatever it says."""

from __future__ import annotations

import importlib
import re
import shlex

import typer.main

from tailrace.cli.catalogue import COMMANDS
from tailrace.diagnose.cause import layer_of
from tailrace.model.finding import Evidence, Finding, Layer, Level, Proof

NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?")
NONE = re.compile(r"(?<![a-z])(?:nan|inf|infinity)(?![a-z])", re.IGNORECASE)
SEEN = re.compile(r"JIT|compil|stood in|stack|frame|step", re.IGNORECASE)


def dishonest(finding: Finding) -> list[str]:
    """What is wrong with it, in words; empty for a good one."""
    out = [f"prints no number: {text}" for text in _texts(finding) if NONE.search(text)]
    if finding.layer is not layer_of(finding.code):
        out.append(f"{finding.code} is said to be of {finding.layer}")
    if finding.level is Level.INSUFFICIENT:
        return out + _of_insufficient(finding)
    told = " ".join(item.text for item in finding.evidence).replace(",", "")
    out += [
        f"{number} of the statement is not in the evidence: {finding.statement} | {told}"
        for number in NUMBER.findall(finding.statement.replace(",", ""))
        if not re.search(rf"(?<![\d.]){re.escape(number)}(?!\d)", told)
    ]
    out += [f"evidence without a source: {item.text}" for item in finding.evidence if not item.source]
    if finding.level is Level.SUSPECTED and not finding.missing and not finding.rivals:
        out.append("suspected, and nothing is missing and nothing else fits")
    out += [f"no {name}" for name in ("statement", "advice", "disproof") if not getattr(finding, name)]
    return out + _of_proof(finding)


def _texts(finding: Finding) -> list[str]:
    """Everything that a person reads."""
    said = [finding.statement, finding.relation, finding.advice, finding.price, finding.verify]
    return [*said, *finding.missing, *finding.disproof_checked, *(item.text for item in finding.evidence)]


def _of_insufficient(finding: Finding) -> list[str]:
    bare = Finding(code=finding.code, layer=finding.layer, stage=finding.stage, level=finding.level, statement="")
    said = [
        name
        for name in Finding.__struct_fields__
        if name not in ("missing", "action") and getattr(finding, name) != getattr(bare, name)
    ]
    return [f"insufficient, and says {said}"] * bool(said) + ["nothing is missing"] * (not finding.missing)


def _of_proof(finding: Finding) -> list[str]:
    """Only what §3 of the rules allows is proven, and the finding holds what makes it so."""
    if finding.level is not Level.PROVEN:
        return [f"{finding.level}, with a proof"] if finding.proof is not None else []
    shows = {
        Proof.ONE_CHANGE: any(_tells_change(item) for item in finding.evidence),
        Proof.IN_WINDOW: any(SEEN.search(item.text) for item in finding.evidence),
        Proof.IMPOSSIBLE: finding.layer is Layer.VALIDITY,
        None: False,
    }
    return [] if shows[finding.proof] else [f"proven, and the evidence holds nothing that proves it ({finding.proof})"]


def _tells_change(item: Evidence) -> bool:
    return "chang" in f"{item.text} {item.name}"


def typed(command: str) -> list[str]:
    """The command lines of a `verify`: joined by `&&`; what stands behind `  # ` is said to a person."""
    return [part.strip() for part in command.split("  # ", maxsplit=1)[0].split("&&")]


def runs(line: str) -> None:
    """Parse a line as the command line does, and run nothing; raises what a user would see."""
    words = shlex.split(line)
    assert words[0] == "tailrace", line
    name, *arguments = words[1:]
    command = _command(name)
    nested = getattr(command, "commands", None)
    if nested and arguments:
        command, arguments = nested[arguments[0]], arguments[1:]
    with command.make_context("tailrace", arguments) as context:
        assert context.params is not None
        if name == "ab":  # what it does not know itself are options of `bench`
            assert context.params["a"] or context.params["url"], line
            with _command("bench").make_context("tailrace", ["http://localhost", *context.args]):
                pass


def _command(name: str):
    return typer.main.get_command(importlib.import_module(COMMANDS[name].module).app)
