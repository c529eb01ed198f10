"""Records at rest: run files, hot tier (SQLite WAL), sealed Parquet segments, named queries.

Opens files; never on a request's path. `store.table` is the columnar noun that analyses read.
"""
