"""What traffic looks like: arrivals, length mixes, classes, traces, prompt text.

Sans-IO; randomness is a passed-in generator, so a workload can be replayed exactly: the same seed gives the
same arrivals, classes and lengths, whatever is measured with them and however much of them is used.
"""
