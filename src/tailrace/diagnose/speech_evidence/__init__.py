"""Speech evidence seen as streams and turns: what rules on speech ask, whatever it was read from.

Rules themselves are causes; nothing here opens a file or decides anything.
"""
