"""Options that an engine refuses: every trap of its history, by version."""

import msgspec
import pytest

from tailrace.engines.flags.help_text import parse_help
from tailrace.engines.flags.version import Version, parse_version
from tailrace.engines.flags.vllm_history import CHANGES, Fate, default_batch, default_chunked_prefill
from tailrace.model.check import Weight
from tests.engines.advice.cases import command_case, findings

AUTO = ("vllm serve m --enable-chunked-prefill auto", "vllm serve m --enable-chunked-prefill=auto")


@pytest.mark.parametrize("text", AUTO)
@pytest.mark.parametrize(
    ("version", "instead"),
    [
        ("0.32.0", "`--enable-chunked-prefill`, or nothing at all"),
        ("0.8.5", "V1 has it on"),
        ("0.6.6", "`--enable-chunked-prefill true`"),
    ],
)
def test_chunked_prefill_auto_is_an_error_in_every_version(text, version, instead):
    finding = findings(command_case(text, version=version))["CHUNKED_PREFILL_VALUE"]
    assert finding.weight is Weight.ERROR
    assert instead in finding.advice


@pytest.mark.parametrize("text", AUTO)
@pytest.mark.parametrize("version", ["", "0.32.0", "0.11.0", "0.6.6"])
def test_chunked_prefill_auto_is_never_printed(text, version):
    printed = msgspec.json.encode(list(findings(command_case(text, version=version)).values())).decode()
    assert "--enable-chunked-prefill auto" not in printed
    assert "--enable-chunked-prefill=auto" not in printed


def test_true_was_right_in_0_6_6_and_is_wrong_today():
    text = "vllm serve m --enable-chunked-prefill true"
    old = findings(command_case(text, version="0.6.6"))
    assert "CHUNKED_PREFILL_VALUE" not in old
    assert old["OPTION_VALUE"].weight is Weight.INFO
    assert findings(command_case(text, version="0.32.0"))["CHUNKED_PREFILL_VALUE"].weight is Weight.ERROR


def test_the_switch_alone_is_right():
    for text in ("vllm serve m --enable-chunked-prefill", "vllm serve --enable-chunked-prefill org/model"):
        found = findings(command_case(text, version="0.32.0"))
        assert not [one for one in found.values() if one.weight is Weight.ERROR]


@pytest.mark.parametrize(
    ("option", "version", "fate"),
    [
        ("--max-num-partial-prefills", "0.6.6", Fate.NOT_YET),
        ("--max-num-partial-prefills", "0.22.0", Fate.THERE),
        ("--max-num-partial-prefills", "0.25.0", Fate.UNSURE),
        ("--max-num-partial-prefills", "0.32.0", Fate.GONE),
        ("--max-long-partial-prefills", "0.32.0", Fate.GONE),
        ("--num-scheduler-steps", "0.8.5", Fate.THERE),
        ("--num-scheduler-steps", "0.11.0", Fate.GONE),
        ("--scheduler-delay-factor", "0.11.0", Fate.GONE),
        ("--preemption-mode", "0.11.0", Fate.GONE),
        ("--swap-space", "0.16.0", Fate.THERE),
        ("--swap-space", "0.22.0", Fate.GONE),
        ("--disable-log-requests", "0.11.0", Fate.THERE),
        ("--disable-log-requests", "0.32.0", Fate.GONE),
        ("--enable-log-requests", "0.11.0", Fate.THERE),
        ("--max-num-queued-reqs", "0.22.0", Fate.NOT_YET),
        ("--max-num-queued-reqs", "0.32.0", Fate.THERE),
        ("--max-num-queued-tokens", "0.22.0", Fate.NOT_YET),
        ("--max-num-active-seqs", "0.22.0", Fate.NOT_YET),
        ("--enable-per-request-metrics", "0.22.0", Fate.NOT_YET),
        ("--custom-histogram-buckets", "0.16.0", Fate.NOT_YET),
        ("--sse-keep-alive-interval", "0.22.0", Fate.NOT_YET),
    ],
)
def test_what_a_version_does_with_an_option(option, version, fate):
    assert CHANGES[option].fate(parse_version(version)) is fate
    code = {Fate.GONE: "OPTION_REMOVED", Fate.NOT_YET: "OPTION_TOO_NEW", Fate.UNSURE: "OPTION_UNSURE"}.get(fate)
    value = "" if option.startswith(("--enable", "--disable")) else " 4"
    found = findings(command_case(f"vllm serve m {option}{value}", version=version))
    named = {one.code for one in found.values() if one.subject == option} & {
        "OPTION_REMOVED",
        "OPTION_TOO_NEW",
        "OPTION_UNSURE",
    }
    assert named == ({code} if code else set())
    if code:
        assert found[code].advice


