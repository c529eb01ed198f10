"""Bytes and timestamps in, records out: SSE framing, event meaning, stream meter, stalls, sampling.

Sans-IO: `now` is an argument (integer nanoseconds). What an engine's event means is a `Dialect`,
passed in by the composition; this floor ships only the OpenAI and Anthropic ones.
"""
