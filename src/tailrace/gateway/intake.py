"""What a request asks for, whatever form its body has: JSON, a multipart form, or nothing that we read."""

from __future__ import annotations

from urllib.parse import unquote_to_bytes

import msgspec

from tailrace.gateway.form import form_work
from tailrace.gateway.head import is_json
from tailrace.gateway.work import Work, read_work


def work_of(target: bytes, named: dict[bytes, bytes], body: bytes) -> Work:
    """Read a whole body by its content type. Raises `BodyError` for a JSON body that is no object."""
    work = read_work(body) if is_json(named) else form_work(named.get(b"content-type", b""), body)
    return with_path(work, target)


def with_path(work: Work, target: bytes) -> Work:
    """Add what Triton's and TGI's paths say and their bodies do not: the model, and whether the answer is a stream."""
    if not target.startswith(b"/v2/"):
        streams = target.startswith(b"/generate_stream") and not work.stream
        return msgspec.structs.replace(work, stream=True) if streams else work
    path = target.partition(b"?")[0].rstrip(b"/")
    parts = path.split(b"/")  # "", "v2", "models", name, ...
    model = unquote_to_bytes(parts[3]).decode("utf-8", "replace") if len(parts) > 3 else ""
    stream = path.lower().endswith(b"/generate_stream")
    return msgspec.structs.replace(work, model=work.model or model, stream=stream)
