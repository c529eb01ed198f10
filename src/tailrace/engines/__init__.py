"""What each inference engine says and means: dialects, errors, timings, metric names.

One file an engine, sans-IO. Nothing below this floor knows any engine by name.
"""
