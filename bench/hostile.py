"""What an answer to 10 MB of one kind costs, whole command with its imports: usual pastes, and what nobody should give.

    python bench/hostile.py [--mb 10] [--only WORD]

Each kind is a file of `--mb` megabytes that `tailrace diagnose FILE --json` answers in a process of its own. The figures
are CPU time (user and system) and the peak of resident memory. The first answer to a paste has 2 s.
"""
# ruff: noqa: E501  (a kind is a line)

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

BUDGET_S = 2.0
"""Whole command, for what people paste. What no person makes may take longer, but not much."""

Pieces = Iterator[str]
"""Pieces of text without end; the first one begins the file."""


def forever(piece: str, first: str = "") -> Callable[[], Pieces]:
    def made() -> Pieces:
        yield first
        while True:
            yield piece * 500

    return made


def each(line: Callable[[int], str], first: str = "") -> Callable[[], Pieces]:
    def made() -> Pieces:
        yield first
        yield from map(line, itertools.count())

    return made


def closed(first: str, item: Callable[[int], str], count: int, last: str) -> Callable[[], Pieces]:
    """So many items between two texts."""
    return lambda: iter([first, ",".join(map(item, range(count))), last])


def stamp(index: int) -> str:
    return f"06-{index // 86400 % 28 + 1:02d} {index // 3600 % 24:02d}:{index // 60 % 60:02d}:{index % 60:02d}"


def load(index: int, engine: int = 0) -> str:
    return (
        f"(APIServer pid=434) INFO {stamp(index * 10)} [loggers.py:271] Engine {engine:03d}: Avg prompt throughput: "
        f"{index % 977 * 1.7:.1f} tokens/s, Avg generation throughput: {index % 499 * 2.3:.1f} tokens/s, Running: "
        f"{index % 40} reqs, Waiting: {index % 3} reqs, GPU KV cache usage: {index % 1000 / 10:.1f}%, Prefix cache hit "
        f"rate: {index % 880 / 10:.1f}%\n"
    )


def access(index: int, path: str = "/v1/chat/completions") -> str:
    client = f"10.0.{index % 256}.{index % 199}:{20000 + index % 40000}"
    return f'INFO:     {client} - "POST {path} HTTP/1.1" 200 OK\n'


def server(index: int) -> str:
    if index % 40 == 0:
        return load(index)
    if index % 3 == 0:
        return f"(APIServer pid=434) INFO {stamp(index)} [async_llm.py:578] Added request chatcmpl-{index:032x}.\n"
    return access(index)


def table(rows: int, index: int = 0) -> str:
    cells = "\n".join(f"| arm {j} | {50 + j + index % 7} | {200 + 3 * j} |" for j in range(rows))
    return f"| run | TTFT p50 (ms) | TTFT p99 (ms) |\n|---|---|---|\n{cells}\n\n"


def issue(index: int) -> str:
    words = "Before the change we have seen that the p99 was fine for all of our users."
    log = "".join(load(i) for i in range(50))
    return f"## Part {index}\n{words}\n\n{table(40)}\n```\n{log}```\n"


def told(index: int) -> str:
    """What a person writes, a third of it numbers."""
    return random.Random(index).choice(
        (
            f"We have seen that it took {index % 900} ms on the second day, and the users were not happy with it.\n",
            f"- run {index}: p99 {index % 977} ms, {index % 40} at once\n",
            f"ttft p99 = {index % 977} ms\n",
            "\n",
            f"It is the same after a restart of pod-{index % 9}, I think.\n",
        )
    )


def garbage(index: int) -> str:
    draw = random.Random(index)
    letters = "abcdefghij 0123456789 .,;:|/-_=()[]{}\"'"
    return "".join(draw.choices(letters, k=draw.randint(5, 160))) + "\n"


def request(index: int, *, own: str = "") -> str:
    at = index * 50
    return json.dumps(
        {"id": f"r{index}", "t_send_ms": at, "t_first_ms": at + 40 + index % 300, "t_last_ms": at + 900 + index % 3000,
         "output_tokens": 40 + index % 60, "prompt_tokens": 100 + index % 4000, "status": 200} | ({own: index} if own else {})
    ) + "\n"  # fmt: skip


def chunk(index: int, stream: int) -> str:
    return f"{stream},{index},{40 + index % 9},{index * 20.5:.1f},{index * 20.5 + 3:.1f}\n"


