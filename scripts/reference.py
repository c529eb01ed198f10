"""Write `docs/reference/` from the code: commands, configuration, record, results, outcomes, metrics, causes, schemas.

`--check` writes nothing and fails where a page differs from the code. A part of the code that does not exist yet leaves
its page with a sentence that says so.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "tailrace"
OUT = ROOT / "docs" / "reference"
NOTE = "<!-- Written by scripts/reference.py from the code; edit the code instead. -->\n\n"

sys.path.insert(0, str(SOURCE.parent))


def module(name: str) -> Any:
    """The module, or `None` where this version has none."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            return None
        raise


def cell(text: object) -> str:
    """One table cell: no line breaks, no bars that would end it."""
    return re.sub(r"\s+", " ", str(text)).strip().replace("|", "\\|")


def table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    lines = [f"| {' | '.join(head)} |"]
    lines.append(f"|{' --- |' * lines[0].count(' | ')} --- |")
    lines += [f"| {' | '.join(map(cell, row))} |" for row in rows]
    return "\n".join(lines) + "\n"


# -- structs, read from their source: a field's docstring stands below it


def struct_fields(node: ast.ClassDef, lines: list[str]) -> list[tuple[str, str, str, str, str]]:
    """(group, name, type, default, description) of every field of a class, groups from `# -- name` comments."""
    out = []
    for statement, after in zip(node.body, [*node.body[1:], None], strict=True):
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        name, kind = statement.target.id, ast.unparse(statement.annotation)
        if name.startswith("_") or kind.startswith("ClassVar"):
            continue
        group = next(
            (found[1] for line in reversed(lines[: statement.lineno]) if (found := re.match(r"\s+# -- (.+)", line))), ""
        )
        described = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
        text = str(after.value.value) if described else ""  # type: ignore[union-attr]
        out.append((group, name, kind, "" if statement.value is None else ast.unparse(statement.value), text))
    return out


def classes(path: Path, names: Iterable[str] | None = None) -> list[tuple[ast.ClassDef, list[str]]]:
    text = path.read_text("utf-8")
    found = [node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]
    wanted = [node.name for node in found] if names is None else list(names)
    return [(node, text.splitlines()) for name in wanted for node in found if node.name == name]


def struct_section(node: ast.ClassDef, lines: list[str]) -> str:
    rows = [(f"`{name}`", f"`{kind}`", text) for _, name, kind, _, text in struct_fields(node, lines)]
    return f"## {node.name}\n\n{ast.get_docstring(node) or ''}\n\n{table(('field', 'type', 'meaning'), rows)}"


# -- pages


def commands() -> str:
    from tailrace.cli.catalogue import COMMANDS

    out = [
        "# Commands\n\n`tailrace COMMAND --help` prints the same. Every command that prints a result takes `--json`.\n"
    ]
    for name, entry in COMMANDS.items():
        out.append(f"## tailrace {name}\n\n{sentence(entry.help)}\n\n```\n{entry.example}\n```\n")
        found = module(entry.module)
        if found is None:
            out.append("This version has no such command yet.\n")
            continue
        import typer.main

        out.append(command_options(typer.main.get_command(found.app), f"tailrace {name}"))
    out.append(
        "## Exit codes\n\n"
        + table(
            ("code", "meaning"),
            [
                (0, "done"),
                (1, "the answer is the one that `--fail-on` named"),
                (2, "usage or input error; one sentence on standard error says what to type instead"),
                (3, "inconclusive where `--fail-on inconclusive` asks, and always when the client was the limit"),
            ],
        )
    )
    return "\n".join(out)


def sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith(('?', '.')) else '.'}"


def command_options(command: Any, title: str) -> str:
    """Options and arguments of a command, or of each of its subcommands."""
    nested = getattr(command, "commands", None)
    if nested:
        return "\n".join(
            f"### {title} {name}\n\n{cell(sub.help or '')}\n\n{command_options(sub, f'{title} {name}')}"
            for name, sub in nested.items()
            if not sub.hidden
        )
    rows = []
    for param in command.params:
        if getattr(param, "hidden", False) or param.name == "help":
            continue
        spelled = ", ".join(f"`{text}`" for text in [*param.opts, *param.secondary_opts])
        if param.param_type_name == "argument":
            spelled = f"`{(param.metavar or param.name).upper()}`"
        default = param.default
        shown = "" if default is None or default is False or default == () or callable(default) else f"`{default}`"
        if shown == "``" or "UNSET" in shown.upper():
            shown = ""
        rows.append((spelled, shown, getattr(param, "help", None) or ""))
    return table(("option", "default", "meaning"), rows) if rows else "No options.\n"


