"""Evidence to findings to a verdict. One file a cause; validity of the numbers comes first.

The way of a body of evidence: `readers` open it, `observed` (foreign) or `evidence` and `window` (records) hold it,
`engine` takes it through validity, symptoms, `triage` and `causes`, `precedence` and `explained` rank what fired,
`verdict`, `told` and `collect` say it. What a cause looks at lies by the kind of evidence: `record_evidence`,
`log_evidence`, `series_evidence`, `arm_evidence` (asked through `arms`), `speech_evidence`, `configured`. The modules
beside the folders that name no cause are what several rules on records ask a window: who stopped with whom
(`shared_stops`, `stop_pattern`, `summary_stops`), at what pace (`pace`, `equal_work`, `expected_pace`), who
ended at what age (`age_cluster`, `timer_ends`), what ran meanwhile (`in_flight`, `replicas`, `hardware`); and limits
and words that many share (`limits`, `kv_cache`, `engine_settings`, `commands`).

Only `readers/` may open a file; a cause sees evidence, never a path.
"""
