"""Records and live numbers in other tools' formats: Prometheus text, JSON lines, CSV, Parquet.

No server here: a caller writes what these functions return.
"""
