"""The sink: DataFrames as events, each batch of a query in one transaction.

Each task writes its rows into a branch of the batch's transaction, and returns a token for the branch. The driver
commits exactly the tokens that Spark hands it. So a batch is in the streams once and whole, or not at all. What
attempts have written that failed, were repeated, or came too late is never read.
"""
