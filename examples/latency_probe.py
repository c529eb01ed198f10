"""How long does a model server take? One file, the standard library alone: copy it to where the server can be reached.

    python latency_probe.py http://localhost:8000 --prompt "Why is the sky blue?" --total 100 --concurrency 8

A closed loop of `--concurrency` clients sends the same chat request `--total` times and prints how many answers came,
and the least, p50, p95, p99 and greatest time of a whole answer. With `--stream` also the time to the first token.
It loads the server: use it where you may.

For more than a look use `tailrace bench`: an open loop, intervals, a check of the client itself, a run file.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import ssl
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

ENDPOINT = "/v1/chat/completions"
SHOWN_ERRORS = 5
LONGEST_ERROR = 300


class BadAnswerError(Exception):
    """An answer that is none."""


class Client:
    """One client: a connection that is kept, and opened again after an error."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.parts = urlsplit(options.url)
        self.connection: http.client.HTTPConnection | None = None

    def open(self) -> http.client.HTTPConnection:
        """The connection, new where there is none."""
        if self.connection is None:
            kind = http.client.HTTPSConnection if self.parts.scheme == "https" else http.client.HTTPConnection
            host = self.parts.hostname or ""
            self.connection = kind(host, self.parts.port, timeout=self.options.timeout)
        return self.connection

    def close(self) -> None:
        """Let go of the connection."""
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def call(self, method: str, path: str, body: str | None = None) -> http.client.HTTPResponse:
        """Send one request; the answer once its head is there. Raises BadAnswerError unless it is 200."""
        headers = {"content-type": "application/json", "accept-encoding": "identity"}
        if self.options.api_key:
            headers["authorization"] = f"Bearer {self.options.api_key}"
        connection = self.open()
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        if answer.status != http.HTTPStatus.OK:
            said = answer.read(LONGEST_ERROR).decode("utf-8", "replace")
            raise BadAnswerError(f"status {answer.status}: {' '.join(said.split()) or answer.reason}")
        return answer

    def ask(self, body: str) -> tuple[float, float | None]:
        """Seconds to the whole answer, and to its first token (`None` where it was not streamed)."""
        path = self.parts.path + (f"?{self.parts.query}" if self.parts.query else "")
        began = time.monotonic()
        answer = self.call("POST", path, body)
        if self.options.stream:
            first = None
            for delta in deltas(answer):
                if first is None and any(delta.get(k) for k in ("content", "reasoning_content", "reasoning")):
                    first = time.monotonic() - began
                self.check(began)
            return time.monotonic() - began, first
        pieces = []
        while piece := answer.read1(1 << 16):
            pieces.append(piece)
            self.check(began)
        answer.read()  # nothing is left; this is what tells the connection that it is free again
        taken = time.monotonic() - began
        whole = json.loads(b"".join(pieces))
        if not isinstance(whole, dict) or not whole.get("choices"):
            raise BadAnswerError("the answer has no choices")
        return taken, None

    def check(self, began: float) -> None:
        """An answer that drips on for ever has a bound, too. Raises BadAnswerError."""
        if time.monotonic() - began > self.options.timeout:
            raise BadAnswerError(f"not done after {self.options.timeout:g} s")


def deltas(answer: http.client.HTTPResponse) -> Iterator[dict[str, object]]:
    """The deltas of a streamed answer. Raises BadAnswerError when it breaks off or says that it failed."""
    ended = False
    while line := answer.readline():
        if not line.startswith(b"data:"):
            continue  # a comment that keeps the connection alive, or an event's name
        data = line[5:].strip()
        if data == b"[DONE]":
            ended = True
            continue
        event = json.loads(data)
        if "error" in event:
            raise BadAnswerError(f"error in the stream: {json.dumps(event['error'])[:LONGEST_ERROR]}")
        for choice in event.get("choices") or ():
            ended = ended or bool(choice.get("finish_reason"))
            yield choice.get("delta") or {}
    if not ended:
        raise BadAnswerError("the stream ended without [DONE] and without a finish reason")


