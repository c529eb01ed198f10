"""EDGE. The page: an aiohttp sub-application that `app` mounts on the admin port.

Draws only what a `PageSource` gives it; knows neither gateway nor store.
"""
