"""Durable stream storage for Python and Spark."""
