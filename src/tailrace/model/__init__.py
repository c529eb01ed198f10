"""The nouns: stages, outcomes, the request record, findings, comparisons.

Plain frozen data (`msgspec.Struct`). No logic beyond invariants, no I/O, no clock, no third-party
import but msgspec. Every other floor may import this one; it imports none.
"""
