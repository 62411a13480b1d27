"""Stand-ins for the parts of a house, of which one object notes what reaches them."""


class Neighbour:
    """One part; it has what the real one has, and nothing else.

    :param stand_in: answers for it.
    :param real: the class that it stands for.
    """

    def __init__(self, stand_in, real):
        self._stand_in, self._real = stand_in, real

    def __getattr__(self, name):
        # What the real one is given when it is made counts as well.
        if not hasattr(self._real, name) and name not in self._real.__init__.__code__.co_names:
            raise AttributeError(f'{self._real.__name__} has no {name}')
        return getattr(self._stand_in, name)
