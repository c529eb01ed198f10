"""All kinds of fault, by layer."""

from __future__ import annotations

from typing import Final

from tailrace.simulate.incidents.fault import Fault
from tailrace.simulate.incidents.faults.balancing import BALANCING
from tailrace.simulate.incidents.faults.clients import CLIENTS
from tailrace.simulate.incidents.faults.compute import COMPUTE
from tailrace.simulate.incidents.faults.front_end import FRONT_END
from tailrace.simulate.incidents.faults.gateway import GATEWAY
from tailrace.simulate.incidents.faults.mix import MIX
from tailrace.simulate.incidents.faults.scheduler import SCHEDULER
from tailrace.simulate.incidents.faults.services import SERVICES

FAULTS: Final[tuple[Fault, ...]] = (*GATEWAY, *BALANCING, *CLIENTS, *SERVICES, *FRONT_END, *SCHEDULER, *COMPUTE, *MIX)
BY_KIND: Final[dict[str, Fault]] = {fault.kind: fault for fault in FAULTS}
