"""Speech streams made to measure, written as their events, and what is found in them."""

import json
import re
from pathlib import Path

from tailrace.diagnose.causes import CAUSES
from tailrace.diagnose.observed import Observed
from tailrace.diagnose.readers.formats import format_of
from tailrace.model.finding import Finding


def read(path: Path) -> Observed:
    """What a file says, by the format that its beginning tells."""
    form = format_of(path.read_bytes()[: 1 << 16].decode("utf-8", "replace").lstrip("\ufeff \t\r\n"), path.name)
    assert form is not None, path.read_text()[:200]
    return form.read(path, path.name)


def write(path: Path, events: list[dict]) -> Path:
    """One event a line."""
    path.write_text("".join(json.dumps(event) + "\n" for event in events))
    return path


def found(observed: Observed, code: str) -> Finding | None:
    """What the cause of this code says."""
    finding = next(cause for cause in CAUSES if cause.code == code).observe(observed)
    if finding is not None:
        says_nothing_else(finding)
    return finding


def says_nothing_else(finding: Finding) -> None:
    """Every number of the statement stands in the evidence or the relation."""
    told = " ".join([finding.relation, *(item.text for item in finding.evidence)]).replace(",", "")
    for number in re.findall(r"(?<![\w.])\d+(?:\.\d+)?", finding.statement.replace(",", "")):
        assert re.search(rf"(?<![\d.]){re.escape(number)}(?![\d])", told), f"{number} in {finding.statement}: {told}"


def audio(
    until: float, *, chunk: float = 0.1, voiced=True, rms: float | None = -24.0, delay=0.02, rate=1.0
) -> list[dict]:
    """Paced audio: each chunk is received `delay` after its end. `voiced` and `delay` may be functions of the position;
    `rate`: audio seconds for each second of the clock.
    """
    out = []
    for number in range(round(until / chunk)):
        start, end = number * chunk, (number + 1) * chunk
        spoken = voiced(start) if callable(voiced) else voiced
        late = delay(end) if callable(delay) else delay
        event = {
            "stream_id": "s",
            "t_recv": round(end / rate + late, 6),
            "kind": "audio",
            "audio_start_s": round(start, 6),
            "audio_end_s": round(end, 6),
        }
        if spoken is not None:
            event["voiced"] = bool(spoken)
        if rms is not None:
            event["rms_dbfs"] = rms if spoken else -70.0
        out.append(event)
    return out


def partial(
    at: float, text: str, *, end: float | None = None, utterance="u", kind="partial", mode="replace", **more
) -> dict:
    """A result."""
    event = {"stream_id": "s", "utt_id": utterance, "t_recv": at, "kind": kind, "mode": mode, "text": text, **more}
    if end is not None:
        event["audio_end_s"] = end
    if kind == "final":
        event |= {"segment_final": True, "turn_final": True}
    return event
