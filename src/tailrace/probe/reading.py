"""Reading: the dialects by the names under which a template's answers can be read."""

from __future__ import annotations

from typing import Final

from tailrace.engines.llamacpp import NATIVE as LLAMACPP
from tailrace.engines.sglang_generate import SGLANG_GENERATE
from tailrace.engines.tgi_generate import TGI_GENERATE
from tailrace.engines.triton_generate import TRITON_GENERATE
from tailrace.measure.dialect import Dialect
from tailrace.measure.dialects import ANY, CHAT, COMPLETIONS, EMBEDDINGS, MESSAGES, RESPONSES, TRANSCRIPTION
from tailrace.model.errors import InputError

DIALECTS: Final[dict[str, Dialect]] = {
    "chat": CHAT,
    "completions": COMPLETIONS,
    "responses": RESPONSES,
    "messages": MESSAGES,
    "embeddings": EMBEDDINGS,
    "transcriptions": TRANSCRIPTION,
    "sglang": SGLANG_GENERATE,
    "tgi": TGI_GENERATE,
    "triton": TRITON_GENERATE,
    "llamacpp": LLAMACPP,
    "any": ANY,
}


def name_of(dialect: Dialect) -> str:
    """The name of one of the dialects; that of chat for any other."""
    return next((name for name, one in DIALECTS.items() if one is dialect), "chat")


def dialect_named(name: str) -> Dialect:
    """The dialect of that name. InputError where there is none."""
    if name not in DIALECTS:
        raise InputError(f"there is no dialect {name!r}", place="--dialect", remedy=f"Choose {', '.join(DIALECTS)}")
    return DIALECTS[name]
