"""What scrapes, series, tables of requests and chunks, and stack dumps show of a cause: rules on `Observed`.

Each function takes the cause that asks and gives its finding, or `None`. Codes and catalogue are in `causes`; no file
is opened here.
"""
