"""CPU cost of the meter: framing, JSON and bookkeeping together, nanoseconds per token event.

    python bench/meter.py [--events 200000] [--repeats 5] [--json]

CPU time of this process (`time.process_time_ns`), the least of several repeats, because a shared machine only ever adds
time. The budget is 2000 ns per event on one-event-per-read input.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable

from tailrace.measure.dialect import Dialect
from tailrace.measure.dialects import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from tailrace.measure.meter import StreamMeter

BUDGET_NS = 2000
_HEAD = '{"id":"chatcmpl-my-req-0002","object":"chat.completion.chunk","created":1795953676,"model":"tiny","choices":'


def chat(eol: str = "\n", tail: str = "", delta: str = '{"content":" word"}') -> bytes:
    choice = f'[{{"index":0,"delta":{delta},"logprobs":null,"finish_reason":null,"token_ids":null}}]'
    return f"data: {_HEAD}{choice}{tail}}}{eol}{eol}".encode()


USAGE = ',"usage":{"prompt_tokens":11,"total_tokens":12,"completion_tokens":1,"completion_tokens_details":null}'
COMPLETION = (
    b'data: {"id":"cmpl-1","object":"text_completion","created":1795953676,"model":"tiny","choices":[{"index":0,'
    b'"text":" word","logprobs":null,"finish_reason":null,"stop_reason":null}],"usage":null}\n\n'
)
RESPONSE = (
    b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","item_id":"msg_1","output_index":0,'
    b'"content_index":0,"delta":" word","sequence_number":7}\n\n'
)
MESSAGE = (
    b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta",'
    b'"text":" word"}}\n\n'
)


def cost(dialect: Dialect, reads: list[bytes], events_a_read: int, events: int, repeats: int) -> float:
    """Least CPU nanoseconds per event."""
    rounds = events // events_a_read
    best = float("inf")
    for _ in range(repeats):
        meter = StreamMeter(dialect, origin_ns=0)
        meter.feed(reads[0], 1)
        feed: Callable[[bytes, int], None] = meter.feed
        step = 20_000_000 * events_a_read
        many = len(reads)
        start = time.process_time_ns()
        for index in range(rounds):
            feed(reads[index % many], index * step)
        spent = time.process_time_ns() - start
        assert meter.events >= rounds * events_a_read // (2 if many > 1 else 1), meter.events
        best = min(best, spent / (rounds * events_a_read / many))
    return best


def loop_cost(events: int) -> float:
    """What the empty measuring loop costs; printed, not subtracted."""
    data = [b""]
    start = time.process_time_ns()
    for index in range(events):
        data[index % 1], index * 20_000_000
    return (time.process_time_ns() - start) / events


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=200_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    one = chat()
    cases: dict[str, tuple[Dialect, list[bytes], int]] = {
        "chat, one event a read": (CHAT, [one], 1),
        "chat, reasoning, one event a read": (CHAT, [chat(delta='{"reasoning_content":" word"}')], 1),
        "chat, continuous usage, one event a read": (CHAT, [chat(tail=USAGE)], 1),
        "chat, CRLF, one event a read": (CHAT, [chat("\r\n")], 1),
        "chat, 4 events a read": (CHAT, [one * 4], 4),
        "chat, 32 events a read": (CHAT, [one * 32], 32),
        "chat, event split over two reads": (CHAT, [one[:100], one[100:]], 1),
        "completions, one event a read": (COMPLETIONS, [COMPLETION], 1),
        "responses, one event a read": (RESPONSES, [RESPONSE], 1),
        "messages, one event a read": (MESSAGES, [MESSAGE], 1),
        "chat, tool call, one event a read": (
            CHAT,
            [chat(delta='{"tool_calls":[{"index":0,"function":{"arguments":"{\\"a"}}]}')],
            1,
        ),
    }
    results = {name: cost(*case, args.events, args.repeats) for name, case in cases.items()}
    headline = results["chat, one event a read"]
    if args.json:
        print(json.dumps({"ns_per_event": results, "budget_ns": BUDGET_NS, "within": headline <= BUDGET_NS}))
    else:
        for name, value in results.items():
            print(f"{name:44} {value:7.0f} ns/event")
        print(f"{'(the empty loop)':44} {loop_cost(args.events):7.0f} ns")
        print(f"budget {BUDGET_NS} ns/event: {'kept' if headline <= BUDGET_NS else 'BROKEN'}")
    return 0 if headline <= BUDGET_NS else 1


if __name__ == "__main__":
    sys.exit(main())
