"""Whatever happens to images, in which order and however often, all is well when it is quiet again.

fakes_convergence.py has what happens, and what has to be; test_convergence_nodes.py has several
storage nodes.
"""

import pytest
from fakes_convergence import Cloud, settings


class Images(Cloud):
    """Images of a cloud with one storage node."""


Images.TestCase.settings = settings(500)


@pytest.mark.usefixtures('no_daemons')
class TestImages(Images.TestCase):
    """Runs the machine."""