def record() -> str:
    ((node, lines),) = classes(SOURCE / "model" / "record.py", ["RequestRecord"])
    out = [f"# The record\n\n{ast.get_docstring(node)}\n"]
    fields = struct_fields(node, lines)
    for group in dict.fromkeys(group for group, *_ in fields):
        rows = [(f"`{name}`", f"`{kind}`", text) for of, name, kind, _, text in fields if of == group]
        out.append(f"## {group[:1].upper()}{group[1:] or 'Version'}\n\n{table(('field', 'type', 'meaning'), rows)}")
    ((node, lines),) = classes(SOURCE / "model" / "timeline.py", ["Timeline"])
    out.append(struct_section(node, lines))
    return "\n".join(out)


def results() -> str:
    names = ("bench", "check", "compare", "compare-set", "engine-view", "demo", "diagnose", "selftest")
    head = "# Results\n\nWhat commands print with `--json`. Durations are milliseconds and say so in their name.\n"
    out = [head, "JSON Schemas: " + ", ".join(f"[{name}](schemas/{name}.json)" for name in names) + ".\n"]
    for path, structs in (
        (SOURCE / "model" / "measurement.py", None),
        (SOURCE / "model" / "finding.py", ["Diagnosis", "Finding", "Evidence"]),
        (SOURCE / "model" / "check.py", None),
    ):
        for node, lines in classes(path, structs):
            if any("StrEnum" in ast.unparse(base) for base in node.bases):
                continue
            out.append(struct_section(node, lines))
    return "\n".join(out)


def outcomes() -> str:
    from tailrace.model.outcome import REASON_KIND, OutcomeKind

    text = (SOURCE / "model" / "stage.py").read_text("utf-8")
    head = ast.get_docstring(ast.parse(text))
    out = [f"# Stages and outcomes\n\n{head}\n"]
    from tailrace.model.stage import STAGES

    out.append("Stages, in the order of a request's life: " + ", ".join(f"`{stage}`" for stage in STAGES) + ".\n")
    ((node, _),) = classes(SOURCE / "model" / "outcome.py", ["OutcomeKind"])
    out.append(f"## Outcomes\n\n{ast.get_docstring(node)}\n")
    rows = []
    for kind in OutcomeKind:
        reasons = ", ".join(f"`{reason.value}`" for reason, of in REASON_KIND.items() if of is kind and reason.value)
        rows.append((f"`{kind.value}`", reasons or "none"))
    out.append(table(("outcome", "reasons"), rows))
    return "\n".join(out)


def config() -> str:
    head = (
        "# Configuration\n\nOne YAML file, `tailrace serve -c tailrace.yaml`. Every key has a default; durations are"
        " written with their unit (`150ms`, `2s`). Editors validate it with [the JSON Schema](schemas/config.json).\n"
    )
    out = [head]
    path = SOURCE / "gateway" / "config.py"
    if not path.exists():
        return head + "\nThis version reads no file yet.\n"
    pieces = [path.with_name("config_sections.py"), *sorted(path.parent.glob("*_keys.py"), reverse=True), path]
    found = [item for file in pieces for item in classes(file) if item[0].name.endswith("Config")]
    match = classes(SOURCE / "govern" / "lane.py", ["LaneMatch"])
    for node, lines in [*reversed(found), *match]:
        rows = []
        for _, name, kind, default, text in struct_fields(node, lines):
            shown = re.sub(r"\blasting\((.+)\)", r"\1", default)
            shown = re.sub(r"^'(.*)'$", r"\1", shown)
            shown = re.sub(r"^msgspec\.field\(default_factory=(?:lambda: )?(.+)\)$", r"\1", shown)
            shown = {"list": "[]", "dict": "{}"}.get(shown, shown)
            rows.append((f"`{name}`", f"`{kind}`", f"`{duration(shown)}`" if shown else "required", text))
        out.append(
            f"## {node.name}\n\n{ast.get_docstring(node)}\n\n{table(('key', 'type', 'default', 'meaning'), rows)}"
        )
    return "\n".join(out)


