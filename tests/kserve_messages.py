"""Triton's gRPC messages, built by protobuf from a description made here: what the project's own reader is held to."""

from __future__ import annotations

import struct
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

SERVICE = "/inference.GRPCInferenceService/"
_F = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "bool": _F.TYPE_BOOL,
    "int64": _F.TYPE_INT64,
    "uint64": _F.TYPE_UINT64,
    "double": _F.TYPE_DOUBLE,
    "string": _F.TYPE_STRING,
    "bytes": _F.TYPE_BYTES,
}
# message -> (number, name, type, repeated); a type that is no scalar is a message. Numbers of grpc_service.proto.
_MESSAGES: dict[str, list[tuple[int, str, str, bool]]] = {
    "InferParameter": [
        (1, "bool_param", "bool", False),
        (2, "int64_param", "int64", False),
        (3, "string_param", "string", False),
        (4, "double_param", "double", False),
        (5, "uint64_param", "uint64", False),
    ],
    "Entry": [(1, "key", "string", False), (2, "value", "InferParameter", False)],
    "Tensor": [
        (1, "name", "string", False),
        (2, "datatype", "string", False),
        (3, "shape", "int64", True),
        (4, "parameters", "Entry", True),
    ],
    "ModelInferRequest": [
        (1, "model_name", "string", False),
        (2, "model_version", "string", False),
        (3, "id", "string", False),
        (4, "parameters", "Entry", True),
        (5, "inputs", "Tensor", True),
        (6, "outputs", "Tensor", True),
        (7, "raw_input_contents", "bytes", True),
    ],
    "ModelInferResponse": [
        (1, "model_name", "string", False),
        (2, "model_version", "string", False),
        (3, "id", "string", False),
        (4, "parameters", "Entry", True),
        (5, "outputs", "Tensor", True),
        (6, "raw_output_contents", "bytes", True),
    ],
    "ModelStreamInferResponse": [
        (1, "error_message", "string", False),
        (2, "infer_response", "ModelInferResponse", False),
    ],
}


def _build() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="kserve_for_tests.proto", package="tests", syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, field, kind, repeated in fields:
            made = message.field.add(name=field, number=number)
            made.label = _F.LABEL_REPEATED if repeated else _F.LABEL_OPTIONAL
            if kind in _SCALARS:
                made.type = _SCALARS[kind]
            else:
                made.type, made.type_name = _F.TYPE_MESSAGE, f".tests.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"tests.{name}")) for name in _MESSAGES}


_CLASSES = _build()
InferRequest = _CLASSES["ModelInferRequest"]
InferResponse = _CLASSES["ModelInferResponse"]
StreamResponse = _CLASSES["ModelStreamInferResponse"]


def text_tensor(text: str) -> bytes:
    """One element of a BYTES tensor, as raw contents hold it."""
    data = text.encode()
    return struct.pack("<I", len(data)) + data


def ask(
    model: str = "m", request_id: str = "", *, text: str | None = "hi", max_tokens: int | None = None, **flags: bool
) -> bytes:
    """A `ModelInferRequest`; `flags` are boolean parameters."""
    message = InferRequest(model_name=model, id=request_id)
    for key, value in flags.items():
        message.parameters.add(key=key).value.bool_param = value
    if text is not None:
        message.inputs.add(name="text_input", datatype="BYTES", shape=[1])
        message.raw_input_contents.append(text_tensor(text))
    if max_tokens is not None:
        message.inputs.add(name="max_tokens", datatype="INT32", shape=[1])
        message.raw_input_contents.append(struct.pack("<i", max_tokens))
    return bytes(message.SerializeToString())


def _response(request_id: str, *, final: bool | None, text: str | None, size: int) -> Any:
    message = InferResponse(model_name="m", model_version="1", id=request_id)
    if final is not None:
        message.parameters.add(key="triton_final_response").value.bool_param = final
    if text is not None:
        message.outputs.add(name="text_output", datatype="BYTES", shape=[1])
        message.raw_output_contents.append(text_tensor(text))
    if size:
        message.outputs.add(name="y", datatype="FP32", shape=[size // 4])
        message.raw_output_contents.append(b"\1" * size)
    return message


def whole(request_id: str = "", *, text: str | None = "hello", size: int = 0) -> bytes:
    """A `ModelInferResponse`."""
    return bytes(_response(request_id, final=None, text=text, size=size).SerializeToString())


def answer(
    request_id: str = "", *, final: bool | None = False, text: str | None = "hi", size: int = 0, error: str = ""
) -> bytes:
    """A `ModelStreamInferResponse`."""
    message = StreamResponse(error_message=error)
    message.infer_response.CopyFrom(_response(request_id, final=final, text=None if error else text, size=size))
    return bytes(message.SerializeToString())


def end(request_id: str = "") -> bytes:
    """The empty last answer."""
    return answer(request_id, final=True, text=None)


def wants_end(message: bytes) -> bool:
    """Whether a request asks for the empty last answer; the last value of a key wins."""
    asked = InferRequest.FromString(message)
    found = [entry.value.bool_param for entry in asked.parameters if entry.key == "triton_enable_empty_final_response"]
    return bool(found and found[-1])
