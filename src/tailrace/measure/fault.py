"""Error objects in every shape that engines give them: nested, flat, a bare string, a named event."""

from __future__ import annotations

from typing import Any

from tailrace.measure.dialect import EngineFault, as_count

_LONGEST_MESSAGE = 2000
_LONGEST_CODE = 9


def _code(value: Any) -> int | None:
    if isinstance(value, str) and len(value) <= _LONGEST_CODE and value.isascii() and value.isdigit():
        value = int(value)
    return as_count(value)


def _words(value: Any) -> str:
    """What somebody put where a text belongs, as a text."""
    try:
        return str(value)[:_LONGEST_MESSAGE]
    except RecursionError:
        return "an error nested too deep to be read"


def _from_mapping(body: dict[str, Any], outer: dict[str, Any]) -> EngineFault:
    message = body.get("message")
    if not isinstance(message, str):
        message = _words(message if message is not None else body)
    kind = body.get("type") or outer.get("error_type") or ""
    code = _code(body.get("code"))
    if code is None:
        # Some dialects put the status in `status_code` (TGI: `http_status_code`), or name it as the type.
        code = _code(body.get("status_code"))
    if code is None:
        code = _code(body.get("http_status_code"))
    if code is None:
        code = _code(kind)
    if code is None and isinstance(body.get("code"), str) and not kind:
        kind = body["code"]
    return EngineFault(message[:_LONGEST_MESSAGE], _words(kind), code)


def find_fault(obj: Any) -> EngineFault | None:  # noqa: PLR0911  (one return a shape)
    """The error in a decoded JSON value, or `None`.

    Shapes: `{"error": {...}}` (OpenAI, vLLM, llama.cpp, Anthropic), `{"error": "text"}` (Triton, TGI),
    `{"object": "error", "message": ...}` (SGLang, older vLLM), `{"detail": ...}` (bare FastAPI).
    """
    if not isinstance(obj, dict):
        return None
    error = obj.get("error")
    if isinstance(error, dict):
        return _from_mapping(error, obj)
    if isinstance(error, str) and error:
        kind = obj.get("error_type") or obj.get("type") or ""
        return EngineFault(error[:_LONGEST_MESSAGE], _words(kind), _code(obj.get("code")))
    if error:
        return EngineFault(_words(error))
    if obj.get("object") == "error" or (obj.get("type") == "error" and "message" in obj):
        flat = {key: value for key, value in obj.items() if not (key == "type" and value == "error")}
        return _from_mapping(flat, obj)
    if "detail" in obj and "choices" not in obj:
        detail = obj["detail"]
        return EngineFault(_words(detail))
    return None


def named_fault(data: bytes, obj: Any) -> EngineFault:
    """The error of an event that is called `error`, whatever its data holds."""
    fault = find_fault(obj)
    if fault is not None:
        return fault
    if isinstance(obj, dict):
        return _from_mapping(obj, obj)
    return EngineFault(data.decode("utf-8", "replace")[:_LONGEST_MESSAGE])


def abort_fault(finish_reason: Any) -> EngineFault | None:
    """The error in a finish reason that is an object: SGLang's `{"type": "abort", "status_code": ..., "message": ...}`.

    `None` for an ordinary one, and for an abort without a message: nothing is known about that one.
    """
    if not isinstance(finish_reason, dict) or finish_reason.get("type") != "abort":
        return None
    message = finish_reason.get("message")
    if not isinstance(message, str) or not message:
        return None
    return EngineFault(message[:_LONGEST_MESSAGE], "abort", _code(finish_reason.get("status_code")))
