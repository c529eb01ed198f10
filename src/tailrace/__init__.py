"""Tailrace: where every millisecond of an LLM or speech request went, and why the tail is slow.

Glossary (at most twelve nouns):

* **request**: one call of a client, from its first byte to the last byte of the answer.
* **stage**: a named part of a request's time; the stages of a request add up to its end-to-end time.
* **source**: how a stage's value is known: measured, reported or inferred.
* **record**: one summary row a request (`RequestRecord`).
* **timeline**: the stamps of a request's events; kept for slow and failed requests and a sample of the rest.
* **outcome**: how a request ended: completed, cancelled, timed out, rejected or failed.
* **lane**: a class of traffic with its own running and queued limits.
* **budget**: the longest time that a stage may take.
* **engine**: the program that computes tokens (vLLM, SGLang, Triton, llama.cpp, or the simulated one).
* **run**: a file with every request and event of one load test.
* **finding**: a cause, with its layer, level, evidence and what would disprove it.
* **verdict**: what a comparison of two runs says.
"""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"
__all__ = ["RequestRecord", "__version__"]

_LAZY = {"RequestRecord": "tailrace.model.record"}


def __getattr__(name: str) -> Any:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module 'tailrace' has no attribute {name!r}")
    import importlib  # noqa: PLC0415  (lazy on purpose: `import tailrace` stays cheap)

    return getattr(importlib.import_module(module), name)