def sample(index: int) -> str:
    return f'vllm:num_requests_running{{engine="{index}",model_name="m"}} {index % 40}\n'


def buckets(index: int) -> str:
    if index % 12 == 11:
        return f'vllm:time_to_first_token_seconds_bucket{{instance="{index // 12}",le="+Inf"}} 12\n'
    return f'vllm:time_to_first_token_seconds_bucket{{instance="{index // 12}",le="{index % 12 / 10}"}} {index % 12}\n'


def fleet(index: int) -> str:
    """A pod's part of one scrape of many: gauges, counters, histograms."""
    pod = f'engine="0",model_name="m",pod="llm-{index}"'
    rows = [f"vllm:num_requests_running{{{pod}}} {index % 40}", f"vllm:num_requests_waiting{{{pod}}} {index % 3}"]
    rows += [f"vllm:generation_tokens_total{{{pod}}} {index * 977}"]
    for name in ("time_to_first_token", "inter_token_latency", "e2e_request_latency", "request_queue_time"):
        rows += [f'vllm:{name}_seconds_bucket{{{pod},le="{edge / 10}"}} {edge + index % 7}' for edge in range(20)]
        rows += [f'vllm:{name}_seconds_bucket{{{pod},le="+Inf"}} {30 + index % 7}']
        rows += [f"vllm:{name}_seconds_sum{{{pod}}} {index}.5", f"vllm:{name}_seconds_count{{{pod}}} {30 + index % 7}"]
    return "\n".join(rows) + "\n"


def hours(index: int) -> str:
    """One scrape of an engine that is asked again and again."""
    types = "".join(f"# TYPE vllm:{name} {kind}\n" for name, kind in _TYPES)
    counted = fleet(0).replace(" 0.5", f" {index}.5").replace("} 3", f"}} {index}3")
    return f"# scrape at t={index * 15}\n{types}{counted}"


def wide(text: str) -> str:
    """ASCII in UTF-16 (little end first), a letter a byte: each is followed by a zero."""
    return "".join(f"{letter}\0" for letter in text)


def device(index: int) -> str:
    return (
        f"\nGPU {index:08X}:17:00.0\n    Utilization\n        Gpu                               : {index % 100} %\n"
        "    Clocks Event Reasons\n        Idle                              : Active\n"
        "        SW Power Cap                      : Active\n    Clocks\n"
        f"        SM                                : {1000 + index % 400} MHz\n"
    )


def stack(index: int) -> str:
    return (
        f'Process {index}: python -m vllm\nPython v3.12.0\n\nThread {index} (active): "MainThread"\n'
        "    encode_batch (tokenizers/tokenizer.py:12)\n    step (engine.py:88)\n"
    )  # fmt: skip


def span(index: int) -> str:
    return json.dumps({"resourceSpans": [{"resource": {"attributes": []}, "scopeSpans": [{"scope": {"name": "vllm"},
        "spans": [{"traceId": f"{index:032x}", "spanId": f"{index:016x}", "name": "llm_request", "kind": 2,
        "startTimeUnixNano": str(10**18 + index * 10**6), "endTimeUnixNano": str(10**18 + index * 10**6 + 10**8),
        "attributes": [{"key": "gen_ai.latency.time_in_queue", "value": {"doubleValue": 0.2}}]}]}]}]}) + "\n"  # fmt: skip


def partial(index: int) -> str:
    return json.dumps({"stream_id": f"s{index // 50}", "utt_id": f"u{index // 10}", "seq": index, "t_recv": index * 0.1,
        "kind": "partial" if index % 10 else "final", "text": "word " * (index % 10 + 1),
        "audio_start_s": 0.0, "audio_end_s": index * 0.1}) + "\n"  # fmt: skip


def place(index: int) -> str:
    return f"    location /p{index} {{ proxy_pass http://up{index}; proxy_read_timeout {index % 90 + 1}s; }}\n"


def container(index: int) -> str:
    return (
        f"---\napiVersion: v1\nkind: Pod\nmetadata: {{name: p{index}}}\nspec:\n  containers:\n  - name: c\n"
        '    image: vllm/vllm-openai:v0.11.0\n    args: ["--model", "m", "--max-num-seqs", "256"]\n'
        "    livenessProbe: {httpGet: {path: /health}, timeoutSeconds: 1}\n"
    )  # fmt: skip


