"""The model's tokenizer, where the user has it: prompts are then exact in tokens."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

from tailrace.measure.token_counter import TokenCounter
from tailrace.model.errors import InputError
from tailrace.store.text_file import read_text

_PLACE = "--tokenizer"


@lru_cache(maxsize=4)
def load_tokenizer(path: str) -> TokenCounter:
    """Read a `tokenizer.json`, or the one in a model's folder. InputError where that cannot be."""
    given = Path(path).expanduser()
    file = given / "tokenizer.json" if given.is_dir() else given
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        return TokenCounter(read_text(file))
    except ImportError:
        raise InputError(
            "reading a tokenizer needs the package tokenizers, which is not installed",
            place=_PLACE,
            remedy="Run `pip install 'tailrace[tokenizers]'`, or leave the option out: lengths are then calibrated",
        ) from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise InputError(
            f"the tokenizer at {file} cannot be read ({why})",
            place=_PLACE,
            remedy="Give the tokenizer.json of the model, or the folder that holds it",
        ) from None
