"""Questions asked of tables of records: decomposition, buckets, tail composition, comparison.

Sans-IO and pure: tables in, answers out. Reads no file and no clock.
"""
