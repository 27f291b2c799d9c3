"""One life of a stream in which everything happens at once, and what has to be true of it afterwards."""
