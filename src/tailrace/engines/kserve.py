"""Triton's gRPC messages, read for what a record needs: who asks for what, which answer is whose, which is the last.

A walk over a message's top-level fields that steps over tensors by their length. A tensor of 100 MB costs what one of
100 bytes does, which no parser that builds objects can say, and nothing is ever written back: what is relayed are the
bytes that came. Field numbers are those of `grpc_service.proto`
(https://github.com/triton-inference-server/common/blob/main/protobuf/grpc_service.proto).
"""

from __future__ import annotations

from typing import Final

import msgspec

from tailrace.measure.dialect import EngineFault, Meaning
from tailrace.model.timeline import EventKind

# ModelInferRequest and ModelInferResponse
_MODEL: Final = 1
_ID: Final = 3
_PARAMETERS: Final = 4
_TENSORS: Final = 5
"""`inputs` of a request, `outputs` of an answer."""
_REQUEST_RAW: Final = 7
_ANSWER_RAW: Final = 6
# ModelStreamInferResponse
_ERROR_MESSAGE: Final = 1
_INFER_RESPONSE: Final = 2

_VARINT: Final = 0
_FIXED64: Final = 1
_BYTES: Final = 2
_FIXED32: Final = 5

_FINAL: Final = b"triton_final_response"
_WANTS_FINAL: Final = b"triton_enable_empty_final_response"
_TEXT_IN: Final = b"text_input"
_TEXT_OUT: Final = b"text_output"
_MAX_TOKENS: Final = b"max_tokens"
_BYTES_PER_TOKEN: Final = 4
_LONGEST_NAME: Final = 4096


class WireError(Exception):
    """The bytes are no message of this kind."""


class InferAsk(msgspec.Struct, frozen=True, gc=False):
    """What a `ModelInferRequest` asks for."""

    model: str = ""
    id: str = ""
    wants_final: bool = False
    """The client itself asked for an empty last answer (`triton_enable_empty_final_response`)."""
    prompt_tokens: int | None = None
    """An estimate from a `text_input` tensor, 4 bytes a token; absent without one."""
    max_tokens: int | None = None
    """The first value of an integer tensor `max_tokens`, where it came raw."""


class InferAnswer(msgspec.Struct, frozen=True, gc=False):
    """What a `ModelStreamInferResponse`, or the `ModelInferResponse` in it, says."""

    id: str = ""
    final: bool | None = None
    """`triton_final_response`; `None` where the answer does not say."""
    outputs: int = 0
    silent: bool = False
    """There is a `text_output`, and no text in it: no token."""
    error: str = ""

    @property
    def empty_final(self) -> bool:
        """The bare end mark, which comes only to those who asked for it."""
        return self.final is True and not self.outputs and not self.error

    def meaning(self) -> Meaning:
        """As the meter takes it. An answer with outputs is a token-carrying event, whatever its tensors hold."""
        if self.error:
            return Meaning(EventKind.ERROR, response_id=self.id, fault=fault_of(self.error))
        if self.outputs and not self.silent:
            return Meaning(EventKind.CONTENT, 0, self.id, has_content=True)
        return Meaning(EventKind.EMPTY, response_id=self.id)


END: Final = Meaning(EventKind.DONE, done=True)
"""The end mark, whether it came alone or on the last answer."""


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            break
    raise WireError("a number does not end")


def _field(data: bytes, at: int, end: int) -> tuple[int, int, int, int]:
    """The field at `at`: (number, wire type, start and stop of its value). The next one begins at its stop."""
    tag = data[at]
    if tag < 0x80:
        at += 1
    else:
        tag, at = _varint(data, at, end)
    number, kind = tag >> 3, tag & 7
    if not number:
        raise WireError("a field has the number 0")
    if kind == _BYTES:
        if at < end and data[at] < 0x80:
            size = data[at]
            at += 1
        else:
            size, at = _varint(data, at, end)
        stop = at + size
    elif kind == _VARINT:
        stop = _varint(data, at, end)[1]
    elif kind == _FIXED64:
        stop = at + 8
    elif kind == _FIXED32:
        stop = at + 4
    else:
        raise WireError(f"wire type {kind} is none of this protocol")
    if stop > end:
        raise WireError("a field ends behind its message")
    return number, kind, at, stop


def _text(data: bytes, start: int, stop: int) -> str:
    return data[start : min(stop, start + _LONGEST_NAME)].decode("utf-8", "replace")


def _parameter(data: bytes, at: int, end: int) -> tuple[bytes, bool]:
    """A map entry of `parameters`: its key, and its value where that is a boolean."""
    key, flag = b"", False
    while at < end:
        number, kind, start, stop = _field(data, at, end)
        if number == 1 and kind == _BYTES:
            key = data[start : min(stop, start + _LONGEST_NAME)]
        elif number == 2 and kind == _BYTES:
            inner = start
            while inner < stop:
                number, kind, start, inner = _field(data, inner, stop)
                if number == 1 and kind == _VARINT:
                    flag = _varint(data, start, inner)[0] != 0
        at = stop
    return key, flag


def _tensor(data: bytes, at: int, end: int) -> tuple[bytes, bytes]:
    """Name and data type of an input or output tensor."""
    name = datatype = b""
    while at < end:
        number, kind, start, stop = _field(data, at, end)
        if kind == _BYTES and number <= 2:
            value = data[start : min(stop, start + _LONGEST_NAME)]
            if number == 1:
                name = value
            else:
                datatype = value
        at = stop
    return name, datatype


