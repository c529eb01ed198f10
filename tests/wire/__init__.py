"""The gateway on real sockets: a scripted engine behind it, raw clients before it."""
