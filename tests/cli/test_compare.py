"""`tailrace compare`: arms as they are typed, forms, exit codes."""

import contextlib
import io
import json
import re
import time
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.analyze.compare import compare
from tailrace.cli import main
from tailrace.cli.compare_arms import arms_of, named
from tailrace.cli.compare_markdown import LIMIT, as_markdown, cell
from tailrace.cli.compare_render import FORMS, renderer
from tailrace.model.errors import InputError
from tailrace.model.measurement import ClientHealth, Comparison, MetricDelta, RuleResult, Verdict
from tailrace.store.run_file import RunHeader, RunTrailer, RunWriter
from tailrace.store.table import RecordTable
from tests.analyze.tables import request, table
from tests.analyze.test_compare import traffic

# The first comparison of a process loads scipy, which a busy machine takes long for.
pytestmark = pytest.mark.timeout(60)


class Ended(NamedTuple):
    """How a command ended."""

    returncode: object
    stdout: str
    stderr: str


def tailrace(*args):
    """The command in this process: each of its own would take two seconds to begin."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as ended:
        main(args)
    return Ended(ended.value.code or 0, out.getvalue(), err.getvalue())


def write(path, records, **trailer):
    with RunWriter(path, RunHeader(**trailer.pop("header", {}))) as writer:
        writer.write_all(records)
        writer.close(RunTrailer(n=len(records), duration_s=45.0, **trailer))
    return str(path)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return {
        "slow": write(folder / "slow.run", traffic(stall_ms=600, noise=1)),
        "fast": write(folder / "fast.run", traffic(noise=2)),
        "again": write(folder / "again.run", traffic(noise=3)),
        "limited": write(
            folder / "limited.run", traffic(noise=2), client=ClientHealth(limited=True, why="its loop lagged")
        ),
    }


def test_a_gain_a_loss_and_their_exit_codes(runs):
    gain = tailrace("compare", runs["slow"], runs["fast"], "--json", "--fail-on", "regressed,inconclusive")
    assert gain.returncode == 0, gain.stderr
    told = json.loads(gain.stdout)
    assert told["verdict"] == "improved"
    assert {"a", "b", "delta_pct", "ci_pct"} <= set(told["metrics"]["ttft_ms.p99"])
    assert (told["name_a"], told["name_b"]) == ("slow", "fast")
    loss = tailrace("compare", runs["fast"], runs["slow"], "--fail-on", "regressed")
    assert loss.returncode == 1
    assert loss.stdout.startswith("Regressed")
    assert tailrace("compare", runs["fast"], runs["slow"]).returncode == 0
    limited = tailrace("compare", runs["slow"], runs["limited"])
    assert limited.returncode == 3
    assert "client_limited" in limited.stdout


def test_several_arms_and_repeated_runs(runs):
    many = tailrace("compare", "base=" + runs["slow"], "new=" + runs["fast"], "other=" + runs["again"], "--json")
    assert many.returncode == 0, many.stderr
    told = json.loads(many.stdout)
    assert (told["baseline"], told["verdict"]) == ("base", "improved")
    assert [row["name"] for row in told["ranking"]][-1] == "base"
    text = tailrace("compare", "base=" + runs["slow"], "new=" + runs["fast"], "other=" + runs["again"]).stdout
    assert f"Ranked by {told['metric']}" in text
    assert "not completed" in text
    assert "…" not in text, "a number or a verdict that is cut to fit"
    reverse = ("compare", runs["slow"], runs["fast"], runs["again"], "--baseline", "fast", "--fail-on", "regressed")
    assert tailrace(*reverse).returncode == 1
    pooled = tailrace("compare", "--a", runs["slow"], "--b", runs["fast"] + "," + runs["again"], "--json")
    assert json.loads(pooled.stdout)["runs_b"] == 2


def test_rules_and_their_exit_code(runs, tmp_path):
    rules = tmp_path / "rules.yaml"
    rules.write_text("ttft_ms.p50: {max: 10s}\n")
    kept = tailrace("compare", runs["slow"], runs["fast"], "--rules", str(rules), "--fail-on", "rules")
    assert kept.returncode == 0, kept.stderr
    rules.write_text("ttft_ms.p50: {max: 1ms}\n")
    broken = tailrace("compare", runs["slow"], runs["fast"], "--rules", str(rules), "--fail-on", "rules")
    assert broken.returncode == 1
    assert "BROKEN: ttft_ms.p50 max 1ms" in broken.stdout
    rules.write_text("ttft_ms.p50: {max: 1ms\n")
    bad = tailrace("compare", runs["slow"], runs["fast"], "--rules", str(rules))
    assert bad.returncode == 2
    assert "rules.yaml:" in bad.stderr
    assert tailrace("compare", runs["slow"], runs["fast"], "--fail-on", "rules").returncode == 2


def test_the_engine_view_and_markdown_for_a_pull_request(runs):
    view = tailrace("compare", "--view", "engines", runs["slow"], runs["fast"], "--json")
    assert json.loads(view.stdout)["engines"] == ["slow", "fast"]
    page = tailrace("compare", runs["slow"], runs["fast"], "--format", "markdown").stdout
    assert page.startswith("### ✅ Improved")
    assert page.count("<details>") == page.count("</details>") > 0
    assert "| metric | A ms | B ms |" in page
    assert tailrace("compare", "--format", "html", runs["slow"], runs["fast"]).returncode == 2


def test_arms_are_named_by_their_files(tmp_path):
    for name in ("a-1.run", "a-2.run", "b-1.run", "x,y.run"):
        (tmp_path / name).touch()
    one, two = arms_of([str(tmp_path / "a-*.run"), str(tmp_path / "b-1.run")], None, None)
    assert (one.name, len(one.sources)) == ("a", 2)
    assert (two.name, len(two.sources)) == ("b-1", 1)
    comma = arms_of([str(tmp_path / "x,y.run"), "new=" + str(tmp_path / "b-1.run")], None, None)
    assert [arm.name for arm in comma] == ["x,y", "new"]
    same = arms_of(["old/bench.run", "new/bench.run"], None, None)
    assert [arm.name for arm in same] == ["old/bench.run", "new/bench.run"]
    assert named(same, "new/bench.run") == "new/bench.run"
    assert len({arm.name for arm in arms_of(["a.run", "a.run", "a.run"], None, None)}) == 3
    assert arms_of(["http://h:1/?a=b,c", "x.run"], None, None)[0].sources == ["http://h:1/?a=b,c"]


@pytest.mark.parametrize(
    ("files", "name"),
    [
        (["01-a.run", "02-a.run", "03-a.run"], "a"),
        (["fp8-10.run", "fp8-11.run"], "fp8"),
        (["a1.run", "a2.run"], "a"),
        (["x-2026-01.run", "x-2026-02.run"], "x-2026"),
        (["old.run", "new.run"], "old+1"),
    ],
)
def test_an_arm_of_several_runs_has_the_name_that_they_share(files, name):
    assert arms_of([",".join(files), "other.run"], None, None)[0].name == name


@pytest.mark.parametrize(
    ("given", "a", "b"),
    [([], None, None), (["x.run"], None, None), ([], "x.run", None), (["none-*.run", "x"], None, None)],
)
def test_what_is_no_pair_is_an_error_with_a_remedy(given, a, b):
    with pytest.raises(InputError) as error:
        arms_of(given, a, b)
    assert error.value.remedy


def test_an_unknown_baseline_lists_the_arms():
    with pytest.raises(InputError, match="Arms are x, y"):
        named(arms_of(["x.run", "y.run"], None, None), "z")


def test_every_form_prints_every_result():
    result = compare(table(traffic(noise=1)), table(traffic(noise=2)), names=("a|b", "@team/<c>"))
    for form in FORMS:
        assert renderer(form)(result).endswith("\n")


def test_long_names_cut_no_number():
    delta = MetricDelta(
        a=1280.4, b=10547.4, delta_pct=723.8, ci_pct=[-45.6, 489551.7], n_a=20000, n_b=20000, verdict=Verdict.REGRESSED
    )
    name = "a-class-with-a-long-name/longest_wait_from_schedule_ms.p99"
    out = renderer("text")(
        Comparison(
            verdict=Verdict.REGRESSED, summary="x", metrics={name: delta}, same_work={}, trade_offs=[],
            min_detectable_pct=None, n_a=20000, n_b=20000, headline=[name],
        )
    )  # fmt: skip
    for words in ("1,280.4", "10,547.4", "-45.6 to +489551.7 %", "20000/20000"):
        assert words in out, out
    assert "…" not in out


@given(st.text(max_size=40))
def test_a_cell_ends_no_cell_and_calls_nobody(text):
    out = cell(text)
    assert "\n" not in out
    assert not re.search(r"(?<!\\)(\\\\)*\|", out)
    assert not re.search(r"@\w", out)


@settings(max_examples=20)
@given(st.integers(0, 1000), st.integers(0, 400))
def test_a_comment_is_never_longer_than_a_comment_may_be(metrics, lines):
    delta = MetricDelta(a=1.0, b=2.0, delta_pct=100.0, ci_pct=[90.0, 110.0], n_a=1000, n_b=1000)
    result = Comparison(
        verdict=Verdict.INCONCLUSIVE,
        summary="x" * 300,
        metrics={f"class{i}/ttft_ms.p99": delta for i in range(metrics)},
        same_work={"changed": ["|" * 200] * lines},
        trade_offs=["*" * 200] * lines,
        min_detectable_pct=None,
        rules=[RuleResult(rule="r|", passed=None, text="t")],
    )
    page = as_markdown(result)
    assert len(page) <= LIMIT
    assert page.count("<details>") == page.count("</details>")


@pytest.mark.timeout(60)
def test_two_runs_of_20_000_requests_are_compared_in_less_than_10_cpu_seconds():
    def arm(seed):
        rng = np.random.default_rng(seed)
        gaps = rng.lognormal(3, 0.2, (1000, 40))
        first = rng.lognormal(4, 0.5, 1000)
        once = table([request(i, prefill_ms=float(first[i]), gaps_ms=gaps[i].tolist()) for i in range(1000)])
        whole = RecordTable.concat([once] * 20)
        whole.columns["start_unix_ns"] = whole.column("start_unix_ns") + np.arange(20_000) * 20_000_000
        return whole

    a, b = arm(1), arm(2)
    began = time.process_time()
    result = compare(a, b)
    assert time.process_time() - began < 10
    assert result.n_a == result.n_b == 20_000
