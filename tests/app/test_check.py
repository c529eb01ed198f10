"""`tailrace check` over files and live servers: what was read, what was found, exit codes."""

import io
import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import jsonschema
import pytest
import typer

from tailrace.app.check import CheckRequest, check
from tailrace.app.check_source import Kind, kind_of
from tailrace.app.contracts import PUBLISHED, schema_of
from tailrace.cli.check import check as command
from tailrace.diagnose.readers.source import kind_of as evidence_kind_of
from tailrace.model.check import Weight
from tailrace.model.errors import InputError
from tests.children import child_env, tailrace_command

LOG = """(APIServer pid=7) INFO 11-29 11:21:11 [api_utils.py:286] non-default args: {'model': 'm', 'max_num_seqs': 16}
(EngineCore pid=8) INFO 11-29 11:21:21 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: model='m', \
dtype=torch.bfloat16, max_seq_len=4096
(EngineCore pid=8) INFO [kv_cache_utils.py:2327] GPU KV cache size: 2,560 tokens, Maximum concurrency for 4,096 tokens \
per request: 0.62x
"""


def run(*arguments):
    """The command as users type it."""
    return subprocess.run(
        tailrace_command("check", *arguments), env=child_env(), capture_output=True, text=True, check=False
    )


def codes(report, weight=None):
    return {one.code for one in report.findings if weight is None or one.weight is weight}


def settings(report, name=0):
    return {one.key: one.value for one in report.engines[name].settings}


@pytest.fixture
def write(tmp_path):
    def put(name: str, text: str | bytes) -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(path)

    return put


# -- sources by their content


K8S = """apiVersion: apps/v1
kind: Deployment
spec:
  template:
    spec:
      containers:
        - name: sidecar
          image: nginx
        - name: llm
          image: vllm/vllm-openai:v0.11.0
          args: ["--model", "org/m", "--max-num-seqs=64", "--num-scheduler-steps", "8"]
"""
COMPOSE = """services:
  llm:
    image: vllm/vllm-openai:v0.22.0
    command: --model org/m --max-num-seqs 32 --max-num-queued-reqs 4
"""
SHELL = """containers:
  - name: a
    image: registry.example/own:1
    command: ["bash", "-c"]
    args: ["exec vllm serve org/m --max-num-seqs 12 > /log"]
"""


def test_a_kubernetes_file(write):
    report = check(CheckRequest(sources=[write("k.yaml", K8S)]))
    assert [one.name for one in report.engines] == ["llm"]
    assert report.engines[0].version == "0.11.0"
    assert settings(report)["max_num_seqs"] == 64
    assert "OPTION_REMOVED" in codes(report, Weight.ERROR)


def test_a_command_line_needs_no_option_before_it(write):
    line = "vllm serve org/m --max-num-seqs 12 --served-model-name " + "m" * 300
    assert kind_of(line) is Kind.COMMAND_LINE
    report = check(CheckRequest(sources=[line]))
    assert settings(report)["max_num_seqs"] == 12
    log = write("vllm serve.log", LOG)
    assert kind_of(log) is Kind.LOG
    with pytest.raises(InputError, match="no such file"):
        kind_of("my notes.txt")


def test_a_compose_file_and_a_shell_inside_a_container(write):
    report = check(CheckRequest(sources=[write("compose.yml", COMPOSE)]))
    assert settings(report)["max_num_seqs"] == 32
    assert "OPTION_TOO_NEW" in codes(report)
    report = check(CheckRequest(sources=[write("pod.yaml", SHELL)]))
    assert settings(report)["max_num_seqs"] == 12


def test_aliases_that_multiply_cost_nothing(write):
    lines = ["a0: &a0 [x, x]"]
    lines += [f"a{number}: &a{number} [{', '.join([f'*a{number - 1}'] * 9)}]" for number in range(1, 30)]
    lines += ["image: vllm/vllm-openai:v0.32.0", "args: [--model, m, --max-num-seqs, '3']"]
    assert settings(check(CheckRequest(sources=[write("bomb.yaml", "\n".join(lines))])))["max_num_seqs"] == 3


@pytest.mark.parametrize("end", ["", "image: vllm/vllm-openai:v0.32.0\ncommand: *a19\n", "b: &b [*b]\n"])
def test_an_option_that_aliases_make_endless_is_refused(write, end):
    lines = ["a0: &a0 [x, x]"]
    lines += [f"a{number}: &a{number} [{', '.join([f'*a{number - 1}'] * 9)}]" for number in range(1, 20)]
    lines = lines if "b:" not in end else []
    with pytest.raises(InputError, match="aliases"):
        check(CheckRequest(sources=[write("bomb.yaml", "\n".join([*lines, end]))]))


