"""llama.cpp's server: slots and their context, pieces of prompts, threads, and its line without a bound."""

from __future__ import annotations

from collections.abc import Iterator

from tailrace.engines.advice.case import Case, percent
from tailrace.engines.advice.lengths import Of
from tailrace.model.check import CheckFinding, Weight
from tailrace.model.finding import Evidence


def judge_llamacpp(case: Case) -> Iterator[CheckFinding]:
    """Everything that is known to hurt."""
    if case.engine != "llamacpp":
        return
    yield from _context(case)
    yield from _pieces(case)
    yield from _joining(case)
    yield from _threads(case)
    yield from _line(case)


def slot_context(case: Case) -> tuple[float, list[Evidence]] | None:
    """Tokens that one request may have; the context is divided among the slots unless it is unified."""
    told = case.number("slot_ctx") or case.number("max_model_len")
    if told is not None:
        return told, case.shown("slot_ctx", "max_model_len", "slots")
    whole, slots = case.number("ctx_size"), case.number("slots")
    if not whole or not slots or slots < 1:
        return None
    if case.facts.flag("kv_unified"):
        return whole, case.shown("ctx_size", "kv_unified")
    return whole / slots, case.shown("ctx_size", "slots")


def _context(case: Case) -> Iterator[CheckFinding]:
    found = slot_context(case)
    if found is None:
        case.need("tokens a request may have: give -c and -np (or the server's address, or its log)")
        return
    tokens, evidence = found
    slots = case.number("slots")
    if case.lengths is None:
        case.need("slots and their context against the lengths of requests: give them (--lengths RUN)")
    share = case.lengths.share_above(tokens, Of.TOTAL) if case.lengths is not None and case.lengths.total else None
    if share:
        yield case.finding(
            "SLOT_CONTEXT_SMALL",
            Weight.WARNING,
            f"A slot has {tokens:,.0f} tokens, and {percent(share)} of requests are longer: they are refused "
            "(exceed_context_size_error) or their answers cut.",
            subject="-c / -np",
            evidence=[*evidence, *case.length_evidence(Of.TOTAL)],
            advice=_larger(case, tokens),
            effect="These requests are served whole.",
            price="Memory for the KV cache, or fewer requests at once.",
            verify="tailrace records query, reason input_too_long, stays at zero",
        )
    else:
        many = f" in {slots:.0f} slots" if slots else ""
        yield case.finding(
            "SLOT_CONTEXT",
            Weight.INFO,
            f"A request may have {tokens:,.0f} tokens{many}; more than "
            f"{f'{slots:.0f} requests' if slots else 'one a slot'} wait.",
            subject="-c / -np",
            evidence=[*evidence, *case.length_evidence(Of.TOTAL)],
        )


def _larger(case: Case, tokens: float) -> str:
    longest = case.lengths.quantile(1.0, Of.TOTAL) if case.lengths is not None else None
    slots = int(case.number("slots") or 1)
    wanted = int(longest or tokens * 2)
    return f"-c {wanted * slots} with -np {slots} (context is divided by the slots), or fewer slots."


def _pieces(case: Case) -> Iterator[CheckFinding]:
    batch = case.number("n_batch")
    if batch is None:
        if case.command is not None:
            case.need("pieces of prompts: -b is not given; its default is 2,048")
        return
    if case.lengths is None:
        case.need("the size of a step against the prompts: give their lengths (--lengths RUN)")
    share = case.lengths.share_above(batch) if case.lengths is not None else None
    end = case.lengths.tail() if case.lengths is not None else None
    long = end is not None and end[0] >= 512
    if batch >= 512 and (long or case.lengths is None):
        yield case.finding(
            "BATCH_TOKENS_LARGE",
            Weight.ADVICE,
            f"A prompt is computed in pieces of n_batch {batch:.0f} tokens, and every stream waits for each piece "
            "(n_ubatch only divides the arithmetic).",
            subject="-b",
            evidence=[
                *case.shown("n_batch"),
                *case.length_evidence(Of.PROMPT),
                Evidence(
                    "631-token prompt beside a stream: n_batch 512 one gap of 3,023 ms; 64 ten gaps of 466-572 ms",
                    "llama.cpp, 135 M parameters, one thread",
                    "gap",
                ),
            ],
            advice="-b 256 on a GPU, -b 64 on a CPU, with -ub the same or less.",
            effect="The largest gap beside a long prompt falls about as the piece does; disconnects in a prefill are "
            "noticed sooner.",
            price="Long prompts take some 20 % longer (3.8 to 4.6 s measured), and there are more middling gaps.",
        )
    elif share is not None:
        yield case.finding(
            "BATCH_TOKENS",
            Weight.INFO,
            f"{percent(share)} of prompts are longer than one piece of {batch:.0f} tokens.",
            subject="-b",
            evidence=[*case.shown("n_batch"), *case.length_evidence(Of.PROMPT)],
        )


