"""The words of a stream, counted in four ways: `python -m applications.word_count`."""
