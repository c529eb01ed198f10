"""What configuration says of latency: timers, buffering, probes, limits, and rules that need nothing but it.

A rule here takes its cause and the evidence, and gives a finding or nothing. A setting alone is never more than a
suspicion.
"""
