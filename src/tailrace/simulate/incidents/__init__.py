"""Labelled incidents: one system without and with a fault, and what production would have seen of either.

A fault changes parameters of the engine, the gateway, the clients or the traffic (`site`, `traffic`) and nothing else;
what is seen follows from the simulation. Nothing here knows the rules of a diagnosis, and nothing may be imported from
the floors above.
"""
