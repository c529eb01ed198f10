"""Causes in the gateway, the network, the front end, the client: layer 1.

Whatever stands between the person and the scheduler: the gateway itself and its lanes, hops that buffer, close or
retry, routing to replicas, the engine's front end (its event loop, its CPUs, its collector), and clients that leave or
read slowly.
"""

from __future__ import annotations

from typing import Final

from tailrace.diagnose.cause import Cause
from tailrace.diagnose.causes.gateway.cancel_not_propagated import CancelNotPropagated
from tailrace.diagnose.causes.gateway.cancel_storm import CancelStorm
from tailrace.diagnose.causes.gateway.cancel_unattributed import CancelUnattributed
from tailrace.diagnose.causes.gateway.chunk_coalescing import ChunkCoalescing
from tailrace.diagnose.causes.gateway.client_timeout_budget import ClientTimeoutBudget
from tailrace.diagnose.causes.gateway.conn_pool_cap import ConnPoolCap
from tailrace.diagnose.causes.gateway.cpu_starved import CpuStarved
from tailrace.diagnose.causes.gateway.detokenize_growth import DetokenizeGrowth
from tailrace.diagnose.causes.gateway.event_loop_block import EventLoopBlock
from tailrace.diagnose.causes.gateway.gc_pause import GcPause
from tailrace.diagnose.causes.gateway.holds_first_event import HoldsFirstEvent
from tailrace.diagnose.causes.gateway.idle_timeout import IdleTimeout
from tailrace.diagnose.causes.gateway.lane_queue import LaneQueue
from tailrace.diagnose.causes.gateway.lb_cache_affinity_lost import CacheAffinityLost
from tailrace.diagnose.causes.gateway.lb_hotspot import LbHotspot
from tailrace.diagnose.causes.gateway.lb_skew import LbSkew
from tailrace.diagnose.causes.gateway.lock_contention import LockContention
from tailrace.diagnose.causes.gateway.network import Network
from tailrace.diagnose.causes.gateway.probe_kill import ProbeKill
from tailrace.diagnose.causes.gateway.proxy_buffering import ProxyBuffering
from tailrace.diagnose.causes.gateway.retry_storm import RetryStorm
from tailrace.diagnose.causes.gateway.scale_out_too_slow import ScaleOutTooSlow
from tailrace.diagnose.causes.gateway.self_bottleneck import SelfBottleneck
from tailrace.diagnose.causes.gateway.slow_reader import SlowReader
from tailrace.diagnose.causes.gateway.stage_slow import PostprocessSlow, PreprocessSlow
from tailrace.diagnose.causes.gateway.upstream_timeout import UpstreamTimeout

__all__ = ["GATEWAY"]

GATEWAY: Final[tuple[Cause, ...]] = (
    LaneQueue(),
    ConnPoolCap(),
    SelfBottleneck(),
    Network(),
    SlowReader(),
    LockContention(),
    PreprocessSlow(),
    PostprocessSlow(),
    ProxyBuffering(),
    ChunkCoalescing(),
    HoldsFirstEvent(),
    IdleTimeout(),
    ProbeKill(),
    UpstreamTimeout(),
    ClientTimeoutBudget(),
    CancelNotPropagated(),
    CancelStorm(),
    CancelUnattributed(),
    RetryStorm(),
    LbHotspot(),
    CacheAffinityLost(),
    LbSkew(),
    EventLoopBlock(),
    GcPause(),
    CpuStarved(),
    DetokenizeGrowth(),
    ScaleOutTooSlow(),
)
