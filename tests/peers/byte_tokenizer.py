"""A tokenizer of 256 bytes, made on the spot: the load tools insist on one and there is no hub to fetch it from.

Byte level, so that any word of their synthetic prompts has tokens; with a smaller vocabulary GuideLLM silently sends
empty prompts.
"""

from __future__ import annotations

import json
from pathlib import Path

END = "<eos>"


def _alphabet() -> list[str]:
    """The characters that byte-level BPE writes the 256 bytes with: printable ones stand for themselves."""
    shown = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return [chr(byte) for byte in shown] + [chr(256 + index) for index in range(len(hidden))]


def write_tokenizer(folder: Path) -> Path:
    """In the form that `transformers` loads from a directory."""
    vocabulary = {character: index for index, character in enumerate(_alphabet())}
    vocabulary[END] = len(vocabulary)
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    end = {"id": vocabulary[END], "content": END, "special": True}
    end |= dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    model = {"type": "BPE", "vocab": vocabulary, "merges": [], "fuse_unk": False, "byte_fallback": False}
    model |= dict.fromkeys(("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"))
    tokenizer = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [end], "normalizer": None}
    tokenizer |= {"pre_tokenizer": level, "post_processor": None, "decoder": level, "model": model}
    folder.mkdir()
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "model_max_length": 1 << 20}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder
