"""``bootcache warm``: compute hosts that hold a cache image before a server asks for it."""

import argparse
import dataclasses
from typing import Any

from bootcache.quoting import one_line
from bootcache.rpc.messages import GetWarming, WarmImage, WarmOutcome
from glance_bootcache.cli.arguments import instead
from glance_bootcache.cli.client import Refused, ServiceClient
from glance_bootcache.cli.listing import WaitingLister, names
from glance_bootcache.progressline import ProgressLine

_COLUMNS = ('image_id', 'aggregate', 'host', 'outcome', 'attempts', 'reason')
_WARM = (WarmOutcome.CACHED, WarmOutcome.EXISTING)


@dataclasses.dataclass
class _Watch:
    """What is known of the warming of some images on some aggregates.

    :ivar jobs: by image and aggregate, what the storage service tells of each.
    """

    client: ServiceClient
    aggregates: list[str]
    progress: ProgressLine
    jobs: dict[tuple[str, str], dict[str, Any]] = dataclasses.field(default_factory=dict)

    def take(self, image: str, reports: list[dict[str, Any]]) -> list[str]:
        """Note what is new of an image, and tell people.

        :returns: the aggregates that the storage service knows nothing of.
        """
        found = {report['aggregate']: report for report in reports}
        for aggregate in self.aggregates:
            before = self.jobs.setdefault((image, aggregate),
                                          {'done': False, 'reason': '', 'hosts': {}})
            if aggregate in found:
                self.jobs[image, aggregate] = found[aggregate]
                self._tell(f'image {image}, aggregate {aggregate}', before, found[aggregate])
        return [name for name in self.aggregates if name not in found]

    def _tell(self, what: str, before: dict[str, Any], job: dict[str, Any]) -> None:
        if job['reason'] not in ('', before['reason']):
            self.progress.line(f'{what}: {one_line(job["reason"])}', terminal=False)
        for host, known in job['hosts'].items():
            outcome, attempts = known['outcome'], known['attempts']
            last = before['hosts'].get(host, {})
            if outcome == WarmOutcome.WAITING \
                    or (outcome, attempts) == (last.get('outcome'), last.get('attempts')):
                continue
            text = f'{what}, host {one_line(host)}: {outcome}'
            if outcome not in _WARM:
                text += f', attempt {attempts}: {one_line(known["reason"])}'
            self.progress.line(text, terminal=False)

    def step(self) -> bool:
        """Look once more at what is under way, and show how many hosts are done.

        :returns: True if all is done.
        """
        if not self.jobs:
            return True
        for image in dict.fromkeys(
                image for (image, _aggregate), job in self.jobs.items() if not job['done']):
            if forgotten := self.take(image, self.client.send(GetWarming(image))):
                self._ask_again(image, forgotten)
        jobs = self.jobs.values()
        hosts = [(known['outcome'], job['done']) for job in jobs for known in job['hosts'].values()]
        failed = sum(outcome not in (*_WARM, WarmOutcome.WAITING) for outcome, _done in hosts)
        details = [f'{failed} failed'] if failed else []
        details += [one_line(job['reason']) for job in jobs
                    if job['reason'] and not job['done']][:1]
        if hosts:
            self.progress.bar('warming', sum(outcome in _WARM or done for outcome, done in hosts),
                              len(hosts), 'hosts', '  '.join(details))
        else:
            self.progress.show('waiting for Nova', '  '.join(details))
        return all(job['done'] for job in jobs)

    def _ask_again(self, image: str, aggregates: list[str]) -> None:
        """A storage service that was restarted has forgotten what it was asked for."""
        self.progress.line(f'image {image}: the storage service was restarted; it is asked again')
        try:
            self.take(image, self.client.send(WarmImage(image, aggregates)))
        except Refused as error:
            for aggregate in aggregates:
                job = self.jobs[image, aggregate]
                job.update(done=True, reason=str(error))
                for known in job['hosts'].values():
                    if known['outcome'] not in _WARM:
                        known.update(outcome=WarmOutcome.ERROR, reason=str(error))

    def rows(self) -> list[tuple[Any, ...]]:
        """Return the table; an aggregate whose hosts are not known has one row."""
        rows: list[tuple[Any, ...]] = []
        for (image, aggregate), job in self.jobs.items():
            rows += [(image, aggregate, one_line(host), known['outcome'], known['attempts'],
                      one_line(known['reason'])) for host, known in job['hosts'].items()]
            if not job['hosts']:
                outcome = WarmOutcome.ERROR if job['done'] else WarmOutcome.WAITING
                rows.append((image, aggregate, None, outcome, 0, one_line(job['reason'])))
        return rows

    def complaints(self, waited: float | None) -> list[str]:
        """Return what did not come, for each image and aggregate.

        :param waited: seconds until time ran out; None if it did not.
        """
        found = []
        for (image, aggregate), job in self.jobs.items():
            cold = names([_with_reason(host, known) for host, known in job['hosts'].items()
                          if known['outcome'] not in _WARM])
            if job['hosts'] and not cold:
                continue
            reason = one_line(job['reason'])
            if not job['done'] and waited is not None:
                what = f'not warm after {waited:g} s: {cold}' if cold else \
                    f'no host is asked yet after {waited:g} s' + (f' ({reason})' if reason else '')
                what += '; the storage service goes on trying, and the same command watches it'
            else:
                what = f'not warm after all attempts: {cold}' if cold else reason
            found.append(f'image {image}, aggregate {aggregate}: {what}')
        return found


def _with_reason(host: str, known: dict[str, Any]) -> str:
    if known['outcome'] == WarmOutcome.WAITING:
        return one_line(host)
    return f'{one_line(host)} ({one_line(known["reason"] or known["outcome"])})'


class Warm(WaitingLister):
    """Have the hosts of aggregates fetch images' cache images before a server asks for them.

    Nova's API for precaching images does it. Waits until each host has told what came of it; hosts
    that fail are asked again, as the storage service's configuration says. When time runs out the
    storage service goes on, and the hosts that are warm stay warm.
    """

    default_timeout = 3600

    def get_parser(self, prog_name: str) -> Any:
        """Add our arguments."""
        parser = super().get_parser(prog_name)
        parser.add_argument('--aggregate', dest='aggregates', action='append', required=True,
                            metavar='NAME',
                            help='host aggregate whose hosts are to be warm; can be repeated')
        parser.add_argument('--host', help=argparse.SUPPRESS, type=instead(
            'Nova has aggregates fetch images, not hosts: make one of the host ("openstack'
            ' aggregate create", "openstack aggregate add host") and name it with --aggregate'))
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Ask for it, and watch what comes of it."""
        watch = _Watch(self.app.storage_client(), list(dict.fromkeys(parsed_args.aggregates)),
                       self.app.progress())
        self.ask_and_wait(parsed_args, watch, lambda image: WarmImage(image, watch.aggregates))
        if not parsed_args.no_wait and any(
                known['outcome'] == WarmOutcome.CACHED for job in watch.jobs.values()
                for known in job['hosts'].values()):
            watch.progress.line('nova-scheduler knows of hosts that are newly warm with their next'
                                ' update of resources, within a minute by default')
        return _COLUMNS, watch.rows()
