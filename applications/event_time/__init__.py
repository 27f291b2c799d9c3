"""Windows, sessions and joins over events that arrive late: `python -m applications.event_time`."""
