"""Limits that change while a request is being measured in the thread."""

from __future__ import annotations

from tailrace.gateway.shaper import Shaper
from tailrace.gateway.token_keys import TokensConfig
from tailrace.gateway.tokenizer import Tokenizers
from tailrace.govern.token_estimate import TokenEstimates
from tailrace.govern.token_limits import OutputCaps, TokenLimits

CHAT = "/v1/chat/completions"


class Lifted(OutputCaps):
    """Somebody lifts the caps while they are being resolved elsewhere, once."""

    def applied(self, lane: str, limits: TokenLimits, *, can_cut: bool) -> TokenLimits:
        found = super().applied(lane, limits, can_cut=can_cut)
        if not self.idle:
            self.lift()
            shaper.limits("default", CHAT)  # what the event loop asks at that moment
        return found


caps = Lifted()
shaper = Shaper(TokensConfig(), {}, [], tokenizers=Tokenizers(), estimates=TokenEstimates(), caps=caps)


def test_limits_that_were_old_before_they_were_known_are_not_kept():
    caps.set(output_cap=64)
    assert shaper.limits("default", CHAT).max_output == 64
    assert shaper.limits("default", CHAT).max_output is None
