"""What an engine that reports nothing did before the first token: its queue and its prefill, inferred and so labelled.

Here live the streams of one engine side by side (`scene`), what they tell of its steps, the cost of a prefill learned
from them (`prefill_cost`), how many tokens it computes in a step (`budget_votes`), and the split (`waits`). Sans-IO;
may never show a number without its error, nor one whose error is too large. Encode and preprocess are not inferred.
"""