def slot(index: int) -> str:
    return (
        f"slot launch_slot_: id {index % 9} | task {index} | processing task\n"
        f"slot update_slots: id {index % 9} | task {index} | new prompt, n_ctx_slot = 4096, n_keep = 0, n_prompt_tokens = {index % 4000}\n"
    )


def printed(index: int) -> str:
    return (
        "============ Serving Benchmark Result ============\n"
        f"Successful requests:                     {100 + index}\nMean TTFT (ms):                          {index % 977}.5\n"
        f"P99 TTFT (ms):                           {index % 977 * 3}.5\n"
        "==================================================\n"
    )


def vllm_result(index: int) -> str:
    return json.dumps({"date": "20260101-000000", "endpoint_type": "vllm", "backend": "vllm", "model_id": "m", "tokenizer_id": "m",
        "num_prompts": 100, "request_rate": "inf", "burstiness": 1.0, "max_concurrency": index, "duration": 10.0, "completed": 100,
        "total_input_tokens": 1000, "total_output_tokens": 1000, "request_throughput": 10.0, "output_throughput": 100.0,
        "total_token_throughput": 200.0, "mean_ttft_ms": 10.0 + index, "median_ttft_ms": 9.0, "p99_ttft_ms": 80.0}) + "\n"  # fmt: skip


def nested(index: int) -> str:
    return '{"a":' if index % 2 else '{"ttft_p99_ms":5,"b":'


def sse(index: int) -> str:
    return f'data: {{"id":"c{index}","choices":[{{"delta":{{"content":"w"}}}}]}}\n\n'


_TYPES = (
    ("num_requests_running", "gauge"), ("num_requests_waiting", "gauge"), ("generation_tokens_total", "counter"),
    *((f"{name}_seconds", "histogram") for name in ("time_to_first_token", "inter_token_latency", "e2e_request_latency", "request_queue_time")),
)  # fmt: skip
_SCRAPE = "# TYPE vllm:num_requests_running gauge\n"
_YAML = "apiVersion: apps/v1\nkind: Deployment\nspec:\n"

