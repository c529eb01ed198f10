"""Triton's gRPC through the gateway: the same lanes, budgets and records as over HTTP.

Messages pass as the bytes that came: no generated code, nothing is parsed into objects or written back. Only `port`,
`call`, `answer`, `infer`, `stream` and `tunnel` import grpcio; they are imported for a `grpc_listen` alone.
"""

import os

# Else gRPC's core writes a line to standard error for each connection that an engine drops; the records say so already.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
