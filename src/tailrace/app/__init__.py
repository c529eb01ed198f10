"""Compositions: serve, demo, selftest, reports. The only place where edges meet.

No policy and no arithmetic here: build the parts, connect them, stop them in order.
"""
