"""What a user's own service imports to report its stages to Tailrace.

Standard library only, so that adding it to a service adds no dependency. It knows no other floor.
"""
