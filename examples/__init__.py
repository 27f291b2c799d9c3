"""Short programs to be read and run, each as `python -m millrace.examples.NAME`; `millrace demo` is one of them."""
