"""Some seconds of transactions over several streams while everything is killed, and what has to be true of them."""
