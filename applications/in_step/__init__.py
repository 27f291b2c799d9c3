"""Storage and processing that scale in step with the load: `python -m applications.in_step`."""
