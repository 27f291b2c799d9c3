"""Load on a real server over real sockets: scenarios driven by locust, every event accounted for."""
