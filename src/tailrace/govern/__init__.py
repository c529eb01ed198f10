"""Load governance as state machines: `decide(now, ...)` returns a decision, somebody else acts.

Sans-IO. The gateway and the simulator run this same code. Thin today: lanes, bounded queues and
budgets; retries, breakers, degradation and canaries will live here.
"""
