"""Rules of causes on tables, forms and printed benchmarks: one function a relation, given to the cause that owns it.

Numbers are asked for through `diagnose.arms`; nothing here opens a file or knows a format.
"""
