"""What the server asks of the machine it runs on: time, files, tasks, metrics."""