def test_every_option_that_is_gone_is_not_in_today_s_list():
    case = command_case("vllm serve m")
    for name, change in CHANGES.items():
        assert (name in case.table) is (change.fate(Version(0, 32)) is Fate.THERE), name


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("--max-num-sequences 4", "OPTION_UNKNOWN", "Meant perhaps: --max-num-seqs"),
        ("--bogus", "OPTION_UNKNOWN", "has no option --bogus"),
        ("--max-num-seqs many", "OPTION_VALUE", "takes a whole number"),
        ("--scheduling-policy lifo", "OPTION_VALUE", "does not take 'lifo'"),
        ("--max-num-seqs", "OPTION_VALUE", "wants a value"),
        ("--enforce-eager=true", "OPTION_VALUE", "takes no value"),
        ("--enable-prefix-caching false", "OPTION_VALUE", "takes no value"),
    ],
)
def test_slips_are_errors_with_what_was_meant(text, code, words):
    finding = findings(command_case(f"vllm serve m {text}", version="0.32.0"))[code]
    assert finding.weight is Weight.ERROR
    assert words in finding.statement


def test_an_unknown_option_of_a_version_without_a_list_is_only_a_warning():
    finding = findings(command_case("vllm serve m --bogus 1", version="0.11.0"))["OPTION_UNKNOWN"]
    assert finding.weight is Weight.WARNING
    assert "--help-of vllm" in finding.advice


def test_the_engine_s_own_help_decides():
    """An option that our list of 0.32.0 lacks, and one that it has: what --help says holds."""
    table = parse_help(
        "usage: vllm serve\n\noptions:\n  --swap-space SWAP_SPACE\n                        (default: 4)\n"
        + "".join(f"  --x{number} X\n" for number in range(9))
    )
    case = command_case("vllm serve m --swap-space 4 --max-num-seqs 3", version="0.32.0")
    case.table, case.helped = table, True
    found = [one for one in findings(case).values() if one.code.startswith("OPTION")]
    assert [(one.code, one.subject) for one in found] == [("OPTION_UNKNOWN", "--max-num-seqs")]


def test_given_twice_and_abbreviated():
    found = findings(command_case("vllm serve m --max-num-seqs 4 --max-num-seq 8", version="0.32.0"))
    assert found["OPTION_TWICE"].weight is Weight.WARNING
    assert found["OPTION_ABBREVIATED"].advice == "Write --max-num-seqs."


def test_the_model_belongs_first():
    assert "OPTION_RENAMED" in findings(command_case("vllm serve --model m", version="0.32.0"))
    assert "OPTION_RENAMED" not in findings(command_case("python -m vllm.entrypoints.openai.api_server --model m"))


def test_other_engines_get_guesses_not_verdicts():
    found = findings(command_case("python -m sglang.launch_server --model-path m --chunked-prefil-size 4096"))
    assert found["OPTION_UNKNOWN"].weight is Weight.WARNING
    assert "--chunked-prefill-size" in found["OPTION_UNKNOWN"].statement


def test_defaults_by_version_and_card():
    assert default_chunked_prefill(parse_version("0.6.6")) is False
    assert default_chunked_prefill(parse_version("0.8.5")) is None
    assert default_chunked_prefill(parse_version("0.32.0")) is True
    assert default_batch(79, a100=True, cpu=False) == (2048, 256)
    assert default_batch(79, a100=False, cpu=False) == (8192, 1024)
    assert default_batch(178, a100=False, cpu=False) == (16384, 1024)
    assert default_batch(None, a100=False, cpu=True) == (2048, 128)
    assert default_batch(None, a100=False, cpu=False) is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("--max-num-seqs 0", "begins at 1"),
        ("--tensor-parallel-size 0", "begins at 1"),
        ("--max-model-len -5", "leaves no room"),
        ("--gpu-memory-utilization 1e999", "at most 1"),
        ("--gpu-memory-utilization 90", "at most 1"),
    ],
)
def test_numbers_that_no_engine_can_work_with(text, words):
    found = findings(command_case(f"vllm serve m {text}"))["OPTION_VALUE"]
    assert found.weight is Weight.WARNING
    assert words in found.statement


@pytest.mark.parametrize(
    "text",
    ["--max-model-len -1", "--max-model-len auto", "--gpu-memory-utilization 1", "--long-prefill-token-threshold 0"],
)
def test_numbers_with_a_meaning_of_their_own_are_left_alone(text):
    assert "OPTION_VALUE" not in findings(command_case(f"vllm serve m {text}"))
