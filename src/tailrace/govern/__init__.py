"""Load governance as state machines: `decide(now, ...)` returns a decision, somebody else acts.

Sans-IO. The gateway and the simulator run this same code: lanes and admission, predictions of waits and lengths,
fairness, balance, retries, breakers, token limits, the degradation ladder, the canary, the response cache.
"""
