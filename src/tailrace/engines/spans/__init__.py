"""What spans mean: one file an engine, one for services that name our stages, one for an engine's start.

Sans-IO. `assembly.SpanAssembly` takes spans as they come and gives amendments; it knows the readers, they do not know
it. Never here: how spans travel (`measure.otlp_*`), who keeps amendments.
"""
