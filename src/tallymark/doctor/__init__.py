"""``tallymark doctor``: asks the real cluster, the database and this machine what would lose or hold up records.

Rules are pure: they turn what was found into a ``Finding``. What gathers the facts is thin, and a question that is
refused is a finding of its own.
"""