PASTES: dict[str, tuple[str, Callable[[], Pieces]]] = {
    # what people paste: (file, its text)
    "issue with tables and logs": ("issue.md", each(issue)),
    "server log": ("server.log", each(server)),
    "server log in a fence": ("issue.md", each(server, "It is slow since we have updated the engine.\n\n```\n")),
    "mixture": ("mixture.txt", each(lambda i: (told, server, garbage, request, sample, printed)[i // 20 % 6](i))),
    "sentences": ("words.md", each(told)),
    "garbage": ("garbage.txt", each(garbage)),
    "garbage with an ending nobody knows": ("garbage.dat", each(garbage)),
    "JSON lines of requests": ("requests.jsonl", each(request)),
    "JSON lines nobody knows": ("events.jsonl", each(lambda i: json.dumps({"event": f"e{i}", "value": i}) + "\n")),
    "one table": ("table.md", lambda: iter([table(400_000)])),
    "many tables": ("tables.md", each(lambda i: table(40, i))),
    "one scrape of a fleet": (
        "metrics.txt",
        each(fleet, "".join(f"# TYPE vllm:{name} {kind}\n" for name, kind in _TYPES)),
    ),
    "scrapes of hours": ("metrics.txt", each(hours)),
    "table in UTF-16": (
        "table.csv",
        lambda: itertools.chain(
            ["\udcff\udcfe"],
            (
                wide(line)
                for line in each(lambda i: f"{i},{i % 977},{i % 99}\n", "concurrency,ttft_p99_ms,itl_p99_ms\n")()
            ),
        ),
    ),
    "one line of words": ("line.txt", forever("word 12 ")),
}
HOSTILE: dict[str, tuple[str, Callable[[], Pieces]]] = {
    "one line of a letter": ("line.txt", forever("x")),
    "one line of digits": ("line.txt", forever("7")),
    "one line of blanks": ("line.txt", forever(" ", "a")),
    "one line of quotes": ("line.txt", forever('"', "a 1\nb 2\n")),
    "one line of bars": ("line.md", forever("|", "| a | b |\n")),
    "one line of back ticks": ("line.md", forever("`", "a 1\n")),
    "one line of commas": ("line.csv", forever(",a", "t_s")),
    "one line of load lines": ("line.log", each(lambda i: load(i)[:-1])),
    "one line of access lines": ("line.log", each(lambda i: access(i)[:-1])),
    "short lines": ("lines.txt", forever("x\n")),
    "short lines of numbers": ("lines.txt", forever("1\n")),
    "blank lines": ("lines.txt", forever("\n", "a 1\n")),
    "carriage returns": ("lines.log", forever("10%|#\r", "a 1\n")),
    "headings": ("headings.md", each(lambda i: f"# Title {i}\n\n")),
    "tables of one row": ("tables.md", each(lambda i: table(1, i))),
    "rows of HTML": ("tables.md", each(lambda i: f"<tr><td>TTFT p99 {i}</td><td>{i} ms</td></tr>\n", "<table>\n")),
    "fences": ("fences.md", forever("```\nx 1\n```\n")),
    "open fences": ("fences.md", forever("```\n")),
    "quotes": ("quotes.md", forever("> > > > a 1\n")),
    "quote marks": ("quotes.md", forever(">", "a 1\n")),
    "printed results": ("printed.txt", each(printed)),
    "rows of labels": ("rows.txt", each(lambda i: f"TTFT p99 of {i}: {i % 977} ms\n")),
    "lists of JSON": ("deep.json", forever("[")),
    "objects of JSON": ("deep.json", each(nested)),
    "closed lists of JSON": ("deep.json", lambda: iter(["[" * 5_000_000, "]" * 5_000_000])),
    "keys of JSON": ("keys.json", closed('{"ttft_p50_ms": 1, ', lambda i: f'"ttft_p99_{i}_ms": {i}', 360_000, "}")),
    "facts": ("facts.json", closed('{"facts": 1, "context": {', lambda i: f'"engine.max_num_{i}": {i}', 290_000, "}}")),
    "arms of facts": ("facts.json", closed('{"facts": 1, "arms": {', lambda i: f'"a{i}": {{"ttft_p99_ms": {i}}}', 290_000, "}}")),
    "runs of JSON": ("runs.json", closed('{"runs": [', lambda i: f'{{"name": "r{i}", "ttft_p99_ms": {i}, "itl_p99_ms": 3}}', 170_000, "]}")),
    "columns": ("wide.csv", lambda: iter([",".join(["t_s", *(f"c{i}" for i in range(700_000))]), "\n", "1," * 700_000 + "1\n"])),
    "columns of requests": ("wide.csv", lambda: iter([",".join(["id", "t_send_ms", "t_first_ms", *(f"c{i}" for i in range(3000))]), "\n"] + [f"r{i},{i},{i + 9}," + "1," * 2999 + "1\n" for i in range(1600)])),
    "columns of a series": ("wide.csv", lambda: iter([",".join(["t_s", *(f"running_engine_{i}" for i in range(3000))]), "\n"] + [f"{i}," + "1," * 2999 + "1\n" for i in range(1600)])),
    "headings of a table": ("wide.md", lambda: iter(["|" + "|".join(f"TTFT p99 {i}" for i in range(700_000)) + "|\n", "|" + "---|" * 100 + "\n", "|" + "1|" * 700_000 + "\n"])),
    "rows of a sweep": ("arms.csv", each(lambda i: f"{i},{i % 977},{i % 99}\n", "concurrency,ttft_p99_ms,itl_p99_ms\n")),
    "rows of streams": ("streams.csv", each(lambda i: f"{i / 10:.1f},s{i},{i % 40}\n", "t_s,stream,running\n")),
    "requests of as many sessions": ("requests.csv", each(lambda i: f"r{i},{i},{i + 90 + i % 7},{i + 900},s{i}\n", "id,t_send_ms,t_first_ms,t_last_ms,session_id\n")),
    "requests with keys of their own": ("requests.jsonl", each(lambda i: request(i, own=f"k{i}"))),
    "chunks of one stream": ("chunks.csv", each(lambda i: chunk(i, 0), "req,chunk,bytes,t_upstream_ms,t_client_ms\n")),
    "chunks of as many streams": ("chunks.csv", each(lambda i: chunk(i % 2, i // 2), "req,chunk,bytes,t_upstream_ms,t_client_ms\n")),
    "series of a metric": ("metrics.prom", each(sample, _SCRAPE)),
    "metrics": ("metrics.prom", each(lambda i: f"app_m{i}_total {i}\n", _SCRAPE)),
    "histograms": ("metrics.prom", each(buckets, "# TYPE vllm:time_to_first_token_seconds histogram\n")),
    "labels of a sample": ("metrics.prom", closed(_SCRAPE + "vllm:num_requests_running{", lambda i: f'l{i}="v"', 780_000, "} 1\n")),
    "scrapes": ("metrics.prom", each(lambda i: f"{_SCRAPE}vllm:num_requests_running {i % 9}\nvllm:generation_tokens_total {i}\n# EOF\n")),
    "answers of Prometheus": ("query.json", closed('{"status":"success","data":{"resultType":"matrix","result":[', lambda i: f'{{"metric":{{"__name__":"vllm:num_requests_running","pod":"p{i}"}},"values":[[{i},"1"],[{i + 1},"2"]]}}', 90_000, "]}}")),
    "engines in a log": ("engines.log", each(lambda i: load(i, i))),
    "paths in an access log": ("access.log", each(lambda i: access(i, f"/p{i}"))),
    "replicas in an access log": ("access.log", each(lambda i: json.dumps({"start_time": f"2026-02-11T{i // 3600 % 24:02d}:{i // 60 % 60:02d}:{i % 60:02d}.123Z", "method": "POST", "path": "/v1/completions", "response_code": 200, "bytes_sent": 1, "duration": i % 900, "upstream_host": f"10.{i // 65536}.{i // 256 % 256}.{i % 256}:80"}) + "\n")),
    "errors in a log": ("errors.log", each(lambda i: f"(APIServer pid=434) ERROR {stamp(i)} [m{i}.py:{i}] request {i} timed out\n")),
    "tracebacks": ("errors.log", each(lambda i: f"(APIServer pid=434) ERROR {stamp(i)} [a.py:9] Traceback (most recent call last):\n" + '  File "a.py", line 9, in f\n' * 40)),
    "tasks that never end": ("llama.log", each(slot)),
    "compressed zeros": ("zeros.log", forever("\0", "a 1\n" * 20_000)),
    "options of an engine": ("command.txt", each(lambda i: f" --opt-{i} {i}", "vllm serve m")),
    "an option again": ("command.txt", forever(" --max-num-seqs 256", "vllm serve m")),
    "engine commands": ("commands.sh", each(lambda i: f"vllm serve m{i} --max-num-seqs {i}\n")),
    "load test commands": ("commands.txt", each(lambda i: f"vllm bench serve --request-rate {i} --num-prompts 100\n")),
    "a command that goes on": ("command.txt", forever("  --x 1 \\\n", "vllm bench serve \\\n")),
    "documents of YAML": ("pods.yaml", each(container)),
    "keys of YAML": ("keys.yaml", each(lambda i: f"  k{i}: {i}\n", _YAML)),
    "depth of YAML": ("deep.yaml", lambda: iter([_YAML, *(" " * (i + 2) + "a:\n" for i in range(4400))])),
    "flow of YAML": ("flow.yaml", forever("[", _YAML + "  a: ")),
    "locations": ("nginx.conf", each(place, "server {\n")),
    "blocks of nginx": ("nginx.conf", forever("server { ")),
    "directives": ("nginx.conf", each(lambda i: f"proxy_set_header x{i} {i};\n", "server { location / { proxy_pass http://a;\n")),
    "client code": ("client.py", each(lambda i: f"c{i} = httpx.AsyncClient(timeout={i})\n", "import httpx\n")),
    "headers": ("headers.txt", each(lambda i: f"x-kong-proxy-latency: {i}\n", "HTTP/1.1 200 OK\nserver-timing: a;dur=1\n")),
    "groups of Triton": ("config.pbtxt", each(lambda i: f"instance_group {{ count: {i % 9} kind: KIND_GPU }}\n", 'name: "m"\nmax_batch_size: 8\n')),
    "devices": ("smi.txt", each(device, "==============NVSMI LOG==============\n")),
    "devices by the second": ("dmon.txt", each(lambda i: f"    {i % 8}    90    50     -    {i % 100}     0     0     0  5000  1500\n", "# gpu   pwr gtemp mtemp    sm   mem   enc   dec  mclk  pclk\n")),
    "devices as CSV": ("smi.csv", each(lambda i: f"2026/01/01 00:00:00.000, {i}, 50 %, 1500 MHz\n", "timestamp, index, utilization.gpu [%], clocks.current.sm [MHz]\n")),
    "stacks": ("stacks.txt", each(stack)),
    "frames of a stack": ("stack.txt", each(lambda i: f"    f{i} (a.py:{i})\n", 'Process 1: python\nThread 1 (active): "MainThread"\n')),
    "spans": ("spans.json", each(span)),
    "events of speech": ("speech.jsonl", each(partial)),
    "a stream's events": ("stream.txt", each(sse)),
    "results of a load test": ("results.jsonl", each(vllm_result)),
    "gaps of one stream": ("result.json", closed('{"endpoint_type":"vllm","num_prompts":1,"duration":10.0,"completed":1,"input_lens":[5],"output_lens":[9],"ttfts":[0.1],"itls":[[', lambda i: f"0.0{i % 9}11", 1_400_000, ']],"generated_texts":["x"],"errors":[""]}')),
    "records": ("records.jsonl", each(lambda i: json.dumps({"schema": 1, "request_id": f"r{i}", "start_unix_ms": 1.7e12 + i, "e2e_ms": 900.0 + i % 99, "ttft_ms": 40.0, "outcome": "completed", "vantage": "gateway"}) + "\n")),
    "numbers of hundreds of digits": ("digits.md", forever(f"| TTFT p99 (ms) | {'9' * 300} | {'8' * 300} |\n", "| metric | before | after |\n|---|---|---|\n")),
    "letters beyond ASCII": ("umlauts.md", forever("├─┼─│ µs ∞ ✅ 12 ", "a 1\n")),
    "bytes that are no text": ("bytes.log", forever("\udcff\udcfe 1\n", "a 1\n" * 9000)),
}  # fmt: skip


def write(path: Path, pieces: Pieces, size: int) -> int:
    """Write `size` bytes of the pieces (or fewer, where they end)."""
    left = size
    with path.open("wb") as file:
        while some := list(itertools.islice(pieces, 2000)):
            data = "".join(some).encode("utf-8", "surrogateescape")[:left]
            left -= file.write(data)
            if left <= 0:
                break
    return size - left


def answer(path: Path, *, most_s: int) -> tuple[float, float, int, str]:
    """(CPU seconds, peak MB, exit code, the last line of what was said on the error stream)."""
    code = (
        "import resource, subprocess, sys\n"
        f"resource.setrlimit(resource.RLIMIT_CPU, ({most_s}, {most_s}))\n"
        "ended = subprocess.run([sys.executable, '-m', 'tailrace', 'diagnose', sys.argv[1], '--json'], "
        "stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)\n"
        "used = resource.getrusage(resource.RUSAGE_CHILDREN)\n"
        "said = ended.stderr.decode('utf-8', 'replace').strip().splitlines()[-1:]\n"
        "print(used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, ended.returncode, *said)\n"
    )
    one = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    ended = subprocess.run(
        [sys.executable, "-S", "-c", code, str(path)], capture_output=True, text=True, check=True, env=os.environ | one
    )
    cpu, peak, status, *said = ended.stdout.split(maxsplit=3)
    return float(cpu), float(peak), int(status), " ".join(said).strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=float, default=10.0)
    parser.add_argument("--only", default="", help="only the kinds with this word in their name")
    parser.add_argument("--most-s", type=int, default=60, help="CPU seconds after which a kind is given up")
    args = parser.parse_args()
    over = 0
    with tempfile.TemporaryDirectory() as folder:
        for kinds, budget in ((PASTES, BUDGET_S), (HOSTILE, None)):
            for name, (file, pieces) in kinds.items():
                if args.only not in name:
                    continue
                path = Path(folder) / file
                write(path, pieces(), round(args.mb * 1e6))
                cpu, peak, status, said = answer(path, most_s=args.most_s)
                path.unlink()
                row = {"name": name, "value": round(cpu, 2), "unit": "s"} | (
                    {} if budget is None else {"budget": budget}
                )
                print(json.dumps(row | {"peak_mb": round(peak), "exit": status, "said": said[:110]}), flush=True)
                over += status not in (0, 2)
    return int(over > 0)


if __name__ == "__main__":
    sys.exit(main())
