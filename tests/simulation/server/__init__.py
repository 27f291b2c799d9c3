"""Whole servers and clients on a virtual loop. It mirrors no module.

threads      threads of the server as greenlets, which the loop resumes one at a time
wires        connections without a network
loop         the event loop that owns both
machine      a disk in memory, and one server after the other on it
world        one course of events: clients in their roles, faults, and the judgement of the history
actors       the roles
faults       what befalls the server
tortures     tables of both
mutants      faults of the product, which the tortures have to find
"""