def test_a_pipe_that_nobody_writes_to_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for look in (kind_of, evidence_kind_of):
        with pytest.raises(InputError, match="no regular file"):
            look(str(tmp_path / "pipe") if look is kind_of else tmp_path / "pipe")


def test_nothing_that_is_known_is_not_called_good():
    with pytest.raises(InputError, match="empty"):
        check(CheckRequest(commands=[" "]))
    report = check(CheckRequest(commands=["foo bar"]))
    assert "nothing to change" not in report.summary
    assert report.not_understood


def test_an_engine_s_own_file_of_options(write):
    source = write("vllm.yaml", "model: org/m\nmax-num-seqs: 24\nenable-prefix-caching: true\n")
    report = check(CheckRequest(sources=[source], engine="vllm"))
    assert settings(report)["max_num_seqs"] == 24
    assert settings(report)["prefix_caching"] is True


def test_a_script_is_a_command_line(write):
    script = write("start.sh", "#!/bin/bash\nset -e\nexport A=1\nvllm serve org/m \\\n  --max-num-seqs 7\n")
    report = check(CheckRequest(sources=[script]))
    assert settings(report)["max_num_seqs"] == 7


def test_a_log(write):
    report = check(CheckRequest(sources=[write("vllm.log", LOG)]))
    assert report.engines[0].version == "0.32.0"
    assert report.engines[0].version_source == "vllm.log:2"
    assert "CONTEXT_ABOVE_KV" in codes(report, Weight.ERROR)


def test_what_was_asked_for_and_what_runs(write):
    report = check(CheckRequest(sources=[write("vllm.log", LOG)], commands=["vllm serve m --max-num-seqs 256"]))
    assert len(report.engines) == 1
    assert settings(report)["max_num_seqs"] == 16
    assert "FLAG_NOT_IN_FORCE" in codes(report, Weight.WARNING)
    said = next(one for one in report.engines[0].settings if one.key == "max_num_seqs")
    assert said.contradicts == "256 (command line: --max-num-seqs)"


def test_a_triton_repository(write, tmp_path):
    write("repo/a/config.pbtxt", 'backend: "python" max_batch_size: 4 dynamic_batching { priority_levels: 2 }')
    write("repo/b/config.pbtxt", 'name: "b" backend: "python" max_batch_size: 0')
    report = check(CheckRequest(sources=[str(tmp_path / "repo")]))
    assert "QUEUE_POLICY_STALLS" in codes(report)
    assert any(one.subject.startswith("a:") for one in report.findings)


def test_a_help_text_decides_what_exists(write):
    text = "usage: vllm serve\n\noptions:\n" + "".join(f"  --x{number} X\n" for number in range(25))
    source = write("help.txt", text)
    assert kind_of(source) is Kind.HELP
    report = check(CheckRequest(sources=[source], commands=["vllm serve m --x1 2 --max-num-seqs 3"]))
    assert [one.subject for one in report.findings if one.code == "OPTION_UNKNOWN"] == ["--max-num-seqs"]


def test_the_help_of_a_program_is_asked_for(write):
    program = write(
        "engine.py", "print('usage: vllm serve')\nprint('options:')\nfor n in range(25): print(f'  --x{n} X')\n"
    )
    report = check(CheckRequest(commands=["vllm serve m --x30 2"], help_of=f"{sys.executable} {program}"))
    assert "OPTION_UNKNOWN" in codes(report, Weight.ERROR)
    with pytest.raises(InputError, match="no program"):
        check(CheckRequest(commands=["vllm serve m"], help_of="/nowhere/vllm"))
    with pytest.raises(InputError, match="lists no options"):
        check(CheckRequest(commands=["vllm serve m"], help_of=f"{sys.executable} -c pass"))


def test_variables_are_options_too(write):
    text = (
        "docker run -e LLAMA_ARG_CTX_SIZE=4096 --env=LLAMA_ARG_N_PARALLEL=4 ghcr.io/ggml-org/llama.cpp:server -m a.gguf"
    )
    report = check(CheckRequest(commands=[text]))
    assert (settings(report)["ctx_size"], settings(report)["slots"]) == (4096, 4)
    assert "1,024 tokens in 4 slots" in next(one for one in report.findings if one.code == "SLOT_CONTEXT").statement
    pod = """containers:
  - name: tgi
    image: ghcr.io/huggingface/text-generation-inference:3.3.4
    env:
      - {name: MAX_INPUT_TOKENS, value: "4096"}
      - {name: MAX_TOTAL_TOKENS, value: "4096"}
      - {name: HF_TOKEN, value: hush}
    args: ["--model-id", "org/m"]
"""
    report = check(CheckRequest(sources=[write("pod.yaml", pod)]))
    assert "INPUT_ABOVE_TOTAL" in codes(report)
    assert "hush" not in str(report)


