"""Cases for the rules, as short as they can be written."""

from tailrace.engines.advice.case import Case
from tailrace.engines.advice.judge import judge
from tailrace.engines.advice.lengths import Lengths, lengths_of
from tailrace.engines.facts import EngineFacts, Fact
from tailrace.engines.flags.given import command_facts, read_command
from tailrace.engines.flags.tables import option_table


def facts(**values):
    """Facts from a source called `test`."""
    return EngineFacts({key: Fact(value, "test") for key, value in values.items()})


def command_case(text: str, *, version: str = "", **more) -> Case:
    """A case of a command line."""
    command = read_command(text)
    table = option_table(command.engine)
    known = command_facts(command, table)
    if version:
        known["version"] = Fact(version, "test")
    extra = {key: Fact(value, "test") for key, value in more.pop("also", {}).items()}
    return Case(
        name="e", engine=command.engine, command=command, table=table, facts=EngineFacts({**extra, **known}), **more
    )


def findings(case: Case):
    """Code -> the finding; of several with one code the first."""
    out = {}
    for finding in judge(case):
        out.setdefault(finding.code, finding)
    return out


def lengths(*groups: tuple[int, int, int]) -> Lengths:
    """(how many, prompt tokens, output tokens)."""
    return lengths_of([(prompt, output) for many, prompt, output in groups for _ in range(many)], source="a.run")
