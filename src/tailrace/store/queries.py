"""The named queries: each a question about records, its SQL, and the columns of its answer.

There is no query language of our own and no generic layer: about a dozen questions, spelled out. All run over the
relation `records` (see `parquet_file` for its columns), already cut to the window asked for. Durations in answers are
milliseconds and say so. Quantiles are exact and interpolated (`quantile_cont`, numpy's default), over the rows where
the metric was seen; every answer carries its `n`.
"""

from __future__ import annotations

from typing import Final

import msgspec

from tailrace.model.errors import InputError

__all__ = ["LENGTH_BUCKETS", "METRICS", "QUERIES", "NamedQuery", "query_sql"]

METRICS: Final[dict[str, str]] = {
    "ttft": "ttft_ns",
    "ttft_upstream": "ttft_upstream_ns",
    "ttft_content": "ttft_content_ns",
    "tpot": "tpot_ns",
    "e2e": "e2e_ns",
    "e2e_last_token": "e2e_last_token_ns",
    "chunk_gap_max": "chunk_gap_max_ns",
    "ingress": "ingress_ns",
    "queue": "queue_ns",
    "queue_gateway": "queue_gateway_ns",
    "queue_engine": "queue_engine_ns",
    "preprocess": "preprocess_ns",
    "encode": "encode_ns",
    "prefill": "prefill_ns",
    "decode": "decode_ns",
    "model": "model_ns",
    "postprocess": "postprocess_ns",
    "response": "response_ns",
    "unattributed": "unattributed_ns",
    "gateway_overhead": "gateway_overhead_ns",
}
"""What `metric=` may name, and the column behind it."""

LENGTH_BUCKETS: Final[tuple[int, ...]] = (256, 1024, 4096, 16384)
"""Upper bounds of prompt-length buckets (tokens); the last bucket is open."""
OUTPUT_BUCKETS: Final[tuple[int, ...]] = (32, 128, 512, 2048)
_STAGES: Final = (
    "ingress",
    "queue",
    "preprocess",
    "encode",
    "prefill",
    "decode",
    "model",
    "postprocess",
    "response",
    "unattributed",
)


def _bucket(column: str, bounds: tuple[int, ...]) -> str:
    whens = " ".join(f"WHEN {column} < {bound} THEN {place}" for place, bound in enumerate(bounds))
    return f"CASE WHEN {column} IS NULL THEN -1 {whens} ELSE {len(bounds)} END"


_PROMPT: Final = _bucket("prompt_tokens", LENGTH_BUCKETS)
_OUTPUT: Final = _bucket("output_tokens", OUTPUT_BUCKETS)
_QUANTILES: Final = (
    "count({m}) AS n, avg({m})/1e6 AS mean_ms, min({m})/1e6 AS min_ms, "
    "quantile_cont({m}, 0.5)/1e6 AS p50_ms, quantile_cont({m}, 0.9)/1e6 AS p90_ms, "
    "quantile_cont({m}, 0.95)/1e6 AS p95_ms, quantile_cont({m}, 0.99)/1e6 AS p99_ms, "
    "quantile_cont({m}, 0.999)/1e6 AS p999_ms, max({m})/1e6 AS max_ms"
)
_STAGE_P99: Final = ", ".join(
    f"count({stage}_ns) AS {stage}_n, quantile_cont({stage}_ns, 0.99)/1e6 AS {stage}_p99_ms" for stage in _STAGES
)
_STAGE_MEAN: Final = ", ".join(f"coalesce(avg({stage}_ns), 0)/1e6 AS {stage}_ms" for stage in _STAGES)


class NamedQuery(msgspec.Struct, frozen=True, kw_only=True):
    """One question. `sql` may contain `{m}` (the metric's column) and the numbers named in `numbers`."""

    answers: str
    """The question, in words."""
    sql: str
    metric: str = ""
    """The metric when none is given; empty if the query takes none."""
    numbers: dict[str, float] = {}
    """Numeric parameters and their defaults."""


