"""`tailrace bench`: which requests, from its options to classes and bodies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from tailrace.cli.bench_load import Load
    from tailrace.workload.plan import Workload

_DEFAULT_MIX: Final = "short"


class Work(NamedTuple):
    """The options under `Which requests`, as they were typed."""

    mix: str | None
    prompt_tokens: str | None
    output_tokens: str | None
    trace: str | None
    trace_speed: float
    shared_prefix: int
    stream: bool
    ignore_eos: bool
    extra_body: str | None
    chars_per_token: float | None

    def workload(self, load: Load) -> Workload:
        """Arrivals with the lengths that they carry. Raises `InputError` for what cannot be read or combined."""
        from tailrace.cli.traffic import classes_from, trace_file
        from tailrace.workload.plan import Workload

        rows = trace_file(self.trace, speed=self.trace_speed, seed=load.seed) if self.trace else []
        arrivals = load.arrivals(trace=bool(rows))
        classes = classes_from(
            mix=self.mix,
            prompt_tokens=self.prompt_tokens,
            output_tokens=self.output_tokens,
            trace=bool(rows),
            default=_DEFAULT_MIX,
        )
        return Workload(arrivals=arrivals, mix=classes, trace=rows)

    def body(self) -> dict[str, object]:
        """What is merged into every request's body. Raises `InputError` where it is no JSON object."""
        import msgspec

        from tailrace.measure.dialect import UNREADABLE
        from tailrace.model.errors import InputError

        if self.extra_body is None:
            return {}
        try:
            return msgspec.json.decode(self.extra_body, type=dict[str, object])
        except UNREADABLE as error:
            raise InputError(
                str(error), place="--extra-body", remedy="""Write a JSON object: '{"temperature": 0}'"""
            ) from None
