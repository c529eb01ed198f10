"""Attribution: which part of the tail, or of its change, lies where.

Pure functions of tables of records, each with one result that says itself in a sentence. What lives here: stages at the
quantile, kinds of traffic, mix and within, gaps of several streams laid beside each other, replicas, timers, periods,
moments of change, tenants and routes. Never a verdict: causes are `diagnose`'s.
"""
