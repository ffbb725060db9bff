"""Says before the first epoch what a plan asks of servers."""

import logging
from typing import Any

from penstock.base._errors import PenstockError
from penstock.lower._analysis import Analysis
from penstock.lower._batches import ANNOUNCED_BATCHES
from penstock.plan._index import Shuffle
from penstock.sources._advice import cure, requests_of

_log = logging.getLogger("penstock")


def network_advice(analysis: Analysis) -> list[str]:
    """Logs the requests of an epoch for each source behind URLs. Returns advice, which is logged as a warning."""
    windows = [each.window for each in analysis.steps if isinstance(each, Shuffle)]
    is_scattered = None in windows
    ahead = max([analysis.batch_size * ANNOUNCED_BATCHES, *(window for window in windows if window)])
    found = []
    for node in analysis.user_steps if analysis.plan.access == "random" else ():
        source: Any = node.opens
        try:
            asked = requests_of(source, ahead, is_scattered=is_scattered)
        except PenstockError:  # the first read reports it
            continue
        if asked is None:
            continue
        _log.info("An epoch of %s makes %s.", node.label, asked)
        if is_scattered and (advice := cure(source, asked)):
            found.append(f"{node.label}: {advice}")
            _log.warning("%s", found[-1])
    return found
