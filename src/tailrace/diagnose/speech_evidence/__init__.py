"""Speech evidence seen as streams and turns: what rules on speech ask, whatever it was read from.

Nothing here opens a file. Rules are causes, but for those that causes of other layers ask (`uploads`, `speech_stamps`,
`encoder_cache`).
"""
