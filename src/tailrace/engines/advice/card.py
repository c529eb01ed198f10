"""What accelerators hold and how fast they are, as their makers' data sheets say.

`memory` is what the driver leaves to a program (to about 1 %), not the number on the box. Bandwidth and dense 16-bit
arithmetic are peaks: real kernels reach 70-90 % of them (docs/reference/check.md has the sources).
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

GIB: Final = 2**30


class Card(msgspec.Struct, frozen=True):
    """One kind of card."""

    name: str
    memory: float
    """Bytes that a program sees."""
    bandwidth: float
    """Bytes/s of its memory."""
    arithmetic: float
    """16-bit floating-point operations per second, dense."""
    link: str = "PCIe"
    """How cards of one machine talk: `NVLink`, `PCIe`, `Infinity Fabric`."""


_CARDS: Final = (
    Card("a100-40g", 39.4 * GIB, 1.555e12, 3.12e14, "NVLink"),
    Card("a100-80g", 79.2 * GIB, 2.039e12, 3.12e14, "NVLink"),
    Card("a100-80g-pcie", 79.2 * GIB, 1.935e12, 3.12e14),
    Card("h100-80g", 79.1 * GIB, 3.35e12, 9.89e14, "NVLink"),
    Card("h100-80g-pcie", 79.1 * GIB, 2.0e12, 7.56e14),
    Card("h200", 139.8 * GIB, 4.8e12, 9.89e14, "NVLink"),
    Card("b200", 178.4 * GIB, 8.0e12, 2.25e15, "NVLink"),
    Card("l4", 22.0 * GIB, 3.0e11, 1.21e14),
    Card("l40s", 44.4 * GIB, 8.64e11, 3.62e14),
    Card("a10", 22.1 * GIB, 6.0e11, 1.25e14),
    Card("t4", 14.6 * GIB, 3.2e11, 6.5e13),
    Card("v100-32g", 31.7 * GIB, 9.0e11, 1.25e14, "NVLink"),
    Card("rtx-4090", 23.5 * GIB, 1.008e12, 1.65e14),
    Card("rtx-5090", 31.4 * GIB, 1.792e12, 2.09e14),
    Card("rtx-pro-6000", 94.9 * GIB, 1.597e12, 5.03e14),
    Card("mi300x", 191.5 * GIB, 5.3e12, 1.307e15, "Infinity Fabric"),
)

CARDS: Final = {card.name: card for card in _CARDS}
_SAME: Final = {
    "a100": "a100-80g",
    "a100-80gb": "a100-80g",
    "a100-sxm4-80gb": "a100-80g",
    "a100-sxm4-40gb": "a100-40g",
    "a100-40gb": "a100-40g",
    "a100-80gb-pcie": "a100-80g-pcie",
    "h100": "h100-80g",
    "h100-80gb": "h100-80g",
    "h100-80gb-hbm3": "h100-80g",
    "h100-pcie": "h100-80g-pcie",
    "4090": "rtx-4090",
    "5090": "rtx-5090",
    "rtx4090": "rtx-4090",
    "rtx5090": "rtx-5090",
    "a10g": "a10",
    "tesla-t4": "t4",
    "v100": "v100-32g",
}


def find_card(name: str) -> Card | None:
    """A card by any usual spelling: `a100-80g`, `A100 80GB`, `NVIDIA A100-SXM4-80GB`, `nvidia h100 80gb hbm3`."""
    plain = re.sub(r"[\s_]+", "-", name.strip().lower())
    plain = plain.removeprefix("nvidia-").removeprefix("geforce-").removeprefix("amd-").removeprefix("instinct-")
    return CARDS.get(plain) or CARDS.get(_SAME.get(plain, ""))
