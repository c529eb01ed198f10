"""What lanes hear of the engines: which of them take requests, and how full they say they are."""

from __future__ import annotations

from tailrace.gateway.backends import Backends
from tailrace.gateway.config import Config
from tailrace.gateway.lane_keys import EngineRoomConfig
from tailrace.gateway.lanes import LaneDesk
from tailrace.govern.engine_rooms import EngineRooms


def rooms_of(section: EngineRoomConfig, config: Config) -> EngineRooms:
    """The engines' own state as a limit."""
    return EngineRooms(section.resolve(), (backend.name for backend in config.backends), processes=config.workers)


def follow_engines(lanes: LaneDesk, backends: Backends, now: int) -> None:
    """Once a sweep. An engine that does not answer counts as usable: it may be back before anybody knows."""
    lanes.admission.usable([backend.name for backend in backends if not backend.shut])
    if lanes.follows_engines:
        lanes.admission.engines([backend.name for backend in backends])
        for backend in backends:
            lanes.hear(backend.name, backend.engine.watch.latest, now)
