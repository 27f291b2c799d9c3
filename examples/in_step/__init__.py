"""Storage and processing that scale in step with the load: `python -m millrace.examples.in_step`."""
