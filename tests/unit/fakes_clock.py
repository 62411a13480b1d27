"""Seconds that pass when a test says so."""


class Clock:
    """Stands for the module ``time``, and for a function that tells seconds.

    :ivar now: monotonic seconds.
    :ivar epoch: what is to be added for seconds since the epoch.
    """

    def __init__(self, now=5000.0, epoch=1e9):
        self.now = now
        self.epoch = epoch

    def __call__(self):
        return self.now

    def monotonic(self):
        return self.now

    def time(self):
        return self.epoch + self.now

    def sleep(self, seconds):
        self.now += seconds

    def retry_by(self, monkeypatch):
        """Have tenacity's retries wait by this clock."""
        for module in 'tenacity', 'tenacity.nap':
            monkeypatch.setattr(f'{module}.time', self)
