"""Spans on their way in: OTLP over HTTP on the admin port, over gRPC on a port of its own, one desk behind both.

What spans mean is not known here: `engines.spans` reads them, and whoever else is given as a taker.
"""
