"""Faults of clients: how they read, send, wait, leave and come again."""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np

from tailrace.simulate.incidents.fault import Fault
from tailrace.simulate.incidents.faults.gateway import answer_s
from tailrace.simulate.incidents.setting import Setting, between, pick

_replace = msgspec.structs.replace


def _slow_reader(setting: Setting, strength: float, rng: np.random.Generator) -> Setting:
    client = _replace(
        setting.site.client,
        slow_share=float(rng.uniform(0.05, 0.4)),
        slow_bytes_per_s=between(12_000, 2_000, strength),
        window_bytes=pick(rng, 4096, 8192, 16_384),
    )
    return setting.with_site(client=client)


def _late_upload(setting: Setting, strength: float, rng: np.random.Generator) -> Setting:
    share = float(rng.uniform(0.03, 0.3))
    client = _replace(setting.site.client, late_share=share, late_ms=between(200, 4000, strength))
    return setting.with_site(client=client)


def _impatient(setting: Setting, strength: float, rng: np.random.Generator) -> Setting:
    """A timeout that the longer answers cannot keep."""
    del rng
    timeout = round(answer_s(setting) * between(3.0, 1.1, strength), 1)
    return setting.with_site(client=_replace(setting.site.client, timeout_s=timeout, leave_share=0.0))


def _leaving(setting: Setting, strength: float, rng: np.random.Generator) -> Setting:
    """Clients go away at any age: a page that asks anew at each key."""
    age = answer_s(setting) * float(rng.uniform(0.3, 0.9))
    client = _replace(setting.site.client, leave_share=between(0.08, 0.7, strength), leave_s=age)
    return setting.with_site(client=client)


def _with_leavers(setting: Setting, rng: np.random.Generator) -> Setting:
    """Many clients leave early, and the engine is told: what they asked for costs little."""
    client = _replace(setting.site.client, leave_share=float(rng.uniform(0.25, 0.5)), leave_s=0.6)
    chat = _replace(setting.traffic.classes[0], output=max(setting.traffic.classes[0].output, 180))
    told = setting.with_site(client=client).with_traffic(classes=(chat, *setting.traffic.classes[1:]))
    return told.having(load=float(rng.uniform(0.75, 1.1)))


def _deaf(setting: Setting, strength: float, rng: np.random.Generator) -> Setting:
    """The engine is not told that they have left. The strength is the share of those that leave."""
    del rng
    client = setting.site.client
    share = min(client.leave_share * between(1.0, 1.6, strength), 0.8)
    return setting.with_site(cancels_reach=False, client=_replace(client, leave_share=share))


def _two_engines(setting: Setting, rng: np.random.Generator) -> Setting:
    gateway = _replace(setting.site.gateway, retries=pick(rng, 2, 3))
    client = _replace(setting.site.client, resend=pick(rng, 1, 2))
    return setting.with_site(replicas=2, gateway=gateway, client=client)


def _retried(setting: Setting, strength: float, rng: np.random.Generator) -> Setting:
    """Engines answer with errors, and everybody tries again at once."""
    del rng
    return setting.with_site(fails_share=between(0.2, 0.7, strength))


CLIENTS: Final[tuple[Fault, ...]] = (
    Fault("slow_reader", "CLIENT_SLOW_READER", _slow_reader),
    Fault("late_upload", "CLIENT_UPLOAD_LATE", _late_upload),
    Fault("client_timeout", "CLIENT_TIMEOUT_BUDGET", _impatient),
    Fault("cancel_storm", "CANCEL_STORM", _leaving),
    Fault("cancel_lost", "CANCEL_NOT_PROPAGATED", _deaf, _with_leavers),
    Fault("retry_storm", "RETRY_STORM", _retried, _two_engines),
)
