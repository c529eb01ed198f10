"""What a user's own service imports to report its stages to Tailrace: `with stage("preprocess.tokenize"):`.

Standard library only, so that adding it to a service adds no dependency; it knows no other floor. `stages.asgi` and
`stages.wsgi` hold a middleware each, which handles and reports every request; nothing here ever delays one.
"""

from __future__ import annotations

from tailrace.stages.budget import StageTimeout
from tailrace.stages.collector import Collector, collect
from tailrace.stages.reporter import Reporter
from tailrace.stages.request import ServiceRequest, current_request, handle, outgoing_headers
from tailrace.stages.server_timing import ServerTiming, parse_server_timing, render_server_timing
from tailrace.stages.stage import REPORTABLE, deadline, remaining, stage

__all__ = [
    "REPORTABLE",
    "Collector",
    "Reporter",
    "ServerTiming",
    "ServiceRequest",
    "StageTimeout",
    "collect",
    "current_request",
    "deadline",
    "handle",
    "outgoing_headers",
    "parse_server_timing",
    "remaining",
    "render_server_timing",
    "stage",
]
