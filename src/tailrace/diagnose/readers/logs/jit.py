"""Lines in which an engine says that it compiled a kernel while requests waited."""

from __future__ import annotations

import re
from typing import Final

from tailrace.diagnose.readers.logs.context import Context

__all__ = ["is_jit", "jit"]

_KERNEL: Final = re.compile(
    rb"(?:(\w+) kernel )?JIT compilation during inference:? ?(?:for )?[`'\"]?([\w.<>:]+?)[`'\"]?(?=[\s.,;(]|$)",
    re.IGNORECASE,
)
_DEEPGEMM: Final = re.compile(rb"DeepGEMM JIT (?:code generation|compil\w+)[^<]{0,40}<?([\w.]*)>?:?")
_AUTOTUNE: Final = re.compile(rb"(?:[Tt]riton )?[Aa]utotuning (?:kernel |function |of )([\w.]+)")
_RECOMPILED: Final = re.compile(rb"torch\._dynamo hit config\.(?:re)?compile\w*limit|Recompiling function (\w+)")
_SHAPE: Final = re.compile(rb"\b([A-Z]\w{0,11})=(\d+)\b")
_SECONDS: Final = re.compile(rb"(?:took|in|elapsed:?) ([\d.]+) ?(s|ms)\b")
_ENGINE: Final = re.compile(rb"\(EngineCore(?:_DP)?_?(\d+)")


def is_jit(line: bytes) -> bool:
    """Cheap: whether it is worth a look."""
    return b"JIT" in line or b"utotuning" in line or b"ecompil" in line or b"compile_limit" in line


def jit(context: Context, line: bytes) -> bool:
    """A kernel's name, its shape, the seconds where they are told; False where the line is cut before the name."""
    attributes: dict[str, float | str] = {}
    kernel = b""
    maker = ""
    for pattern, usual in ((_KERNEL, ""), (_DEEPGEMM, "DeepGEMM"), (_AUTOTUNE, "Triton"), (_RECOMPILED, "Dynamo")):
        found = pattern.search(line)
        if found is None:
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
        return False
    shape = _SHAPE.findall(line, found.end() - 1)
    if shape:
        attributes["shape"] = ", ".join(f"{key.decode()}={value.decode()}" for key, value in shape[:8])
    took = _SECONDS.search(line, found.end())
    if took is not None:
        attributes["took_ms"] = float(took[1]) * (1e3 if took[2] == b"s" else 1.0)
    engine = _ENGINE.search(line)
    if engine is not None:
        attributes["engine"] = str(int(engine[1]))
    context.events.add("jit", context.number, context.stamp(line), line, attributes)
    return context.understood("jit lines")
