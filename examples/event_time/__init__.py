"""Windows, sessions and joins over events that arrive late: `python -m millrace.examples.event_time`."""
