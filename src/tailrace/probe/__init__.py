"""EDGE. The load generator and its self-measurement; fetching of live evidence.

Stamps first, parses after. A run in which this client was the limit says so.
"""
