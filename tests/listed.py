"""All that users import by name: from fedrecsk and, where torch is installed, fedrecsk.neural."""

from importlib.util import find_spec

import fedrecsk

THINGS = {name: getattr(fedrecsk, name) for name in fedrecsk.__all__}
if find_spec("torch"):
    from fedrecsk import neural

    THINGS |= {name: getattr(neural, name) for name in neural.__all__}