def duration(text: str) -> str:
    """`2 * S` -> `2s`: a default as the file spells it."""

    def spell(found: re.Match[str]) -> str:
        seconds = eval(found[0], {"S": 1.0, "MS": 0.001})
        for size, unit in ((86400, "d"), (3600, "h"), (1, "s")):
            if seconds >= size and seconds % size == 0:
                return f"{seconds / size:g}{unit}"
        return f"{seconds * 1000:g}ms"

    text = re.sub(r"\b\d+(?: \* (?:\d+|S|MS))*? \* (?:MS|S)\b", spell, text)
    return re.sub(r"Duration\((\w+)\)", r"\1", text)


HEADERS_READ = [
    ("`x-request-id`", "kept as `client_request_id`, searchable, returned as `x-client-request-id`"),
    (
        "`traceparent`",
        "continued; a missing or malformed one starts a new trace. The engine sees it as `traces` allows",
    ),
    ("`x-tailrace-trace: 1`", "have the engine trace this request; at most `traces.per_second` of them"),
    ("`x-session-id`", "one voice or chat session"),
    ("`upgrade: websocket`", "taken up on `/v1/realtime` and `passthrough` paths, when the engine takes it up"),
    ("`x-deadline-ms`", "may only shorten a budget"),
    (
        "`cache-control`",
        "on cached routes: `no-store`, `no-cache` (a fresh answer takes the kept one's place), `max-age`",
    ),
    (
        "`server-timing`, of the answer",
        "stages of a service between us and the engine: `preprocess.retrieval;dur=12.5` (ms); relayed, too",
    ),
]
HEADERS_SET = [
    ("`x-request-id`", "ours: the key of the record; it also goes upstream"),
    ("`server-timing`", "stages known when the headers leave"),
    ("`x-tailrace-lane`", "the lane that took the request"),
    ("`x-tailrace-truncated`", "a shortened prompt: its tokens before and now, and where the count is from"),
    ("`x-tailrace-capped`", "a bounded output: tokens asked for (or `unset`), and the bound of each completion"),
    ("`x-tailrace-cache`", "on cached routes: `miss`, `hit; age=12` (s), `semantic; age=12`, `shared`"),
    ("`retry-after`", "on refusal, in seconds"),
]


def http() -> str:
    """The admin port's routes with their handlers' docstrings, and the headers of the data port."""
    out = ["# HTTP\n\n## Admin port\n\nLoopback by default. Durations are milliseconds and say so; errors are JSON.\n"]
    path = SOURCE / "gateway" / "admin.py"
    if path.exists():
        text = path.read_text("utf-8")
        docs = {
            node.name: ast.get_docstring(node) or ""
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.AsyncFunctionDef | ast.FunctionDef)
        }
        routes = re.findall(r'add_(get|post|delete)\("([^"]+)", admin\.(\w+)\)', text)
        rows = [
            (f"`{verb.upper()} {re.sub(r':[^}]*', '', where)}`", docs.get(name, "")) for verb, where, name in routes
        ]
        out.append(table(("call", "answer"), [*rows, ("`GET /`", "The page.")]))
    out.append("## Data port\n\nRequest headers that are read:\n\n" + table(("header", "meaning"), HEADERS_READ))
    out.append("Response headers that are set:\n\n" + table(("header", "meaning"), HEADERS_SET))
    return "\n".join(out)


def metrics() -> str:
    head = "# Metrics\n\nWhat the gateway's admin port answers on `/metrics`, in Prometheus text.\n"
    found = module("tailrace.export.metric_table")
    if found is None:
        return head + "\nThis version exports none yet.\n"
    rows = [
        (f"`{one.name}`", one.kind, ", ".join(f"`{label}`" for label in one.labels), one.unit, one.definition)
        for one in found.METRIC_TABLE.values()
    ]
    return head + "\n" + table(("metric", "type", "labels", "unit", "definition"), rows)


