"""`tailrace bench`: which requests, from its options to classes and bodies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from tailrace.cli.bench_load import Load
    from tailrace.cli.bench_traits import TraitOptions
    from tailrace.cli.trace_workload import TraceOptions
    from tailrace.model.thresholds import Objectives
    from tailrace.workload.mix import TrafficClass
    from tailrace.workload.plan import Workload

_DEFAULT_MIX: Final = "short"


class Work(NamedTuple):
    """The options under `Which requests`, as they were typed."""

    mix: str | None
    prompt_tokens: str | None
    output_tokens: str | None
    trace: TraceOptions | None
    shared_prefix: int
    stream: bool
    ignore_eos: bool
    extra_body: str | None
    chars_per_token: float | None
    traits: TraitOptions
    endpoint: str = ""
    template: str | None = None
    dialect: str = ""
    prompt: str | None = None
    conversations: str | None = None
    tokenizer: str = ""
    audio_files: tuple[str, ...] = ()
    file: str | None = None

    def workload(self, load: Load) -> tuple[Workload, Objectives | None]:
        """Arrivals with what they carry, and the objectives that a described workload has of its own.

        Raises `InputError` for what cannot be read or combined.
        """
        import msgspec

        from tailrace.workload.plan import Workload, with_fitted_prefixes

        traits = self.traits.traits()
        objectives: Objectives | None = None
        if self.file is not None:
            classes, objectives = self._described()
            out = Workload(arrivals=load.arrivals(trace=False), mix=classes)
        elif self.conversations is not None:
            out = self._recorded(load)
        else:
            out = self._drawn(load)
        if self.file is None:
            mix = [msgspec.structs.replace(one, traits=traits) for one in out.mix]
            out = msgspec.structs.replace(out, mix=mix, traits=traits)
        duration_ns = load.duration_ns(trace=bool(out.trace))
        return with_fitted_prefixes(out, load.seed, requests=load.requests, duration_ns=duration_ns), objectives

    def _drawn(self, load: Load) -> Workload:
        from tailrace.cli.trace_workload import with_trace
        from tailrace.cli.traffic import classes_from
        from tailrace.workload.plan import Workload

        trace = None if self.trace is None else self.trace.read(load.seed)
        classes = classes_from(
            mix=self.mix,
            prompt_tokens=self.prompt_tokens,
            output_tokens=self.output_tokens,
            trace=trace is not None,
            default=_DEFAULT_MIX,
        )
        out = Workload(arrivals=load.arrivals(trace=trace is not None), mix=classes)
        if trace is None:
            return out
        return with_trace(out, trace, requests=load.requests, duration_ns=load.duration_ns(trace=True))

    def _described(self) -> tuple[list[TrafficClass], Objectives | None]:
        from tailrace.cli.bench_traits import TraitOptions
        from tailrace.cli.workload_file import read_workload
        from tailrace.model.errors import InputError

        assert self.file is not None
        others = (self.mix, self.prompt_tokens, self.output_tokens, self.trace, self.conversations)
        if any(one is not None for one in others) or self.traits != TraitOptions():
            raise InputError(
                "the file says which requests; --mix, --turns, --cancel and the like cannot be added to it",
                place="--workload",
                remedy="Write them into the file",
            )
        return read_workload(self.file)

    def _recorded(self, load: Load) -> Workload:
        from tailrace.cli.work_files import conversations_file
        from tailrace.model.errors import InputError
        from tailrace.workload.length import parse_length
        from tailrace.workload.plan import Workload

        if self.mix is not None or self.prompt_tokens is not None or self.trace is not None:
            raise InputError(
                "only one of --conversations, --mix, --prompt-tokens and --trace can give the requests",
                place="--conversations",
            )
        assert self.conversations is not None
        answer = None if self.output_tokens is None else parse_length(self.output_tokens, place="--output-tokens")
        return Workload(
            arrivals=load.arrivals(trace=False), conversations=conversations_file(self.conversations), answer=answer
        )

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

    @property
    def prefixed(self) -> bool:
        """Whether the classes have prefixes of their own, of which `shared_prefix` may be the length."""
        return self.traits.prefix_pool is not None or self.traits.prefix_hit is not None

    def template_text(self) -> str:
        """The text of the template; empty where there is none. Raises `InputError`."""
        from tailrace.cli.work_files import template_text

        return "" if self.template is None else template_text(self.template)
