"""`tailrace bench`: its options, taken together, as the spec of one load test."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from tailrace.cli.objectives import parse_objectives
from tailrace.model.thresholds import Objectives
from tailrace.probe.command import masked
from tailrace.probe.spec import BenchSpec

if TYPE_CHECKING:
    from tailrace.cli.bench_load import Load
    from tailrace.cli.bench_result import Results
    from tailrace.cli.bench_server import Server
    from tailrace.cli.bench_work import Work


def spec_of(load: Load, work: Work, server: Server, results: Results) -> BenchSpec:
    """The spec. Raises `InputError` that names the option which cannot be read or contradicts another."""
    workload, described = work.workload(load)
    chosen = parse_objectives(results.objective)
    warmup_requests, warmup_ns = load.warm_up()
    return BenchSpec(
        url=server.url,
        workload=workload,
        model=server.model,
        seed=load.seed,
        requests=load.requests,
        duration_ns=load.duration_ns(trace=bool(workload.trace)),
        warmup_requests=warmup_requests,
        warmup_ns=warmup_ns,
        stream=work.stream,
        api_key=server.api_key,
        headers=server.headers(),
        extra_body=work.body(),
        ignore_eos=work.ignore_eos,
        limits=server.limits(),
        new_connections=server.new_connections(),
        verify_tls=not server.insecure,
        shared_prefix=0 if work.prefixed else work.shared_prefix,
        chars_per_token=work.chars_per_token,
        endpoint=work.endpoint,
        template=work.template_text(),
        dialect=work.dialect,
        prompt=work.prompt,
        tokenizer=work.tokenizer,
        audio_files=list(work.audio_files),
        mix_text=work.mix or work.file or "",
        objectives=chosen or described or Objectives(),
        scrape_ns=server.scrape_ns(),
        metrics_url=server.metrics_url,
        command=masked(["tailrace", *sys.argv[1:]]),
    )
