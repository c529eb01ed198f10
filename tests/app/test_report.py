"""The report as a file: what it says, that nothing in it can run or call out, and what it costs."""

from __future__ import annotations

import base64
import hashlib
import re
import time
from html.parser import HTMLParser

import msgspec
import pytest
from typer.testing import CliRunner

from tailrace.app.report import default_out, report
from tailrace.app.report_page import document
from tailrace.app.report_run import run_sections
from tailrace.cli.report import app
from tailrace.model.conditions import Conditions
from tailrace.model.errors import InputError
from tailrace.model.outcome import Reason
from tailrace.store.run_file import Run, RunHeader, RunWriter
from tailrace.workload.leave import Leave
from tailrace.workload.length import describe, parse_length
from tailrace.workload.traits import Traits
from tests.analyze.tables import request
from tests.app.report_runs import EVIL, a_run


class Page(HTMLParser):
    """What a browser would make of it: elements, attributes that act, text outside scripts."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self._inside = tag

    def handle_endtag(self, tag: str) -> None:
        if tag == self._inside:
            self._inside = ""

    def handle_data(self, data: str) -> None:
        if not self._inside:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def page_of(run: Run) -> str:
    sections, _ = run_sections(run)
    return document(title=run.header.target, subtitle=run.header.model, sections=sections, footer="made")


def written(path, run: Run):
    with RunWriter(path, run.header) as file:
        file.write_all(run.records)
        file.close(run.trailer)
    return path


def test_the_answer_stands_first_and_each_percentile_with_its_interval():
    run = a_run()
    text = Page(page_of(run)).text
    assert text.index("The load generator kept up") < text.index("Time to first token") < text.index("What was run")
    _, summary = run_sections(run)
    ttft = summary.from_schedule["ttft_ms"]
    low, high = ttft.ci["p99"]
    assert f"{ttft.p99:,.1f}" in text
    assert f"{low:,.1f} … {high:,.1f}" in text
    assert "n ≥ 5,000" in text  # p99.9 of 588 requests
    assert "588 completed, 12 failed (2.0 %)" in text
    assert "with its failures" in text
    assert "∞" in text


def test_classes_are_described_as_they_are_typed():
    run = a_run()
    classes = {
        "chat": {
            "weight": 0.9,
            "prompt": describe(parse_length("80~0.6")),
            "output": describe(parse_length("200-400")),
            "correlation": 0.0,
            "traits": msgspec.to_builtins(Traits(leaves=[Leave(share=0.2, tokens=5)])),
        }
    }
    text = Page(page_of(msgspec.structs.replace(run, header=msgspec.structs.replace(run.header, classes=classes)))).text
    assert "chat (weight 0.9, prompt 80~0.6 within " in text
    assert "output 200-400, with leaves share 0.2, tokens 5" in text
    assert "None" not in text


def test_what_is_unknown_is_called_unknown():
    run = a_run()
    text = Page(page_of(msgspec.structs.replace(run, header=RunHeader(conditions=Conditions())))).text
    for name in ("target", "model", "engine", "dtype", "quantisation", "GPU", "prompts", "warm-up", "command"):
        assert re.search(rf"\b{name} unknown", text), name
    cut = Page(page_of(msgspec.structs.replace(run, trailer=None, problem="line 7: cut"))).text
    assert "Part of a run only: line 7: cut" in cut
    assert "limit is unknown" in cut


def test_a_limited_client_is_the_first_thing_that_is_said():
    page = Page(page_of(a_run(limited=True)))
    assert "Client limited: these numbers are the load generator's, not the server's" in page.text
    assert page.text.index("Client limited") < page.text.index("Time to first token")
    assert any(attributes.get("role") == "alert" for _, attributes in page.elements)


def test_foreign_text_is_text():
    run = a_run(evil=True)
    page = Page(page_of(run))
    assert EVIL in page.text
    assert not [one for one in page.elements if one[0] in ("img", "iframe", "object", "link", "base")]
    assert not [name for _, attributes in page.elements for name in attributes if name.startswith("on")]
    # Our data, Plotly and our own script: hostile names have not ended one and begun another.
    assert [attributes.get("type", "") for tag, attributes in page.elements if tag == "script"] == [
        "application/json",
        "",
        "",
    ]


def test_only_its_own_scripts_may_run_and_nothing_may_be_fetched():
    text = page_of(a_run())
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1]
    allowed = set(re.findall(r"'sha256-([^']+)'", policy))
    scripts = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    assert {base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in scripts} == allowed
    assert "default-src 'none'" in policy
    assert "unsafe-inline" not in policy.partition("script-src")[2].partition(";")[0]
    for tag, attributes in Page(text).elements:
        for name in ("src", "href", "srcset", "action"):
            assert (attributes.get(name) or "#").startswith("#"), (tag, attributes)
    assert "@import" not in text.partition("<style>")[2].partition("</style>")[0]


def test_tables_are_read_without_a_script_and_each_plot_has_its_words():
    page = Page(page_of(a_run()))
    plots = [attributes for tag, attributes in page.elements if attributes.get("data-picture")]
    assert len(plots) >= 12
    for plot in plots:
        assert plot["role"] == "img"
        assert len(plot["aria-label"]) > 20
    tables = sum(tag == "table" for tag, _ in page.elements)
    assert tables == sum(tag == "caption" for tag, _ in page.elements) >= 6
    headings = [attributes for tag, attributes in page.elements if tag == "th"]
    assert all(attributes.get("scope") in ("col", "row") for attributes in headings)
    assert "chat, n 5" in page.text  # the words of a curve, where no script draws it


@pytest.mark.parametrize(
    "records",
    [
        [],
        [request(0)],
        [request(0, reason=Reason.ENGINE_UNREACHABLE)],
        [request(0, timeline=False), request(1, lane="b", stream=False, ttft_ns=None)],
        [request(i, prefill_ms=0.0) for i in range(3)],
    ],
)
@pytest.mark.parametrize("kind", ["bench", "gateway", "simulate"])
def test_small_and_odd_runs_have_a_page_too(records, kind):
    text = page_of(Run(path="x", header=RunHeader(kind=kind), records=records))
    assert "</html>" in text
    assert "nan" not in Page(text).text.lower().split()


def test_the_command_writes_the_file_and_tells_its_summary(tmp_path):
    run = written(tmp_path / "a.run", a_run(200))
    out = tmp_path / "page.html"
    done = CliRunner().invoke(app, [str(run), "--out", str(out), "--json", "--trim", "1s"])
    assert done.exit_code == 0, done.output
    told = msgspec.json.decode(done.stdout)
    assert told["out"] == str(out)
    assert told["bytes"] == out.stat().st_size < 6_500_000
    assert "without the first 1 s" in told["summary"]["window"]
    assert "Steady part only" in out.read_text(encoding="utf-8")


def test_bad_places_are_refused(tmp_path):
    run = written(tmp_path / "a.run", a_run(20))
    with pytest.raises(InputError, match="would replace what is read"):
        report(str(run), out=run)
    with pytest.raises(InputError, match="cannot write"):
        report(str(run), out=tmp_path / "no" / "where.html")
    assert default_out("runs/before.run") == "before.html"
    assert default_out("sweeps/first/") == "first.html"
    assert default_out("http://127.0.0.1:9480") == "report.html"


def test_another_tools_summary_has_its_numbers_and_no_intervals(tmp_path):
    """What `vllm bench serve` prints at its end, as people paste it."""
    console = tmp_path / "theirs.txt"
    console.write_text(
        "============ Serving Benchmark Result ============\n"
        "Successful requests:                     400\n"
        "Benchmark duration (s):                  80.00\n"
        "Request throughput (req/s):              5.00\n"
        "---------------Time to First Token----------------\n"
        "Mean TTFT (ms):                          210.50\n"
        "Median TTFT (ms):                        180.25\n"
        "P99 TTFT (ms):                           4321.00\n",
        encoding="utf-8",
    )
    made = report(str(console), out=tmp_path / "theirs.html")
    assert made.summary.metrics["ttft_ms"].p99 == 4321.0
    text = Page((tmp_path / "theirs.html").read_text(encoding="utf-8")).text
    assert "Only a summary by vllm is left of this run" in text
    assert "4,321.0" in text
    assert "granularity percentiles of all requests together, no request" in text


@pytest.mark.tier("ci")
@pytest.mark.long("a run of 20,000 requests is made first", timeout=60)
def test_a_run_of_20_000_requests_costs_under_10_s_and_little_room(tmp_path):
    run = written(tmp_path / "big.run", a_run(20_000, tokens=100))
    before = time.process_time()
    made = report(str(run), out=tmp_path / "big.html")
    assert time.process_time() - before < 10.0
    assert made.bytes < 6_500_000
    assert made.summary.metrics["chunk_gap_ms"].n > 1_500_000
    text = Page((tmp_path / "big.html").read_text(encoding="utf-8")).text
    assert "are drawn: the slowest, and an even sample of the rest" in text