@pytest.mark.needs("shared")
def test_a_saved_scrape(shared):
    report = check(CheckRequest(sources=[str(shared / "data" / "engine_samples" / "vllm" / "metrics_0.32.0.prom")]))
    assert report.engines[0].engine == "vllm"
    assert settings(report)["kv_tokens"] == 2097152
    assert {"METRIC_BUCKETS_COARSE", "KV_CAPACITY"} <= codes(report)


def test_a_file_of_options_that_a_command_names_is_asked_for():
    report = check(CheckRequest(commands=["vllm serve m --config big.yaml"]))
    assert any("big.yaml" in need for need in report.needs)
    report = check(CheckRequest(commands=["--max-num-seqs 4"]))
    assert any("--engine" in note for note in report.not_understood)
    assert settings(check(CheckRequest(commands=["--max-num-seqs 4"], engine="vllm")))["max_num_seqs"] == 4


def test_a_model_s_configuration_and_a_card(write):
    source = write(
        "config.json",
        json.dumps(
            {
                "num_hidden_layers": 32,
                "hidden_size": 4096,
                "num_attention_heads": 32,
                "num_key_value_heads": 8,
                "intermediate_size": 14336,
                "vocab_size": 128256,
            }
        ),
    )
    report = check(CheckRequest(model_config=source, gpu="rtx-4090", dtype="bf16"))
    assert "MODEL_FITS" in codes(report)
    report = check(CheckRequest(model_size="70b", gpu="a100-80g", dtype="bf16"))
    assert "MODEL_DOES_NOT_FIT" in codes(report, Weight.ERROR)


# -- a gateway's configuration


def test_a_gateway_s_configuration_against_its_engine(write):
    source = write(
        "tailrace.yaml",
        "backends: [{name: a, url: 'http://127.0.0.1:1'}]\n"
        "lanes: [{name: default, running: 256}]\n"
        "budgets: {first_token: 300ms}\n"
        "objectives: {ttft_p99: 500ms}\n",
    )
    report = check(CheckRequest(sources=[source], commands=["vllm serve m --max-num-seqs 16"]))
    assert {"CONFIG_LANES_ABOVE_ENGINE", "CONFIG_BUDGET_BELOW_OBJECTIVE"} <= codes(report, Weight.WARNING)
    lanes = next(one for one in report.findings if one.code == "CONFIG_LANES_ABOVE_ENGINE")
    assert lanes.advice == "total_running: 16"


def test_a_configuration_that_is_refused_is_an_error_finding(write):
    report = check(CheckRequest(sources=[write("t.yaml", "listen: 127.0.0.1:1\nlanez: []\n")]))
    assert codes(report) == {"CONFIG_REFUSED"}
    assert report.findings[0].advice


# -- bad input


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("a.log", b"", "empty"),
        ("b.log", b"   \n\n", "empty"),
        ("c.bin", b"\x7fELF\0\0\1\2", "binary"),
        ("config.pbtxt", b"x {", "missing"),
        ("d.pbtxt", b"a: 1", "no Triton"),
        ("e.yaml", b"- [", "no YAML"),
        ("f.yaml", b"- 1", "no configuration"),
        ("deep.json", b'{"num_hidden_layers":' * 5000, "no JSON"),
        ("g.log", b"just words\nand more\n", "no engine"),
    ],
)
def test_bad_input_is_refused_with_a_sentence(write, name, data, words):
    with pytest.raises(InputError) as caught:
        check(CheckRequest(sources=[write(name, data)]))
    assert words in str(caught.value)


def test_what_is_not_there():
    with pytest.raises(InputError, match="no such file"):
        check(CheckRequest(sources=["/nowhere/x.log"]))
    with pytest.raises(InputError, match="unknown card"):
        check(CheckRequest(commands=["vllm serve m"], gpu="abacus"))
    with pytest.raises(InputError, match="unknown engine"):
        check(CheckRequest(commands=["vllm serve m"], engine="abacus"))
    with pytest.raises(InputError, match="unknown size"):
        check(CheckRequest(commands=["vllm serve m"], model_size="huge"))
    with pytest.raises(InputError, match="unknown precision"):
        check(CheckRequest(commands=["vllm serve m"], dtype="bf17"))


