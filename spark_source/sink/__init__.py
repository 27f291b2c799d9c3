"""The sink: DataFrames as events, each batch of a query in one transaction.

A task writes what it has into a branch of its own, of the transaction of its batch, and returns the token of that; the
driver commits exactly the tokens that Spark hands it. So a batch is in the streams as a whole and once, or not at all,
and whatever failed, was repeated or came too late leaves nothing.
"""