def _joining(case: Case) -> Iterator[CheckFinding]:
    if case.facts.flag("cont_batching") is False:
        yield case.finding(
            "CONTINUOUS_BATCHING_OFF",
            Weight.WARNING,
            "Continuous batching is off: a new request waits until the running batch has ended.",
            subject="-nocb",
            evidence=case.shown("cont_batching"),
            advice="Leave -nocb out.",
            effect="A request joins at the next step.",
            price="None.",
            verify=case.compare_runs(),
        )


def _threads(case: Case) -> Iterator[CheckFinding]:
    threads, cores, poll = case.number("threads"), case.number("cores"), case.number("poll")
    crowded = threads is not None and cores is not None and threads >= cores and threads > 1
    if not crowded and not (threads is not None and cores is None and threads > 1):
        return
    of = f" of {cores:.0f} cores" if cores is not None else ""
    yield case.finding(
        "THREADS_SPIN",
        Weight.WARNING if crowded else Weight.ADVICE,
        f"{threads:.0f} threads{of}"
        + (f" poll at level {poll:.0f}" if poll else "")
        + ": they spin while they wait for each other, so anything else on these cores stalls all of them.",
        subject="-t",
        evidence=[
            *case.shown("threads", "cores", "poll"),
            Evidence(
                "2 threads on 2 shared cores: 2.8 tokens/s, with 1 thread 37-72; start 7.7 s instead of 0.7 s",
                "llama.cpp, loaded machine",
                "threads",
            ),
        ],
        advice="Fewer threads than free cores (-t), one core left for HTTP and the gateway; --poll 0 on a shared "
        "machine.",
        effect="Steady decode steps; no collapse when something else wants the CPU.",
        price="On an idle machine, somewhat fewer tokens per second.",
        verify=case.compare_runs(),
    )


def _line(case: Case) -> Iterator[CheckFinding]:
    slots = case.number("slots")
    yield case.finding(
        "QUEUE_UNBOUNDED",
        Weight.ADVICE,
        "The server's waiting line has no bound and no 429, and a client that left while queued keeps its place.",
        subject="waiting line",
        evidence=case.shown("slots"),
        advice=f"A lane in the gateway with running: {slots:.0f} and a bounded `queued`."
        if slots
        else "A lane in the gateway with running = the number of slots, and a bounded `queued`.",
        effect="Overload shows as 429 with Retry-After, and cancelled requests cost nothing.",
        price="Some requests are refused.",
        verify="tailrace bench URL --concurrency (three times the slots)",
    )
    if case.command is not None and not case.facts.flag("metrics") and case.scrape is None:
        yield case.finding(
            "STATS_OFF",
            Weight.ADVICE,
            "/metrics is off unless --metrics is given.",
            subject="--metrics",
            evidence=case.shown("metrics"),
            advice="--metrics",
            effect="Waiting and running requests can be read.",
            price="It is answered by the loop that computes: scrape every few seconds at most, with a timeout.",
            verify=f"tailrace check {case.url or 'URL'}",
        )
    yield case.finding(
        "TRAP_STATUS_LINE",
        Weight.INFO,
        "The status line comes when a slot starts: it ends the queue, and no field says how long that was. A "
        "disconnect during a prefill is noticed only when the server next writes.",
        subject="HTTP",
    )