QUERIES: Final[dict[str, NamedQuery]] = {
    "quantiles": NamedQuery(
        answers="quantiles of one metric in the window",
        metric="ttft",
        sql=f"SELECT count(*) AS requests, {_QUANTILES} FROM records",  # noqa: S608
    ),
    "quantiles_by_length": NamedQuery(
        answers="quantiles of one metric by prompt-length bucket (bucket -1: length unknown)",
        metric="ttft",
        sql=f"SELECT {_PROMPT} AS prompt_bucket, count(*) AS requests, {_QUANTILES} FROM records GROUP BY 1 ORDER BY 1",  # noqa: S608
    ),
    "quantiles_by_lengths": NamedQuery(
        answers="quantiles of one metric by prompt-length x output-length bucket",
        metric="ttft",
        sql=f"SELECT {_PROMPT} AS prompt_bucket, {_OUTPUT} AS output_bucket, count(*) AS requests, {_QUANTILES} "  # noqa: S608
        "FROM records GROUP BY 1, 2 ORDER BY 1, 2",
    ),
    "stage_p99_by_lane": NamedQuery(
        answers="p99 of every stage by lane and model, over the requests that had the stage",
        sql=f"SELECT lane, model, count(*) AS requests, {_STAGE_P99} FROM records GROUP BY 1, 2 ORDER BY 1, 2",  # noqa: S608
    ),
    "stages_of_tail": NamedQuery(
        answers="mean of every stage over all requests, and over those at or above a quantile of the metric",
        metric="e2e",
        numbers={"quantile": 0.99},
        sql="WITH seen AS (SELECT * FROM records WHERE {m} IS NOT NULL), "  # noqa: S608
        "bound AS (SELECT quantile_cont({m}, {quantile}) AS edge FROM seen) "
        f"SELECT 'all' AS part, count(*) AS n, {_STAGE_MEAN} FROM seen "
        f"UNION ALL SELECT 'tail', count(*), {_STAGE_MEAN} FROM seen WHERE {{m}} >= (SELECT edge FROM bound) "
        "ORDER BY part",
    ),
    "failures": NamedQuery(
        answers="requests that did not complete, by outcome, reason and the stage in which they died",
        sql="SELECT outcome, reason, died_in AS stage, count(*) AS n, "
        "count(*) / (SELECT count(*) FROM records) AS share "
        "FROM records WHERE outcome <> 'completed' GROUP BY 1, 2, 3 ORDER BY n DESC, 1, 2, 3",
    ),
    "outcomes_by_lane": NamedQuery(
        answers="outcomes by lane",
        sql="SELECT lane, outcome, count(*) AS n FROM records GROUP BY 1, 2 ORDER BY 1, 2",
    ),
    "slowest": NamedQuery(
        answers="the slowest requests by one metric",
        metric="ttft",
        numbers={"n": 50},
        sql="SELECT request_id, start_unix_ns, lane, model, outcome, reason, prompt_tokens, output_tokens, "
        "{m}/1e6 AS value_ms, queue_ns/1e6 AS queue_ms, prefill_ns/1e6 AS prefill_ms, decode_ns/1e6 AS decode_ms, "
        "e2e_ns/1e6 AS e2e_ms, timeline_at_ns IS NOT NULL AS has_timeline "
        "FROM records WHERE {m} IS NOT NULL ORDER BY {m} DESC, request_id LIMIT {n}",
    ),
    "series": NamedQuery(
        answers="one metric over time: n, p50, p99 and failures per interval",
        metric="ttft",
        numbers={"interval_s": 60},
        sql="SELECT start_unix_ns // CAST({interval_s} * 1e9 AS BIGINT) * CAST({interval_s} * 1e9 AS BIGINT) "
        "AS from_unix_ns, count(*) AS requests, count({m}) AS n, quantile_cont({m}, 0.5)/1e6 AS p50_ms, "
        "quantile_cont({m}, 0.99)/1e6 AS p99_ms, coalesce(sum(output_tokens), 0) AS output_tokens, "
        "count(*) FILTER (outcome <> 'completed') AS not_completed FROM records GROUP BY 1 ORDER BY 1",
    ),
    "hourly_by_length": NamedQuery(
        answers="hour x prompt-length bucket: n and p99 of one metric",
        metric="ttft",
        sql=f"SELECT start_unix_ns // 3600000000000 AS hour, {_PROMPT} AS prompt_bucket, count({{m}}) AS n, "  # noqa: S608
        "quantile_cont({m}, 0.99)/1e6 AS p99_ms FROM records GROUP BY 1, 2 ORDER BY 1, 2",
    ),
    "attainment": NamedQuery(
        answers="share of requests that met a bound, by lane; one that did not complete has missed it",
        metric="ttft",
        numbers={"bound_ms": 500},
        sql="SELECT lane, count(*) AS n, count(*) FILTER (outcome = 'completed' AND {m} <= {bound_ms} * 1e6) AS met, "
        "count(*) FILTER (outcome = 'completed' AND {m} <= {bound_ms} * 1e6) / count(*) AS share "
        "FROM records GROUP BY 1 ORDER BY 1",
    ),
    "missed_over_time": NamedQuery(
        answers="requests, and those that missed a bound, by lane and by when they ended; shadow copies are none",
        metric="ttft",
        numbers={"bound_ms": 500, "cell_s": 30, "absent_misses": 1},
        sql="SELECT lane, (start_unix_ns + e2e_ns) // CAST({cell_s} * 1e9 AS BIGINT) * CAST({cell_s} * 1e9 AS BIGINT) "
        "+ CAST({cell_s} * 1e9 AS BIGINT) AS until_unix_ns, count(*) AS requests, count(*) FILTER "
        "(outcome <> 'completed' OR {m} > {bound_ms} * 1e6 OR ({absent_misses} > 0 AND {m} IS NULL AND stream)) "
        "AS missed FROM records WHERE route <> 'shadow' GROUP BY 1, 2 ORDER BY 1, 2",
    ),
    "two_windows": NamedQuery(
        answers="one metric of every request on both sides of a moment, with what the work was: the input of a verdict",
        metric="ttft",
        numbers={"split_unix_ns": 0},
        sql="SELECT CASE WHEN start_unix_ns < CAST({split_unix_ns} AS BIGINT) THEN 'a' ELSE 'b' END AS arm, "
        "lane, outcome, prompt_tokens, output_tokens, {m}/1e6 AS value_ms "
        "FROM records ORDER BY start_unix_ns, request_id",
    ),
    "keep_reasons": NamedQuery(
        answers="why timelines were kept, how many, and how many requests they stand for",
        sql="SELECT keep_reason, count(*) AS n, sum(keep_weight) AS stands_for, "
        "count(*) FILTER (timeline_at_ns IS NOT NULL) AS timelines FROM records GROUP BY 1 ORDER BY n DESC, 1",
    ),
    "missing_stamps": NamedQuery(
        answers="completed streamed requests whose first token was not seen, by engine and endpoint",
        sql="SELECT engine, endpoint, count(*) AS n, count(*) FILTER (ttft_ns IS NULL) AS without_ttft, "
        "count(*) FILTER (tpot_ns IS NULL) AS without_tpot FROM records WHERE outcome = 'completed' AND stream "
        "GROUP BY 1, 2 ORDER BY n DESC, 1, 2",
    ),
}
"""Name -> query. DuckDB's dialect; `quantile_cont` is `quantilesExactInclusive` elsewhere."""


def query_sql(name: str, metric: str | None = None, **numbers: float) -> str:
    """The SQL of a named query. InputError for an unknown name, metric or number."""
    query = QUERIES.get(name)
    if query is None:
        raise InputError(f"there is no query {name!r}", remedy=f"Known: {', '.join(QUERIES)}.")
    unknown = [key for key in numbers if key not in query.numbers]
    if unknown:
        known = ", ".join(query.numbers) or "none"
        raise InputError(f"query {name} takes no {unknown[0]!r}", remedy=f"It takes: {known}.")
    column = ""
    if query.metric:
        column = METRICS.get(metric or query.metric, "")
        if not column:
            raise InputError(f"there is no metric {metric!r}", remedy=f"Known: {', '.join(METRICS)}.")
    elif metric is not None:
        raise InputError(f"query {name} takes no metric")
    values = {key: _number(numbers.get(key, default)) for key, default in query.numbers.items()}
    return query.sql.format(m=column, **values)


def _number(value: float) -> str:
    # Only numbers are ever put into SQL, and in full: 1e18 nanoseconds keep their last digit.
    return str(int(value)) if float(value).is_integer() else repr(float(value))
