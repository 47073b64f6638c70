"""What the parts of the benchmark share: the race, its report, facts of the machine, records, tables and servers."""
