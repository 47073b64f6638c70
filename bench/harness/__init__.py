"""What every part of the benchmark uses: the race, its report, the facts of the machine, records, tables and servers."""
