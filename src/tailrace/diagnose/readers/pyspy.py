"""Stack dumps of `py-spy dump`: what each thread did at one moment, classed by the code that it stood in.

Each thread is an event `stack`: its process, name, state, its first frames, and in `class` what they are of:
`jit`, `gc`, `tokenizer`, `image`, `audio`, `grammar`, `detokenizer`, `output`, `json`, `collective`, `lock`, `waiting`,
or empty. A dump proves something only if it was taken while it was slow: nothing in it says when that was.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from tailrace.diagnose.observed import Event, Observed, Place, Understood
from tailrace.diagnose.readers.format import Format
from tailrace.diagnose.readers.logs.jit import COMPILER_FRAME

__all__ = ["PYSPY", "class_of", "read_pyspy"]

_PROCESS: Final = re.compile(r"^\s*Process\s+(\d+)\s*:\s*(.*)$")
_THREAD: Final = re.compile(r"^\s*Thread\s+(0x[0-9A-Fa-f]+|\d+)\s*\(([a-z+, ]+)\)\s*:?\s*\"?(.*?)\"?\s*$")
_FRAME: Final = re.compile(r"^\s+(?:at\s+)?(.+?)\s+\((.+?)(?::(\d+))?\)\s*$")
_PYTHON: Final = re.compile(r"^\s*Python v\d")
_MOST_THREADS: Final = 2000
_LOOKED_AT: Final = 15
"""Frames from the innermost; further out every stack is the engine's loop."""
_SHOWN: Final = 4

_CLASSES: Final[dict[str, re.Pattern[str]]] = {
    "gc": re.compile(r"gc_collect|_PyGC|gc\.collect|visit_reachable|subtract_refs|\(gc\.py|update_refs|gc_utils"),
    "jit": re.compile(
        rf"{COMPILER_FRAME}|flashinfer/jit|cpp_extension|numba/core|cutlass\S*compil|code_generator\.py|"
        r"ast_to_ttir|make_cubin"
    ),
    "grammar": re.compile(
        r"xgrammar|outlines|llguidance|lm_format_enforcer|guided_decoding|structured_output|interegular"
    ),
    "detokenizer": re.compile(
        r"detokeniz|DecodeStream|convert_ids_to_tokens|convert_tokens_to_string|batch_decode|_decode_asynchronous"
    ),
    "tokenizer": re.compile(
        r"tokenizers?[/.]|tokenization_|tiktoken|sentencepiece|apply_chat_template|jinja2|encode_batch|_batch_encode"
    ),
    "image": re.compile(r"(^|[/ (])PIL[/.]|torchvision|cv2|image_processing|image_utils|decord|imageio|\(Image\.py"),
    "audio": re.compile(
        r"librosa|soundfile|torchaudio|resampy|soxr|audioread|feature_extraction|whisper/audio|audio_utils|pydub"
    ),
    "output": re.compile(r"^(_?process_outputs?|_?handle_batch_output|output_handler)\b|output_processor\.py"),
    "json": re.compile(r"^(dumps|iterencode|model_dump|model_dump_json|jsonable_encoder)\b|\(json/encoder|orjson"),
    "collective": re.compile(
        r"all_?reduce|all_?gather|reduce_scatter|nccl|distributed_c10d|barrier|custom_all_reduce|broadcast_tensor"
    ),
    "waiting": re.compile(
        r"^(select|poll|epoll_wait|wait|_wait_for_tstate_lock|run_once|recv|recv_multipart|accept|sleep|acquire_read|"
        r"dequeue|get) |selectors\.py|shm_broadcast|\(queue\.py|uvloop/loop|asyncio/base_events"
    ),
    "lock": re.compile(r"^(acquire|__enter__|lock) .*(threading|lock)|filelock"),
}
"""Class -> what a frame (`function (path:line)`) of it looks like."""


def class_of(frames: list[str]) -> tuple[str, str]:
    """(class, the frame that told), by the innermost frame that tells any; empty where none does.

    A wait that something else was called for is that something: the frames around it are asked first.
    """
    waiting = ("", "")
    for frame in frames[:_LOOKED_AT]:
        found = next((name for name, words in _CLASSES.items() if words.search(frame)), "")
        if found in ("waiting", "lock"):
            waiting = waiting if waiting[0] else (found, frame)
        elif found:
            return found, frame
    return waiting


def read_pyspy(path: Path, name: str) -> Observed:
    """The threads of all processes in a dump (or several after each other)."""
    out = Observed()
    process, title = "", ""
    thread: tuple[int, str, str, str] | None = None
    frames: list[str] = []
    total = understood = 0
    lost: list[str] = []

    def close() -> None:
        nonlocal thread, frames
        if thread is not None and frames and len(out.events) < _MOST_THREADS:
            line, number, state, label = thread
            told, frame = class_of(frames)
            out.events.append(
                Event(
                    kind="stack",
                    text=" < ".join(frames[:_SHOWN]),
                    attributes={
                        "process": process,
                        "title": title,
                        "thread": label or number,
                        "state": "active" if "active" in state else "idle",
                        "gil": "yes" if "gil" in state else "",
                        "class": told,
                        "frame": frame,
                        "main": "yes" if label in ("MainThread", "") or number == process else "",
                    },
                    place=Place(name, line),
                )
            )
        thread, frames = None, []

    with path.open(encoding="utf-8-sig", errors="replace") as file:
        for number, raw in enumerate(file, start=1):
            text = raw.rstrip("\n")
            if not text.strip():
                continue
            total += 1
            found = _PROCESS.match(text)
            if found is not None:
                close()
                process, title = found[1], found[2].strip()[:200]
            elif (head := _THREAD.match(text)) is not None:
                close()
                thread = number, head[1], head[2], head[3]
            elif thread is not None and (frame := _FRAME.match(text)) is not None:
                frames.append(f"{frame[1]} ({frame[2]}{':' + frame[3] if frame[3] else ''})"[:200])
            elif not _PYTHON.match(text):
                if len(lost) < 3:
                    lost.append(f"{number}: {text.strip()[:80]}")
                continue
            understood += 1
    close()
    out.understood = [Understood(source=name, format="py-spy dump", understood=understood, total=total, examples=lost)]
    return out


def _matches(head: str, name: str) -> bool:
    _ = name
    lines = head.splitlines()[:400]
    return any(_THREAD.match(line) for line in lines) and any(_FRAME.match(line) for line in lines)


PYSPY: Final = Format(name="py-spy dump", matches=_matches, read=read_pyspy)
