"""The demo: a real broker, 200,000 orders, a pipeline that is killed three times, and an independent count."""
