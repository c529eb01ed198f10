"""Causes in the gateway, the network, the front end, the client: layer 1."""

from __future__ import annotations

from typing import Final

from tailrace.diagnose.cause import Cause
from tailrace.diagnose.causes.gateway.cancel_unattributed import CancelUnattributed
from tailrace.diagnose.causes.gateway.cpu_starved import CpuStarved
from tailrace.diagnose.causes.gateway.detokenize_growth import DetokenizeGrowth
from tailrace.diagnose.causes.gateway.event_loop_block import EventLoopBlock
from tailrace.diagnose.causes.gateway.gc_pause import GcPause
from tailrace.diagnose.causes.gateway.lane_queue import LaneQueue
from tailrace.diagnose.causes.gateway.network import Network
from tailrace.diagnose.causes.gateway.probe_kill import ProbeKill
from tailrace.diagnose.causes.gateway.proxy_buffering import ProxyBuffering
from tailrace.diagnose.causes.gateway.retry_storm import RetryStorm
from tailrace.diagnose.causes.gateway.self_bottleneck import SelfBottleneck
from tailrace.diagnose.causes.gateway.slow_reader import SlowReader
from tailrace.diagnose.causes.gateway.stage_slow import PostprocessSlow, PreprocessSlow
from tailrace.diagnose.causes.gateway.upstream_timeout import UpstreamTimeout

__all__ = ["GATEWAY"]

GATEWAY: Final[tuple[Cause, ...]] = (
    LaneQueue(),
    SelfBottleneck(),
    Network(),
    SlowReader(),
    PreprocessSlow(),
    PostprocessSlow(),
    CpuStarved(),
    ProxyBuffering(),
    ProbeKill(),
    EventLoopBlock(),
    GcPause(),
    DetokenizeGrowth(),
    UpstreamTimeout(),
    RetryStorm(),
    CancelUnattributed(),
)
