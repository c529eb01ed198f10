"""RETRY_STORM from an access log: the proxy tries again and again, and the tries are a part of the load."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from tailrace.diagnose.observed import Observed
from tailrace.diagnose.record_evidence.retries import AMPLIFIED, RISING
from tailrace.model.finding import Evidence, Finding

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["retries_in_access"]

MOST_ATTEMPTS: Final = 1e6
"""Nobody tries one request more often: what says so is no count of attempts."""
LEAST: Final = 10


def retries_in_access(cause: Cause, observed: Observed) -> Finding | None:
    """Attempts over requests above 1.2, from the lists with one value an attempt; with errors, and rising."""
    tables = [
        rows
        for rows in observed.table("access")
        if rows.has("attempts") and not np.isnan(rows.numbers("attempts")).all()
    ]
    if not tables:
        return None
    rows = max(tables, key=len)
    attempts, count = np.nan_to_num(rows.numbers("attempts"), nan=1.0), rows.counts()
    attempts = np.where(attempts > MOST_ATTEMPTS, 1.0, attempts)
    status = rows.numbers("status")
    requests, tries = float(count.sum()), float((attempts * count).sum())
    ratio = tries / requests if requests else 0.0
    if requests < LEAST or ratio <= AMPLIFIED:
        return None
    again = attempts > 1
    failed = float(count[status >= 500].sum()) / requests
    waited = rows.numbers("upstream") - rows.numbers("upstream_last")
    lost = waited[again & ~np.isnan(waited)]
    half = len(rows) // 2
    early = float((attempts[:half] * count[:half]).sum() / max(count[:half].sum(), 1.0))
    late = float((attempts[half:] * count[half:]).sum() / max(count[half:].sum(), 1.0))
    rises = late > RISING * early
    top = int(np.argmax(attempts))
    facts = [
        Evidence(
            text=f"{tries:,.0f} attempts for {requests:,.0f} requests: {ratio:.2f} each, at most {attempts[top]:g}",
            source=str(rows.line_of(top)),
            name="attempts",
            value=round(ratio, 3),
        ),
        Evidence(
            f"{failed:.0%} of the requests failed with 5xx in the end",
            rows.place.source,
            "failed_share",
            round(failed, 4),
        ),
        Evidence(
            f"first half {early:.2f} attempts a request, second half {late:.2f}",
            rows.place.source,
            "late",
            round(late, 3),
        ),
    ]
    missing, rivals = [], []
    if lost.size:
        facts.append(
            Evidence(
                text=f"the attempts before the last took {np.median(lost):,.0f} ms (median, n = {lost.size}) and up to "
                f"{lost.max():,.0f} ms",
                source=rows.place.source,
                name="lost",
                value=round(float(np.median(lost)), 1),
                unit="ms",
            )
        )
    if not rises:
        missing.append("whether attempts rise with the errors over time: within this log they do not")
    if (
        failed == 0
        and not (status[again] >= 500).any()
        and not np.isin(rows.numbers("upstream_status")[again], (502, 503, 504)).any()
    ):
        rivals.append("GW_NETWORK")
    return cause.finding(
        statement=f"The proxy repeats what fails: {ratio:.2f} attempts a request ({tries:,.0f} for "
        f"{requests:,.0f}), so the "
        "upstream gets more work the worse it does.",
        evidence=facts,
        explains_ms=float(np.percentile(lost, 99)) if lost.size else None,
        relation=f"{tries:,.0f} / {requests:,.0f} = {ratio:.2f} > {AMPLIFIED:g} attempts a request",
        n=int(requests),
        advice="Give retries a budget (a tenth of the requests), a backoff with jitter, and never repeat a "
        "request that may "
        "have been computed: nginx proxy_next_upstream_tries 2 with proxy_next_upstream_timeout and without "
        "`timeout` in "
        "proxy_next_upstream; Envoy retry_policy with a retry budget. Refuse early (429 with Retry-After) instead.",
        price="Some requests fail at once that a third try would have saved.",
        verify="tailrace diagnose access.log  # after the change: attempts a request below 1.1",
        missing=missing,
        rivals=rivals,
        disproof_checked=[f"second half {late:.2f} against {early:.2f} attempts a request"],
    )
