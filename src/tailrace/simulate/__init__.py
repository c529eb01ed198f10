"""An inference engine as a model: scheduler, KV blocks, cost of a step. Always labelled simulated.

Sans-IO and clock-free: tests and `tailrace simulate` drive it with virtual time, `simserve` with real time.
"""
