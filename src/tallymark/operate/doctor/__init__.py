"""``tallymark doctor``: checks the cluster, the database and this machine for settings that lose or delay records.

Rules are pure: they turn facts into a ``Finding``. The code that gathers facts is thin, and a refused request is itself
a finding.
"""
