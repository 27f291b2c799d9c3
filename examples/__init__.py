"""Short programs to be read and run, each as `python -m millrace.examples.NAME`, with `millrace demo` and `bench`."""
