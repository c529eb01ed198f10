"""Logs of engines and of what stands before them, in whatever mixture one file holds.

One reader takes the lines, one file a dialect says what a line means. What a line says becomes samples, events, access
rows; nothing grows with the file's length.
"""
