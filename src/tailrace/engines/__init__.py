"""What each inference engine says and means: dialects, errors, timings, metric names.

One file an engine, sans-IO. `flags/` is what they are started with, `advice/` what to say of it. Nothing below this
floor knows any engine by name.
"""
