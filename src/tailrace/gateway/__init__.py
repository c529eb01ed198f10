"""EDGE. The data port, the relay, the upstream client, lanes at work, and the admin API.

Owns sockets and the event loop; decides nothing itself: policy is in `govern`, meaning in `engines`.
"""
