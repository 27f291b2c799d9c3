"""The requests about each kind of entity, one class each: message in, reply out."""
