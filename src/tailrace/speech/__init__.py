"""EDGE. The reference recogniser and its audio pipeline.

Empty today: the speech measures and the recogniser arrive with the streaming-speech work.
"""
