"""Rules on records, scrapes and timelines of causes that other evidence shows too: one module a cause.

What the cause is called and what it needs stands in `causes`; here is only how records show it.
"""