class Tally:
    """What all clients found."""

    def __init__(self, total: int) -> None:
        self.left = total
        self.whole: list[float] = []
        self.first: list[float] = []
        self.errors: list[str] = []
        self.lock = threading.Lock()

    def take(self) -> bool:
        """Whether there is another request to send."""
        with self.lock:
            self.left -= 1
            return self.left >= 0

    def run(self, client: Client, body: str) -> None:
        """Send until nothing is left."""
        while self.take():
            try:
                whole, first = client.ask(body)
            except (OSError, http.client.HTTPException, ValueError, AttributeError, BadAnswerError) as error:
                client.close()
                with self.lock:
                    self.errors.append(f"{type(error).__name__}: {error}")
            else:
                with self.lock:
                    self.whole.append(whole)
                    if first is not None:
                        self.first.append(first)
        client.close()


def quantile(ordered: Sequence[float], p: float) -> float:
    """Linear interpolation between order statistics, as numpy does it."""
    place = p * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def line(name: str, seconds: list[float]) -> str:
    """One row: the least, three quantiles, the greatest (ms)."""
    ordered = sorted(seconds)
    values = [ordered[0], *(quantile(ordered, p) for p in (0.5, 0.95, 0.99)), ordered[-1]]
    return f"{name:12}" + "".join(f"{value * 1e3:11.1f}" for value in values)


def first_model(options: argparse.Namespace) -> str:
    """The first model that the server lists. Raises BadAnswerError where it lists none."""
    client = Client(options)
    path = client.parts.path
    listed = json.loads(client.call("GET", path.removesuffix("/chat/completions") + "/models").read())
    client.close()
    models = listed.get("data") if isinstance(listed, dict) else None
    if not models:
        raise BadAnswerError("it lists no model")
    return str(models[0]["id"])


def options_from(words: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="base URL, or the whole URL of a chat endpoint")
    parser.add_argument("--prompt", default="Write one sentence about the sea.")
    parser.add_argument("--total", type=int, default=50, help="requests in all (default 50)")
    parser.add_argument("--concurrency", type=int, default=4, help="so many at once (default 4)")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--model", help="default: the first that /v1/models lists")
    parser.add_argument("--api-key", default=os.environ.get("OPENAI_API_KEY", ""))
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds an answer may take (default 120)")
    parser.add_argument("--stream", action="store_true", help="ask for streams; also tells the time to the first token")
    options = parser.parse_args(words)
    for name in ("total", "concurrency", "max_tokens"):
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1")
    parts = urlsplit(options.url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        parser.error(f"{options.url!r} is no URL; for example http://localhost:8000")
    if not parts.path.endswith("/chat/completions"):
        base = options.url.rstrip("/").removesuffix("/v1")
        options.url = base + ENDPOINT
    return options


def main(words: list[str] | None = None) -> int:
    """Measure and print. Exit code: 0, or 1 when no answer came."""
    options = options_from(words)
    try:
        model = options.model or first_model(options)
    except (OSError, ssl.SSLError, http.client.HTTPException, ValueError, BadAnswerError) as error:
        sys.stderr.write(f"{options.url}: cannot ask for the models ({error}); is it up? Or give --model\n")
        return 1
    body = json.dumps(
        {
            "model": model,
            "messages": [{"role": "user", "content": options.prompt}],
            "max_tokens": options.max_tokens,
            "stream": options.stream,
        }
    )
    tally = Tally(options.total)
    clients = [
        threading.Thread(target=tally.run, args=(Client(options), body), daemon=True)
        for _ in range(min(options.concurrency, options.total))
    ]
    began = time.monotonic()
    try:
        for one in clients:
            one.start()
        for one in clients:
            one.join()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; what was measured:\n")
    taken = time.monotonic() - began
    with tally.lock:
        whole, first, errors = list(tally.whole), list(tally.first), list(tally.errors)
    print(f"{len(whole)} of {options.total} answered, {len(errors)} failed, {len(clients)} at once, {taken:.1f} s")
    if whole:
        print(f"{'ms':12}" + "".join(f"{name:>11}" for name in ("min", "p50", "p95", "p99", "max")))
        print(line("whole", whole))
        if first:
            print(line("first token", first))
        if len(whole) < 500:
            print(f"p99 rests on {max(1, round(len(whole) * 0.01))} of {len(whole)} answers; 500 would support it")
    else:
        for error in errors[:SHOWN_ERRORS]:
            print(f"  {error}")
    return 0 if whole else 1


if __name__ == "__main__":
    sys.exit(main())
