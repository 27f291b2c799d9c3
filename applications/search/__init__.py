"""An index and saved queries that are up to date while documents come: `python -m applications.search`."""
