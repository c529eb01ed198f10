"""Tables of options, and an engine's own help as one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.engines.flags.help_text import parse_help, parse_options
from tailrace.engines.flags.option import Takes
from tailrace.engines.flags.tables import option_table

ARGPARSE = """usage: vllm serve [model_tag] [options]

options:
  --config CONFIG       Read CLI options from a config file. (default: None)
  --enable-chunked-prefill, --no-enable-chunked-prefill
                        If True, prefill requests can be chunked.
                        --not-an-option is only mentioned. (default: None)
  --scheduling-policy {fcfs,priority}
                        The scheduling policy to use. (default: fcfs)
  --tokenizer-mode ['auto', 'hf']
                        (default: auto)
  --tensor-parallel-size TENSOR_PARALLEL_SIZE, -tp TENSOR_PARALLEL_SIZE
                        Number of groups. (default: 1)
  --served-model-name SERVED_MODEL_NAME [SERVED_MODEL_NAME ...]
                        The names.
  --headless            Run in headless mode. (default: False)
  --hf-token [HF_TOKEN]
                        The token.

When passing JSON CLI arguments, the following sets of arguments are equivalent:
   --json-arg '{"key1": "value1"}'
   --json-arg.key1 value1
"""
LLAMACPP = """----- common params -----

-t,    --threads N                      number of CPU threads to use during generation (default: -1)
                                        (env: LLAMA_ARG_THREADS)
-c,    --ctx-size N                     size of the prompt context (default: 4096, 0 = loaded from model)
-b,    --batch-size N                   logical maximum batch size (default: 2048)
-fa,   --flash-attn [on|off|auto]       set Flash Attention use ('on', 'off', or 'auto', default: 'auto')
-cb,   --cont-batching, -nocb, --no-cont-batching
                                        whether to enable continuous batching (default: enabled)
--metrics                               enable prometheus compatible metrics endpoint (default: disabled)
"""
CLAP = """Text Generation Launcher

Usage: text-generation-launcher [OPTIONS]

Options:
      --model-id <MODEL_ID>
          The name of the model to load

          [env: MODEL_ID=]
          [default: bigscience/bloom-560m]

      --dtype <DTYPE>
          The dtype to be forced upon the model

          [possible values: float16, bfloat16]

      --max-concurrent-requests <MAX_CONCURRENT_REQUESTS>
          The maximum amount

          [default: 128]
  -p, --port <PORT>
          The port to listen on

          [default: 3000]
      --json-output
          Outputs the logs in JSON format
"""


def test_an_argparse_help_is_a_table():
    table = parse_help(ARGPARSE)
    assert table.engine == "vllm"
    assert len(table) == 8
    assert table.find("--not-an-option") is None
    switch = table.find("--no-enable-chunked-prefill")
    assert switch.negated
    assert switch.option.takes is Takes.SWITCH
    assert table.find("-tp").option.name == "--tensor-parallel-size"
    assert table.find("--scheduling-policy").option.choices == ("fcfs", "priority")
    assert table.find("--scheduling-policy").option.default == "fcfs"
    assert table.find("--tokenizer-mode").option.choices == ()
    assert table.find("--tokenizer-mode").option.takes is Takes.VALUE
    assert table.find("--served-model-name").option.takes is Takes.VALUES
    assert table.find("--headless").option.takes is Takes.NOTHING
    assert table.find("--hf-token").option.takes is Takes.MAYBE


def test_llama_cpp_s_own_list_is_a_table():
    table = parse_help(LLAMACPP)
    assert table.engine == "llamacpp"
    assert table.find("-t").option.name == "--threads"
    assert table.find("-b").option.default == "2048"
    assert table.find("--flash-attn").option.takes is Takes.MAYBE
    assert table.find("-nocb").option.name == "--cont-batching"
    assert table.find("--metrics").option.takes is Takes.NOTHING


def test_a_clap_help_is_a_table():
    table = parse_help(CLAP)
    assert table.engine == "tgi"
    assert table.find("-p").option.name == "--port"
    assert table.find("--max-concurrent-requests").option.default == "128"
    assert table.find("--dtype").option.choices == ("float16", "bfloat16")
    assert table.find("--json-output").option.takes is Takes.NOTHING


@pytest.mark.parametrize("text", ["", "hello\nworld", "-", "  --one  text\n", "\0\1"])
def test_what_lists_no_options_is_no_help(text):
    assert parse_help(text) is None


@given(st.text(alphabet=st.sampled_from(" \n-abc=[]{}<>,|:()'."), max_size=400))
def test_any_text_is_read_without_an_error(text):
    parse_options(text)


def test_spellings_are_taken_as_the_engine_takes_them():
    table = option_table("vllm")
    assert len(table) > 300
    assert table.find("--max_num_seqs").option.name == "--max-num-seqs"
    assert table.find("--max-num-seqs").option.takes is Takes.VALUE
    assert table.find("--compilation-config.mode").option.name == "--compilation-config"
    assert table.find("--gpu-memory-util").abbreviated
    assert table.find("--max-num") is None  # several begin so
    assert table.nearest("--max-num-sequences") == "--max-num-seqs"
    assert table.nearest("--completely-different-thing") == ""


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llamacpp", "tgi"])
def test_every_table_finds_its_own_names(engine):
    table = option_table(engine)
    for option in table.options:
        for name in (option.name, *option.aliases):
            assert table.find(name).option is option


def test_engines_without_a_list_have_no_table():
    assert option_table("triton") is None
    assert option_table("nothing") is None
