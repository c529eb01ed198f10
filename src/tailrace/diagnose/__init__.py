"""Evidence to findings to a verdict. One file a cause; validity of the numbers comes first.

Only `readers/` may open a file; a cause sees evidence, never a path.
"""
