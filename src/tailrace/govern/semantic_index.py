"""Questions by meaning: unit vectors in partitions, searched by cosine.

A partition holds the questions that are equal in everything but the text compared: model, parameters, system prompt,
what was said before, and who asks. So a hit can be wrong only about what the last text means, never about whose it is.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float32]

_FIRST_ROWS: Final = 8
LARGEST_PARTITION: Final = 4096
"""Vectors compared in one search: 4096 of 1024 dimensions are 4 M multiplications, about a millisecond."""


class Match(NamedTuple):
    """The nearest question."""

    key: bytes
    similarity: float
    """Cosine, -1 to 1."""


class _Partition:
    __slots__ = ("keys", "places", "rows")

    def __init__(self, dimensions: int) -> None:
        self.keys: list[bytes] = []
        self.places: dict[bytes, int] = {}
        self.rows: Vector = np.empty((_FIRST_ROWS, dimensions), dtype=np.float32)


class SemanticIndex:
    """Partition -> its questions. The owner of the answers says which are gone (`drop`)."""

    def __init__(self, *, largest: int = LARGEST_PARTITION) -> None:
        self._largest = largest
        self._partitions: OrderedDict[bytes, _Partition] = OrderedDict()
        self._homes: dict[bytes, bytes] = {}

    def __len__(self) -> int:
        return len(self._homes)

    @property
    def vector_bytes(self) -> int:
        """Memory of the vectors."""
        return sum(part.rows.nbytes for part in self._partitions.values())

    def add(self, partition: bytes, key: bytes, vector: Vector) -> bool:
        """Enter a question. False for a vector without a direction, or of other dimensions than its neighbours'.

        A full partition gives up one of its questions.
        """
        unit = unit_vector(vector)
        if unit is None:
            return False
        self.drop(key)
        part = self._partitions.get(partition)
        if part is None:
            part = self._partitions[partition] = _Partition(len(unit))
        elif part.rows.shape[1] != len(unit):
            return False
        if len(part.keys) >= self._largest:
            self.drop(part.keys[0])
            part = self._partitions.setdefault(partition, part)
        at = len(part.keys)
        if at == len(part.rows):
            part.rows = np.concatenate([part.rows, np.empty_like(part.rows)])
        part.rows[at] = unit
        part.keys.append(key)
        part.places[key] = at
        self._homes[key] = partition
        return True

    def nearest(self, partition: bytes, vector: Vector, threshold: float) -> Match | None:
        """The nearest question of the partition, if its cosine is at least `threshold`."""
        part = self._partitions.get(partition)
        unit = unit_vector(vector)
        if part is None or unit is None or part.rows.shape[1] != len(unit):
            return None
        cosines = part.rows[: len(part.keys)] @ unit
        at = int(np.argmax(cosines))
        similarity = float(cosines[at])
        return Match(part.keys[at], similarity) if similarity >= threshold else None

    def drop(self, key: bytes) -> None:
        """The answer is gone; nothing happens for a question that is not here."""
        partition = self._homes.pop(key, None)
        if partition is None:
            return
        part = self._partitions[partition]
        at, last = part.places.pop(key), part.keys.pop()
        if last != key:  # the last one takes its place: the order matters to nobody
            part.keys[at] = last
            part.places[last] = at
            part.rows[at] = part.rows[len(part.keys)]
        if not part.keys:
            del self._partitions[partition]


def unit_vector(vector: Vector) -> Vector | None:
    """The vector's direction; `None` for one without (all zeros, no numbers, no dimensions)."""
    if vector.ndim != 1 or not len(vector):
        return None
    norm = float(np.linalg.norm(vector))
    if not np.isfinite(norm) or norm == 0.0:
        return None
    return (vector / np.float32(norm)).astype(np.float32, copy=False)
