"""All formats of foreign evidence, in the order in which they are tried: the particular before the general."""

from __future__ import annotations

from typing import Final

from tailrace.diagnose.readers.chunks import CHUNKS
from tailrace.diagnose.readers.cpu_stat import CPU_STAT
from tailrace.diagnose.readers.deploy_yaml import DEPLOY_YAML
from tailrace.diagnose.readers.engine_settings import ENGINE_COMMAND, TRITON_MODEL
from tailrace.diagnose.readers.facts import FACTS, OWN_JSON
from tailrace.diagnose.readers.format import Format
from tailrace.diagnose.readers.http_load import HTTP_LOAD
from tailrace.diagnose.readers.json_numbers import JSON_NUMBERS
from tailrace.diagnose.readers.json_rows import JSON_ROWS
from tailrace.diagnose.readers.keyed_log import KEYED_LOG
from tailrace.diagnose.readers.logs.log import LOG
from tailrace.diagnose.readers.nginx_conf import NGINX_CONF
from tailrace.diagnose.readers.nvidia_smi_q import NVIDIA_SMI_DMON, NVIDIA_SMI_Q
from tailrace.diagnose.readers.nvidia_smi_table import NVIDIA_SMI_TABLE
from tailrace.diagnose.readers.option_files import OPTION_FILE
from tailrace.diagnose.readers.otlp_traces import OTLP_TRACES
from tailrace.diagnose.readers.pyspy import PYSPY
from tailrace.diagnose.readers.pyspy_top import PYSPY_TOP
from tailrace.diagnose.readers.python_client import PYTHON_CLIENT
from tailrace.diagnose.readers.requests import REQUESTS
from tailrace.diagnose.readers.response_headers import RESPONSE_HEADERS
from tailrace.diagnose.readers.speech_events import SPEECH_EVENTS
from tailrace.diagnose.readers.text import TEXT
from tailrace.diagnose.readers.timeseries import TIMESERIES
from tailrace.diagnose.readers.trtllm_stats import TRTLLM_STATS
from tailrace.diagnose.readers.voice_payload import VOICE_PAYLOAD
from tailrace.diagnose.readers.whisper_streaming import WHISPER_STREAMING

__all__ = ["FORMATS", "format_of"]

FORMATS: Final[tuple[Format, ...]] = (
    CPU_STAT,
    NVIDIA_SMI_Q,
    NVIDIA_SMI_DMON,
    NVIDIA_SMI_TABLE,
    PYSPY,
    PYSPY_TOP,
    WHISPER_STREAMING,
    OTLP_TRACES,
    TRTLLM_STATS,
    SPEECH_EVENTS,
    VOICE_PAYLOAD,
    CHUNKS,
    REQUESTS,
    TIMESERIES,
    FACTS,
    # -- configuration
    RESPONSE_HEADERS,
    NGINX_CONF,
    PYTHON_CLIENT,
    TRITON_MODEL,
    ENGINE_COMMAND,
    DEPLOY_YAML,
    OPTION_FILE,
    # -- logs before text: the container's name and a bar before each line make no table of them
    LOG,
    HTTP_LOAD,
    # -- what any JSON and any text may hold, at last: requests, chunks, series and logs are told before
    OWN_JSON,
    JSON_NUMBERS,
    JSON_ROWS,
    KEYED_LOG,
    TEXT,
)


def format_of(head: str, name: str) -> Format | None:
    """The first format that recognises the beginning of a file; `None` when none does."""
    return next((item for item in FORMATS if item.matches(head, name)), None)
