"""What traffic looks like: arrivals, length mixes, classes.

Sans-IO; randomness is a passed-in generator, so a workload can be replayed exactly.
"""
