"""`ModelInfer`: one request, one answer, through a lane."""

from __future__ import annotations

from tailrace.engines.kserve import WireError, read_ask
from tailrace.gateway.refusal import Refusal
from tailrace.gateway.rpc.call import UnaryCall
from tailrace.gateway.rpc.request import RpcRequest
from tailrace.measure.dialect import Meaning
from tailrace.measure.meter import summarise_body
from tailrace.model.outcome import Reason
from tailrace.model.timeline import EventKind

_WHOLE = Meaning(EventKind.CONTENT, done=True)


class InferCall(UnaryCall):
    """Admitted, sent, answered in one piece."""

    async def admit(self, request: RpcRequest, message: bytes) -> bool:
        """Read who asks for what, and wait for a place in the lane."""
        try:
            ask = read_ask(message)
        except WireError as error:
            text = f"the message is no ModelInferRequest: {error}"
            self.refuse(Refusal(status=400, message=text, reason=Reason.BAD_REQUEST))
            return False
        return await request.admitted(ask, len(message), stream=False)

    def answered(self, now: int) -> None:
        """The answer came in one piece: it has no first token, nobody could see one."""
        self.request.transit.summary = summarise_body(_WHOLE, origin_ns=self.request.received, now=now)
