"""Speech evidence seen as streams and turns: what rules on speech ask, whatever it was read from.

Nothing here opens a file. Rules are causes, but for one that a cause of another layer asks (`uploads`).
"""
