"""Command lines as people paste them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.engines.flags.command_line import parse_command, parse_words, split_words
from tailrace.engines.flags.given import command_facts, model_of, read_command, read_words, size
from tailrace.engines.flags.tables import option_table
from tailrace.model.errors import InputError

VLLM = option_table("vllm")


def values(text):
    """Facts of a command line, values only."""
    command = read_command(text)
    return {key: fact.value for key, fact in command_facts(command, option_table(command.engine)).items()}


@pytest.mark.parametrize(
    ("text", "engine"),
    [
        ("vllm serve m", "vllm"),
        ("/opt/venv/bin/vllm serve m --port 1", "vllm"),
        ("python -m vllm.entrypoints.openai.api_server --model m", "vllm"),
        ("HF_HOME=/x CUDA_VISIBLE_DEVICES=0,1 nohup python3 -m vllm.entrypoints.openai.api_server --model m &", "vllm"),
        ("cd /srv && exec vllm serve m > out.log 2>&1", "vllm"),
        ("docker run --gpus all -v ~/.cache:/root vllm/vllm-openai:v0.11.0 --model m", "vllm"),
        ("sudo podman run -it ghcr.io/ggml-org/llama.cpp:server -m a.gguf -np 4", "llamacpp"),
        ("./build/bin/llama-server -m a.gguf -c 8192", "llamacpp"),
        ("python -m sglang.launch_server --model-path m", "sglang"),
        ("docker run lmsysorg/sglang:v0.5.3 python3 -m sglang.launch_server --model-path m", "sglang"),
        ("docker run ghcr.io/huggingface/text-generation-inference:3.3.4 --model-id m", "tgi"),
        ("tritonserver --model-repository=/models", "triton"),
        ("trtllm-serve serve m --tp_size 2", "tensorrt_llm"),
        ("--max-num-seqs 3", ""),
        ("echo vllm", ""),
    ],
)
def test_the_engine_is_found_whatever_stands_around_it(text, engine):
    assert parse_command(text).engine == engine


def test_values_are_read_in_every_spelling():
    assert values(
        "vllm serve m --max-num-seqs=64 --max_num_batched_tokens 8k --no-enable-prefix-caching -tp 2 "
        """--compilation-config '{"mode": 3}' --served-model-name a b c --enable-chunked-prefill --port 9"""
    ) == {
        "model": "m",
        "max_num_seqs": 64,
        "max_num_batched_tokens": 8000,
        "prefix_caching": False,
        "tensor_parallel": 2,
        "compilation_config": '{"mode": 3}',
        "served_model_name": "a b c",
        "chunked_prefill": True,
        "port": 9,
    }


def test_a_negative_number_is_a_value_and_no_option():
    assert (
        values("python -m sglang.launch_server --model-path m --chunked-prefill-size -1")["chunked_prefill_size"] == -1
    )


def test_the_image_tells_the_version():
    command = parse_command("docker run -e HF_TOKEN=secret vllm/vllm-openai:v0.11.0 --model m")
    assert command.version == "v0.11.0"
    assert command_facts(command, VLLM)["version"].value == "0.11.0"


def test_secrets_never_become_facts():
    facts = command_facts(read_command("vllm serve m --api-key abc --hf-token hf_x --port 1"), VLLM)
    assert "abc" not in str(facts)
    assert "hf_x" not in str(facts)
    assert facts["port"].value == 1


def test_line_ends_of_a_script_are_joined():
    assert values("vllm serve m \\\n  --max-num-seqs 8 \\\r\n  --port 1")["max_num_seqs"] == 8


def test_a_model_behind_a_switch_is_the_model_and_not_its_value():
    command = read_command("vllm serve --enforce-eager org/model")
    assert model_of(command) == "org/model"
    assert command_facts(command, VLLM)["enforce_eager"].value is True


def test_words_of_a_container_need_no_program():
    command = read_words(["--model", "m", "--max-num-seqs", "4"], image="vllm/vllm-openai:v0.22.0")
    assert (command.engine, command.version) == ("vllm", "v0.22.0")
    assert command.last("--max-num-seqs").value == "4"


def test_an_open_quote_is_an_input_error_with_a_remedy():
    with pytest.raises(InputError) as caught:
        parse_command("vllm serve 'm")
    assert caught.value.place == "--command"
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("text", "value"), [("8k", 8000), ("8K", 8192), ("1.5k", 1500), ("512", 512), ("auto", "auto")]
)
def test_sizes_are_read_as_vllm_reads_them(text, value):
    assert size(text) == value


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused_with_a_sentence(text):
    try:
        command = read_command(text)
    except InputError:
        return
    command_facts(command, option_table(command.engine))
    assert len(command.options) <= len(text)


@given(st.lists(st.text(alphabet="-=abc 1'\".", max_size=8), max_size=12))
def test_no_word_is_lost(words):
    command = parse_words(words, table=VLLM)
    environment = [f"{name}={value}" for name, value in command.environment.items()]
    said = " ".join([given.words for given in command.options] + list(command.words) + environment)
    for word in words:
        if word != "--":
            assert word in said or word.partition("=")[0] in said


def test_split_words_takes_comments_out():
    assert split_words("vllm serve m # the user's small one") == ["vllm", "serve", "m"]
    assert split_words('a#b \'#c\' "d\\"#"') == ["a#b", "#c", 'd"#']


def test_commands_before_and_after_are_others():
    command = read_command("set -e\nexport A=1 # don't\nvllm serve m --max-num-seqs 4\nsleep 1; echo done\n")
    assert (command.engine, command.words) == ("vllm", ("m",))
    assert [given.words for given in command.options] == ["--max-num-seqs 4"]


def test_lines_that_begin_with_options_go_on():
    assert values("vllm serve m\n  --max-num-seqs 4\n  --port 1")["port"] == 1
    assert values("""vllm serve m --compilation-config '{"mode":\n 3}' --port 2""")["port"] == 2


def test_a_systemd_unit():
    command = read_command(
        "[Unit]\nAfter=network.target\n[Service]\nExecStart=-/opt/bin/vllm serve m --port 5\nRestart=always\n"
    )
    assert command.engine == "vllm"
    assert command.last("--port").value == "5"
    assert command.words == ("m",)
