"""EDGE. Faults on purpose, against a gateway or an engine that the caller owns.

Empty today: fault injection arrives with the resilience work.
"""