def read_ask(data: bytes) -> InferAsk:
    """Read a `ModelInferRequest`. Raises `WireError` where the bytes are none."""
    model = request_id = ""
    wants_final = False
    tensors: list[tuple[bytes, bytes]] = []
    raw: list[tuple[int, int]] = []
    at, end = 0, len(data)
    while at < end:
        number, kind, start, at = _field(data, at, end)
        if kind != _BYTES:
            continue
        if number == _MODEL:
            model = _text(data, start, at)
        elif number == _ID:
            request_id = _text(data, start, at)
        elif number == _PARAMETERS:
            key, flag = _parameter(data, start, at)
            if key == _WANTS_FINAL:
                wants_final = flag
        elif number == _TENSORS:
            tensors.append(_tensor(data, start, at))
        elif number == _REQUEST_RAW:
            raw.append((start, at))
    prompt_tokens, max_tokens = _sizes(data, tensors, raw)
    return InferAsk(model, request_id, wants_final, prompt_tokens, max_tokens)


def _sizes(
    data: bytes, tensors: list[tuple[bytes, bytes]], raw: list[tuple[int, int]]
) -> tuple[int | None, int | None]:
    """Prompt tokens and their limit, from the tensors that a language model's request has."""
    prompt_tokens = max_tokens = None
    # Inputs whose data stand in the tensor itself have no raw content, and then none of the message has.
    for (name, datatype), (start, stop) in zip(tensors, raw, strict=False):
        if name == _TEXT_IN and datatype == b"BYTES":
            prompt_tokens = -(-max(0, stop - start - 4) // _BYTES_PER_TOKEN)
        elif name == _MAX_TOKENS and datatype in (b"INT32", b"UINT32") and stop - start >= 4:
            value = int.from_bytes(data[start : start + 4], "little", signed=datatype == b"INT32")
            max_tokens = value if value >= 0 else None
    return prompt_tokens, max_tokens


def read_answer(data: bytes) -> InferAnswer:
    """Read a `ModelStreamInferResponse`. Raises `WireError` where the bytes are none."""
    error = ""
    answer: InferAnswer | None = None
    at, end = 0, len(data)
    while at < end:
        number, kind, start, at = _field(data, at, end)
        if kind != _BYTES:
            continue
        if number == _ERROR_MESSAGE:
            error = _text(data, start, at)
        elif number == _INFER_RESPONSE:
            answer = _read_response(data, start, at)
    if answer is None:
        return InferAnswer(error=error)
    return InferAnswer(answer.id, answer.final, answer.outputs, answer.silent, error) if error else answer


def read_response(data: bytes) -> InferAnswer:
    """Read a `ModelInferResponse`. Raises `WireError` where the bytes are none."""
    return _read_response(data, 0, len(data))


def _read_response(data: bytes, at: int, end: int) -> InferAnswer:
    request_id = ""
    final: bool | None = None
    outputs = raws = 0
    text_at = -1
    text_raw: tuple[int, int] | None = None
    while at < end:
        number, kind, start, at = _field(data, at, end)
        if kind != _BYTES:
            continue
        if number == _ID:
            request_id = _text(data, start, at)
        elif number == _PARAMETERS:
            key, flag = _parameter(data, start, at)
            if key == _FINAL:
                final = flag
        elif number == _TENSORS:
            if text_at < 0 and _tensor(data, start, at) == (_TEXT_OUT, b"BYTES"):
                text_at = outputs
            outputs += 1
        elif number == _ANSWER_RAW:
            if raws == text_at:
                text_raw = (start, at)
            raws += 1
    # A raw text tensor is a 4-byte length and so many bytes, for each element: zeros alone are empty texts.
    silent = text_raw is not None and not data[text_raw[0] : text_raw[1]].strip(b"\0")
    return InferAnswer(request_id, final, outputs, silent)


_BY_WORDING: Final = (
    ("unknown model", 404),
    ("unexpected inference input", 400),
    ("unexpected inference output", 400),
    ("unexpected shape for input", 400),
    ("unexpected datatype", 400),
    ("inputs but got", 400),
)


def fault_of(message: str) -> EngineFault:
    """An error inside a stream, which has no status: Triton's wording of a client's mistake tells it from its own."""
    lower = message.lower()
    code = next((code for words, code in _BY_WORDING if words in lower), None)
    return EngineFault(message, code=code)


# -- what we write ourselves


def _sized(number: int, value: bytes) -> bytes:
    out = bytearray([number << 3 | _BYTES])
    size = len(value)
    while size > 0x7F:
        out.append(size & 0x7F | 0x80)
        size >>= 7
    out.append(size)
    return bytes(out) + value


ASK_FINAL: Final = _sized(_PARAMETERS, _sized(1, _WANTS_FINAL) + _sized(2, b"\x08\x01"))
"""Appended to a `ModelInferRequest`, asks for the end mark: fields have no order, and the last of a key wins."""


def error_answer(request_id: str, message: str) -> bytes:
    """A `ModelStreamInferResponse` that ends one request of a stream with an error, as Triton words its own."""
    response = _sized(_ID, request_id.encode()) if request_id else b""
    return _sized(_ERROR_MESSAGE, message.encode()) + _sized(_INFER_RESPONSE, response)
