"""The layout of the bytes that Millrace writes to disk and network, declared with the library construct.

`frames` declares the protocol and the log-only records, `block` the event block, `log` the files of the write-ahead
log, `chunk` the files of tier 2. Nothing else in the project writes a layout down; the fast codecs are derived from
these.
"""
