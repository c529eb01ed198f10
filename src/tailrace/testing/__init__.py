"""Shipped fakes for our tests and yours: manual clock, transcripts, a scripted upstream of known truth.

No floor imports this package.
"""