def test_nobody_answers(free_port):
    with pytest.raises(InputError, match="nobody answers"):
        check(CheckRequest(sources=[f"http://127.0.0.1:{free_port}"]))


# -- the command


def test_exit_codes_and_what_is_printed(write):
    done = run("--command", "vllm serve m --enable-chunked-prefill auto", "--fail-on", "error")
    assert done.returncode == 1, done.stderr
    assert "CHUNKED_PREFILL_VALUE" in done.stdout
    assert "--enable-chunked-prefill auto" not in done.stdout
    assert "--custom-histogram-buckets '{" in done.stdout
    done = run(write("b.bin", b"\0\1"))
    assert done.returncode == 2
    assert done.stderr.startswith("tailrace check: ")
    assert "Traceback" not in done.stderr


def test_json_is_what_the_schema_says(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(LOG.encode())))
    with pytest.raises(typer.Exit) as ended:
        command(["-"], command=["vllm serve m --max-num-seqs 256"], as_json=True, fail_on="warning")
    assert ended.value.exit_code == 1
    report = json.loads(capsys.readouterr().out)
    jsonschema.validate(report, schema_of(PUBLISHED["check"]))
    assert report["schema"] == 1
    weights = [one["weight"] for one in report["findings"]]
    assert weights == sorted(weights, key=["error", "warning", "advice", "info"].index)
    assert sum(report["counts"].values()) == len(weights)
    assert {one["source"] for one in report["engines"][0]["settings"]} >= {"stdin:1", "default of vllm 0.32.0"}


@pytest.mark.parametrize(("fail_on", "code"), [(None, None), ("error", None), ("warning", 1)])
def test_fail_on_looks_at_the_worst_weight(write, capsys, fail_on, code):
    """This command line has a warning (buckets), and no error."""
    given = {"command": ["vllm serve m --max-num-seqs 4"], "as_json": True, "fail_on": fail_on}
    if code is None:
        command(**given)
    else:
        with pytest.raises(typer.Exit) as ended:
            command(**given)
        assert ended.value.exit_code == code
    assert json.loads(capsys.readouterr().out)["counts"]["error"] == 0


def test_usage_errors():
    with pytest.raises(InputError, match="nothing to look at"):
        command()
    with pytest.raises(InputError, match="no answer"):
        command(command=["vllm serve m"], fail_on="advice")


# -- live


@pytest.mark.long("starts an engine and a gateway, on machines that do other things too", timeout=60)
def test_the_simulated_engine_and_a_gateway_in_front(start_tailrace, tmp_path):
    engine = start_tailrace(
        *("engine", "--port", "0", "--max-num-seqs", "16", "--no-chunked-prefill"),
        *("--max-num-batched-tokens", "40960", "--json"),
    )
    gateway = start_tailrace(
        *("serve", "--upstream", engine.url, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"),
        *("--data-dir", str(tmp_path / "data"), "--json"),
    )
    body = {"model": engine.ready["model"], "max_tokens": 4, "messages": [{"role": "user", "content": "word " * 400}]}
    for _ in range(4):
        request = urllib.request.Request(
            f"{gateway.url}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert answer.status == 200
    report = check(CheckRequest(sources=[gateway.ready["admin"]]))
    assert {one.engine for one in report.engines} == {"simulated", "gateway"}
    assert "CONFIG_LANES_ABOVE_ENGINE" in codes(report)
    capacity = next(one for one in report.findings if one.code == "KV_CAPACITY")
    assert any(item.source == f"{gateway.ready['admin']}/records" for item in capacity.evidence)

    records = tmp_path / "records.jsonl"
    with urllib.request.urlopen(f"{gateway.ready['admin']}/records?since=0&limit=100", timeout=30) as answer:
        records.write_bytes(answer.read())
    report = check(CheckRequest(sources=[engine.url], lengths=str(records)))
    said = settings(report)
    assert said["max_num_seqs"] == 16
    assert said["chunked_prefill"] is False
    assert {one.source for one in report.engines[0].settings if one.key == "max_num_seqs"} == {"/knobs: max_num_seqs"}
    assert {"CHUNKED_PREFILL_OFF", "METRIC_BUCKETS_COARSE", "KV_CAPACITY"} <= codes(report)


def test_the_paths_of_messages_are_files(write):
    """A source in evidence names the file and the line."""
    report = check(CheckRequest(sources=[write("vllm.log", LOG)]))
    sources = {item.source for one in report.findings for item in one.evidence}
    assert "vllm.log:3" in sources
    assert not any(Path(source).is_absolute() for source in sources)
