"""What to say about an engine's options: one rule a file, each with the effect and the price of its advice.

A rule reads a `Case` (facts in force, command line, lengths, objectives) and yields findings. It never guesses: what it
would need and has not is named.
"""
