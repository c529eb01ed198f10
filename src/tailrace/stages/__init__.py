"""What a user's own service imports to report its stages to Tailrace: `with stage("preprocess.tokenize"):`.

Standard library only, so that adding it to a service adds no dependency. It knows no other floor. Thin today: it
times stages and speaks `Server-Timing`; middleware for web frameworks and the gateway's joining come later.
"""

from __future__ import annotations

from tailrace.stages.collector import Collector, collect
from tailrace.stages.server_timing import ServerTiming, parse_server_timing, render_server_timing
from tailrace.stages.stage import REPORTABLE, stage

__all__ = [
    "REPORTABLE",
    "Collector",
    "ServerTiming",
    "collect",
    "parse_server_timing",
    "render_server_timing",
    "stage",
]
