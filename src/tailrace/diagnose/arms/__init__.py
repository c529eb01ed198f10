"""How causes ask tables, forms and printed benchmarks: numbers of an arm, pairs of arms, sweeps over one condition.

Nothing here names a cause; nothing here opens a file or knows a format.
"""
