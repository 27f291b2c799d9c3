"""The layout of the bytes that Millrace writes to disk and network, declared with the library construct.

`frame` declares the frame, the unit of the protocol, `log` the files of the write-ahead log, `newest` the file that
names the newest of them, `chunk` the files of tier 2, `checkpoint_copy` a part of a copy of the checkpoint. Messages
are declared in `millrace.wire.messages`, event blocks in `millrace.model.block_layout`. The fast codecs are derived
from these declarations.
"""
