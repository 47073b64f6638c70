"""Other people's ways from a topic to a table, in processes of their own."""
