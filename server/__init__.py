"""The Millrace server: a log, its segments, their streams, and the network in front of them."""
