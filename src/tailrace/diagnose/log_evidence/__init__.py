"""What the logs of engines and proxies show of one cause each: rules on load lines, events and access rows.

Each module has one rule; the cause of the catalogue that it belongs to asks it. Nothing here opens a file.
"""
