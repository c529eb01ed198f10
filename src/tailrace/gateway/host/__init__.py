"""Signals of this machine: CPU time given and withheld, pressure, memory, accelerators.

Read by threads of their own, never on a request's path. What is not readable is absent, with its reason; nothing here
may fail a request, hold the event loop, or stop the gateway from ending.
"""
