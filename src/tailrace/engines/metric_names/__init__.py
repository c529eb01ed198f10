"""The metric names that each engine is known to export: what each means, its type, in which versions it was seen.

A name that is in none of these tables is reported, never passed over: that is how a renamed metric is noticed before a
dashboard, or a diagnosis, dies of it. One file an engine; knows nothing of what the names are used for.
"""
