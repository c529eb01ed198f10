"""Evidence to findings to a verdict. One file a cause; validity of the numbers comes first.

`readers` open files (nothing else may); `observed` holds what is foreign, `evidence` and `window` hold records;
`engine` takes them through validity, symptoms, `triage` and `causes`; `precedence` and `explained` rank, `verdict` and
`told` say. What a cause looks at lies by kind: `record_evidence`, `log_evidence`, `series_evidence`, `arm_evidence`
(asked through `arms`), `speech_evidence`, `configured`. The modules beside the folders are what several rules ask a
window (who stopped with whom, at what pace, ended at what age, what ran meanwhile), and the limits and words that many
share (`limits`, `kv_cache`, `engine_settings`, `commands`).
"""
