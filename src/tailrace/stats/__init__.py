"""Pure functions on numbers: exponential histogram, quantiles with intervals, tests, bootstrap.

No knowledge of requests or records; numpy, and scipy's special functions where they are used.
"""
