"""The machine as the server uses it: time, files, SQLite, tasks, metrics; tests replace parts of it."""
