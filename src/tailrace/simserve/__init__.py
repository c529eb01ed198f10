"""EDGE. The simulated engine behind a real OpenAI-compatible HTTP server.

Everything it answers says that it is simulated: Server header, model name, banner.
"""
