"""Lines of a process's log say of an error once what it says."""

import logging

from oslo_config import cfg
from oslo_log import formatters, log


class _Formatter(formatters.ContextFormatter):  # type: ignore[misc]
    """Leaves out what oslo.log adds to a line that is written where an error is caught, its class
    and its text, if the line has that text already."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as a line."""
        line = str(super().format(record))
        summary = str(getattr(record, 'error_summary', ''))
        text = summary.partition(': ')[2]
        if not record.exc_info and text and text in record.getMessage():
            return line.removesuffix(f': {summary}')
        return line


def setup(conf: cfg.ConfigOpts, product: str) -> None:
    """Set this process's logging up, as oslo.log does it.

    :param product: the program's name.
    """
    log.setup(conf, product)
    for handler in logging.getLogger().handlers:
        if type(handler.formatter) is formatters.ContextFormatter:
            handler.setFormatter(_Formatter(project=product, datefmt=conf.log_date_format,
                                            config=conf))
