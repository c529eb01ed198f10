"""For each code of the catalogue: evidence that shows it, evidence that nearly does, and the part to take away."""

from tests.diagnose.scenes.carrying import CARRYING
from tests.diagnose.scenes.compute import COMPUTE
from tests.diagnose.scenes.gateway import GATEWAY
from tests.diagnose.scenes.mix import MIX
from tests.diagnose.scenes.paths import PATHS
from tests.diagnose.scenes.scene import Scene
from tests.diagnose.scenes.scheduler import SCHEDULER
from tests.diagnose.scenes.speech import SPEECH
from tests.diagnose.scenes.validity import VALIDITY

__all__ = ["SCENES"]

SCENES: tuple[Scene, ...] = (*VALIDITY, *CARRYING, *GATEWAY, *PATHS, *SCHEDULER, *COMPUTE, *MIX, *SPEECH)
