"""The metrics of transactions."""

from typing import Final

from millrace.server.host.metric_help import Figures, MetricHelp, figures_of

FIGURES: Final[Figures] = figures_of(
    "transactions",
    open=MetricHelp(
        "open", "Open transactions, prepared ones included. Compare with MILLRACE_TRANSACTIONS_OPEN_COUNT_MAX."
    ),
    prepared=MetricHelp(
        "prepared",
        "Prepared transactions: they never expire, and wait for a commit or an abort.",
    ),
    open_parts=MetricHelp(
        "open_parts",
        "Parts of open transactions, all in memory. Compare with MILLRACE_TRANSACTIONS_OPEN_PARTS_COUNT_MAX.",
    ),
    oldest_age_s=MetricHelp(
        "oldest_age_seconds",
        "Age of the oldest open transaction. If it is hours, a program has prepared it and never ended it.",
    ),
    outcomes=MetricHelp("outcomes", "Ended transactions whose outcome the server still remembers."),
    producers=MetricHelp(
        "producers",
        "Producers that the server knows. At MILLRACE_TRANSACTIONS_PRODUCERS_COUNT_MAX, new ones are refused.",
    ),
    committed_total=MetricHelp(
        "committed_total",
        "Committed transactions. If it stays constant while some are open, no program finishes them.",
    ),
    aborted_total=MetricHelp(
        "aborted_total", "Transactions that their clients aborted. If it keeps rising, find out why."
    ),
    expired_total=MetricHelp(
        "expired_total",
        "Transactions aborted because their lease expired. If it keeps rising, clients crash during transactions.",
    ),
)
