"""Lines in which an engine says that it compiled a kernel while requests waited."""

from __future__ import annotations

import re
from typing import Final

from tailrace.diagnose.readers.logs.context import Context

__all__ = ["COMPILER_FRAME", "is_jit", "jit", "jit_in_text"]

COMPILER_FRAME: Final = (
    r"triton[/.](?:compiler|runtime[/.](?:jit|build|autotuner)|backends)|tilelang|deep_gemm\S*(?:jit|compil)|"
    r"torch[/.]_inductor[/.](?:compile_fx|codecache|codegen|graph|scheduler|lowering|async_compile|compile_worker)|"
    r"torch[/.]_dynamo[/.](?:convert_frame|symbolic_convert|output_graph|bytecode|variables)|"
    r"\b(?:nvrtc|ptxas|nvcc)\b"
)
"""A frame of a compiler at work. Code that is compiled long since runs below `torch/_dynamo/eval_frame.py` and
`torch/_inductor/output_code.py` as well: they say nothing.
"""

_KERNEL: Final = re.compile(
    rb"(?:(\w+) kernel )?JIT compilation during inference:? ?(?:for )?[`'\"]?([\w.<>:]+?)[`'\"]?(?=[\s.,;(]|$)",
    re.IGNORECASE,
)
_DEEPGEMM: Final = re.compile(rb"DeepGEMM JIT (?:code generation|compil\w+)[^<]{0,40}<?([\w.]*)>?:?")
_AUTOTUNE: Final = re.compile(rb"(?:[Tt]riton )?[Aa]utotuning (?:kernel |function |of )([\w.]+)")
_RECOMPILED: Final = re.compile(rb"torch\._dynamo hit config\.(?:re)?compile\w*limit|Recompiling function (\w+)")
_COMPILING: Final = re.compile(
    rb"[Cc]ompil(?:ing|ed|ation of) (?:(?:the|a|new|cuda|CUDA|triton|Triton) )*kernels?:? "
    rb"(?!(?:took|in|for|with|during|at|to|on|and|cache|done)\b)[`'\"]?([\w.<>:]+)"
)
_SERVING: Final = re.compile(rb"during|serving|inference|request|took|on the fly|lazily|runtime|first (?:use|call)")
"""Who compiles at the start says none of these, or the next."""
_STARTING: Final = re.compile(rb"start-?up|starting|warm-?up|warming|initiali[sz]|loading|pre-?compil|ahead of time")
_SHAPE: Final = re.compile(rb"\b([A-Z]\w{0,11})=(\d+)\b")
_SECONDS: Final = re.compile(rb"(?:took|in|elapsed:?) ([\d.]+) ?(s|ms)\b")
_ENGINE: Final = re.compile(rb"\(EngineCore(?:_DP)?_?(\d+)")


def is_jit(line: bytes) -> bool:
    """Cheap: whether it is worth a look."""
    return (
        b"JIT" in line or b"utotuning" in line or b"ecompil" in line or b"compile_limit" in line or b" kernel" in line
    )


def jit_in_text(text: str) -> dict[str, float | str] | None:
    """What a line of a compiler says, quoted somewhere else; `None` where it is none."""
    line = text.encode()
    return _told(line) if is_jit(line) else None


def jit(context: Context, line: bytes) -> bool:
    """A kernel's name, its shape, the seconds where they are told; False where the line is cut before the name."""
    attributes = _told(line)
    if attributes is None:
        return False
    engine = _ENGINE.search(line)
    if engine is not None:
        attributes["engine"] = str(int(engine[1]))
    context.events.add("jit", context.number, context.stamp(line), line, attributes)
    return context.understood("jit lines")


def _while_serving(line: bytes) -> bool:
    return _SERVING.search(line) is not None and _STARTING.search(line) is None


def _told(line: bytes) -> dict[str, float | str] | None:
    attributes: dict[str, float | str] = {}
    kernel = b""
    maker = ""
    for pattern, usual in (
        (_KERNEL, ""),
        (_DEEPGEMM, "DeepGEMM"),
        (_AUTOTUNE, "Triton"),
        (_RECOMPILED, "Dynamo"),
        (_COMPILING, ""),
    ):
        found = pattern.search(line)
        if found is None or (pattern is _COMPILING and not _while_serving(line)):
            continue
        if pattern is _KERNEL:
            kernel, maker = found[2], (found[1] or b"").decode("utf-8", "replace")
        else:
            kernel, maker = found[1] or b"", usual
        attributes["kernel"] = kernel.decode("utf-8", "replace")[:200] or maker
        if maker:
            attributes["maker"] = maker
        break
    else:
        return None
    shape = _SHAPE.findall(line, found.end() - 1)
    if shape:
        attributes["shape"] = ", ".join(f"{key.decode()}={value.decode()}" for key, value in shape[:8])
    took = _SECONDS.search(line, found.end())
    if took is not None:
        attributes["took_ms"] = float(took[1]) * (1e3 if took[2] == b"s" else 1.0)
    return attributes
