"""Storage nodes that are killed while something is half done, at a step that bootcache/steps.py
names."""

import contextlib
from collections.abc import Callable

from bench.faults.images import Image
from bench.faults.nodeplan import STEPS, Meanwhile, homes_of
from bench.faults.nodestage import NodesStage
from bench.faults.stage import PATIENCE, Trouble
from bootcache.rpc.messages import NodeWish

# For an answer that never comes if the node is killed before it.
_ANSWER_SECONDS = 10.0
_TABLES = 'images', 'files', 'working_sets'


class AtStep:
    """A node that is killed at a step, and what is done so that it comes to that.

    :param step: its name.
    :param image: a content, of which an image is registered or deleted.
    :ivar node: that is killed: the one that works on most images, or takes those over.
    :ivar image_id: the image's; empty if none is.
    :ivar leaving: nodes whose images get other homes.
    """

    def __init__(self, stage: NodesStage, step: str, image: Image):
        self._stage, self._step, self._image = stage, step, image
        self._meanwhile = STEPS[step]
        homes = list(homes_of(stage.rows()).values())
        first, second, self._third = sorted(stage.nodes, key=homes.count, reverse=True)
        takes_over = self._meanwhile is Meanwhile.TAKES_OVER
        self.node, self._other = (second, first) if takes_over else (first, second)
        self.image_id = ''
        self.leaving = {self.node, self._other} if takes_over else {self.node}

    @property
    def gives_up(self) -> set[str]:
        """Nodes that remove what they have of images that have moved."""
        return set() if self._meanwhile in (Meanwhile.REGISTERS, Meanwhile.DELETES) else \
            {self._other if self._meanwhile is Meanwhile.TAKES_OVER else self.node}

    def prepare(self) -> None:
        """Have the node's service begin anew, and wait at the step.

        :raises Trouble: if it does not come up.
        """
        stage = self._stage
        if self._meanwhile in (Meanwhile.REGISTERS, Meanwhile.DELETES):
            self.image_id = self._image.register(stage.root / 'glance', stage.row.life)
        if self._meanwhile is Meanwhile.DELETES:
            stage.call(self.node, 'look', self.image_id)
            stage.until(lambda: stage.call(self.node, 'state', self.image_id)[3],
                        'a cache image', PATIENCE)
        stage.arm(self.node, self._step)
        stage.until(self._works_again, 'that all nodes work again')

    def _works_again(self) -> bool:
        # It may come to the step as it begins.
        with contextlib.suppress(Trouble):
            return self._stage.has_struck or self._stage.all_see_all(_ANSWER_SECONDS)
        return False

    def strike(self) -> Callable[[], None]:
        """Have the node come to the step, and be killed there; return what starts it again.

        :raises Trouble: if it does not come to it.
        """
        stage = self._stage
        if self._meanwhile is Meanwhile.TAKES_OVER:
            stage.call(self._third, 'wish', self._other, NodeWish.DRAINED.value)
        elif self._meanwhile is Meanwhile.GIVES_UP:
            stage.call(self._other, 'wish', self.node, NodeWish.DRAINED.value)
        else:
            if self._meanwhile is Meanwhile.DELETES:
                self._leave_glance()
            # Unless it was killed as it began.
            with contextlib.suppress(Trouble):
                stage.call(self.node, 'look', self.image_id, seconds=_ANSWER_SECONDS)
        stage.until(lambda: stage.has_struck, f'the step {self._step}')
        if self.image_id:
            # What was not acknowledged comes again.
            stage.call(self._other, 'look', self.image_id)
        return self._undo

    def _undo(self) -> None:
        stage = self._stage
        stage.come_back(self.node)
        if self._meanwhile is Meanwhile.TAKES_OVER:
            stage.call(self._third, 'wish', self._other, None)
        elif self._meanwhile is Meanwhile.GIVES_UP:
            stage.call(self._other, 'wish', self.node, None)

    def _leave_glance(self) -> None:
        (self._stage.root / 'glance' / f'{self.image_id}.json').unlink(missing_ok=True)

    def is_done(self) -> bool:
        """Tell whether nothing of what was registered is to be done any more."""
        return not self.image_id or self._meanwhile is Meanwhile.DELETES \
            or any(row['image_id'] == self.image_id and row['cache_file'] and not row['goal']
                   for row in self._stage.rows()['images'])

    def end(self) -> None:
        """Have the image be deleted.

        :raises Trouble: if something of it is left.
        """
        stage = self._stage
        if not self.image_id:
            return
        self._leave_glance()
        stage.call(self._other, 'look', self.image_id)

        def is_gone() -> bool:
            rows = stage.rows()
            return not any(row['image_id'] == self.image_id for table in _TABLES
                           for row in rows[table]) and not any(
                self.image_id in one for node in stage.nodes for one in stage.call(node, 'left'))

        stage.until(is_gone, f'the end of the image {self.image_id}, whose home was'
                    f' {homes_of(stage.rows()).get(self.image_id)}')
