"""What to collect next where the evidence only hints at a question: a device's use alone, a slowing pace, sentences."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from tailrace.diagnose.observed import Observed
from tailrace.diagnose.observed.load import loads
from tailrace.diagnose.speech_evidence.turns import turns_of

__all__ = ["by_hints"]

SLOWED: Final = 0.85
STEADY: Final = 0.05
FEWEST: Final = 6
_VOICE: Final = re.compile(
    r"\b(?:stt|asr|tts|vad|voice (?:agent|bot)|phone bot|turn detect\w*|end.?of.?(?:turn|utterance)|speech to text)\b",
    re.IGNORECASE,
)
_VERSIONS: Final = re.compile(
    r"\bv?\d+\.\d+(?:\.\d+)?\b.{0,60}\b(?:to|->|and|against|vs)\b.{0,40}\bv?\d+\.\d+", re.IGNORECASE
)
_CHANGED: Final = re.compile(
    r"\b(?:upgrad|updat|downgrad|went from|migrat|switch|roll(?:ed)? ?back|regress)", re.IGNORECASE
)


def by_hints(observed: Observed) -> list[str]:
    """One want a hint, the most telling first."""
    words = " ".join(observed.notes)
    out = [*_of_slowing(observed), *_of_use_alone(observed)]
    if _VOICE.search(words) and not turns_of(observed):
        out.append(
            "of some turns, each stage apart: end-of-turn (end of utterance) delay, transcription delay, the LLM's "
            "first token and the voice's first audio, beside the silence that a recording has"
        )
    if (_VERSIONS.search(words) or _CHANGED.search(words)) and len(observed.arms) < 2:
        out.append(
            "both versions at equal load: one request alone and the usual concurrency (batch), with equal prompt and "
            "answer lengths; production of two days differs in its mix as well"
        )
    return out


def _of_slowing(observed: Observed) -> list[str]:
    """A pace that falls while as many run: several things do that, and each has a reading of its own."""
    for load in loads(observed):
        running, rate = load.get("running"), load.get("output_tok_s")
        known = np.isfinite(running) & np.isfinite(rate) & (running > 0) & (rate > 0)
        if known.sum() < FEWEST or float(np.ptp(running[known])) > STEADY * float(running[known].mean()):
            continue
        made = rate[known]
        part = max(made.size // 3, 2)
        early, late = float(np.median(made[:part])), float(np.median(made[-part:]))
        if late > SLOWED * early:
            continue
        kv = load.get("kv_usage")[known]
        grown = np.isfinite(kv).all() and kv[-1] > kv[0]
        longer = f" while KV usage grows from {kv[0]:.0%} to {kv[-1]:.0%}" if grown else ""
        words = (
            f"what slows the steps: {made[0]:.4g} -> {made[-1]:.4g} tok/s at {float(running[known][0]):g} running"
            f"{longer}. A longer context, a detokeniser that grows and a falling clock look alike: SM clock "
            "(nvidia-smi), CPU of the engine's processes (a profile), and the same with short contexts tell them apart"
        )
        return [words]
    return []


def _of_use_alone(observed: Observed) -> list[str]:
    """A busy device by itself is neither full nor too small."""
    known = [series for series in observed.of_series("gpu_util") if np.isfinite(series.values).any()]
    if not known or observed.arms or observed.rows or loads(observed):
        return []
    low = min(float(np.nanmin(series.values)) for series in known)
    high = max(float(np.nanmax(series.values)) for series in known)
    words = (
        "queue time, running and waiting requests, prompt lengths and prefix hits of the same time: GPU utilisation of "
        f"{low:.0%} to {high:.0%} alone gives no verdict, and no reason to add a device"
    )
    return [words]