def engine_metrics() -> str:
    head = (
        "# Metrics of engines\n\nEvery name that engines are known to export. A name under an engine's prefix that is "
        "not here is reported: in the log, and as `unknown_metrics` at `GET /backends`. *Used as* names the signal "
        "that Tailrace reads from it; where a signal has several names, the first one present in a scrape counts.\n"
    )
    found = module("tailrace.engines.registry")
    if found is None:
        return head
    tallies = module("tailrace.engines.tallies")
    also: dict[str, str] = {}
    for noun, each in {**tallies.COUNTERS, **tallies.TIMINGS}.items() if tallies is not None else ():
        for alias in each.aliases:
            also.setdefault(alias.name, noun)
    out = [head]
    for engine in found.ADAPTERS.values():
        if engine.metric_names is None or (engine.name == "simulated"):
            continue
        signals = {alias.name: noun for noun, aliases in engine.signals.items() for alias in aliases}
        rows = []
        for one in engine.metric_names:
            names = [name for name in (*one.series(), one.name) if name in signals or name in also]
            used = ", ".join(dict.fromkeys(f"`{signals.get(name) or also[name]}`" for name in names))
            versions = f"{one.since} to {one.until}" if one.until else f"{one.since} and later" if one.since else ""
            rows.append((f"`{one.name}`", one.kind, one.what, versions, used))
        note = "" if engine.basis.value == "run" else " Read in source, not run."
        out.append(f"\n## {engine.title}\n\nVersions: {engine.versions}.{note}\n\n")
        out.append(table(("metric", "type", "what", "versions", "used as"), rows))
    return "".join(out)


def causes() -> str:
    head = "# Causes\n\nWhat `tailrace diagnose` can name. The layer of a code follows from its prefix.\n"
    found = module("tailrace.diagnose.causes")
    if found is None:
        return head + "\nThis version knows none yet.\n"
    from tailrace.diagnose.cause import layer_of

    out = [head]
    for cause in found.CAUSES:
        kind = type(cause)
        text = inspect.cleandoc(kind.__doc__ or sys.modules[kind.__module__].__doc__ or "")
        facts = [
            ("layer", layer_of(cause.code).value),
            ("stage", f"`{cause.stage}`"),
            ("needs", "; ".join(cause.needs)),
            ("advice", cause.action.value),
            ("would be disproved by", cause.disproof),
        ]
        if cause.only_with_before:
            facts.append(("compares", "two windows: a run from before is needed"))
        out.append(f"## {cause.code}\n\n{text}\n\n{table(('', ''), facts)}")
    return "\n".join(out)


def schemas() -> dict[str, str]:
    """JSON Schemas by file name: what commands print with `--json`, the record, and the configuration."""
    from tailrace.app.contracts import PUBLISHED, schema_of
    from tailrace.model.record import RequestRecord

    kinds: dict[str, type] = {**PUBLISHED, "record": RequestRecord}
    for name, kind in (("demo", "DemoResult"), ("selftest", "SelftestReport")):
        found = module(f"tailrace.app.{name}")
        if found is not None:
            kinds[name] = getattr(found, kind)
    made = {name: schema_of(kind) for name, kind in kinds.items()}
    workload = module("tailrace.cli.workload_file")
    if workload is not None:
        made["workload"] = workload.schema()
    rules = module("tailrace.model.rules")
    if rules is not None:
        made["compare-rules"] = rules.rules_schema()
    settings = module("tailrace.gateway.config")
    if settings is not None:
        made["config"] = settings.json_schema()
    return {f"schemas/{name}.json": json.dumps(made[name], indent=1, sort_keys=True) + "\n" for name in sorted(made)}


PAGES: dict[str, Callable[[], str]] = {
    "commands.md": commands,
    "config.md": config,
    "record.md": record,
    "outcomes.md": outcomes,
    "results.md": results,
    "http.md": http,
    "metrics.md": metrics,
    "engine-metrics.md": engine_metrics,
    "causes.md": causes,
}


def main() -> int:
    made = {name: NOTE + page().rstrip() + "\n" for name, page in PAGES.items()} | schemas()
    if "--check" in sys.argv[1:]:
        stale = [name for name, text in made.items() if not (OUT / name).exists() or (OUT / name).read_text() != text]
        for name in stale:
            print(f"docs/reference/{name} differs from the code; run `python scripts/reference.py`")
        return 1 if stale else 0
    for name, text in made.items():
        path = OUT / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
