"""The words of a stream, counted in four ways: `python -m millrace.examples.word_count`."""
