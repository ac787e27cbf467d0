"""Neural methods, and torch modules of your own as federated recommenders; needs torch."""

from fedrecsk._utils.extras import require

require("torch", "fedrecsk.neural")

from fedrecsk.neural.federated_module import FederatedModule, Net  # noqa: E402
from fedrecsk.neural.fedncf import FedNCF  # noqa: E402
from fedrecsk.neural.fedrap import FedRAP  # noqa: E402
from fedrecsk.neural.gpfedrec import GPFedRec  # noqa: E402
from fedrecsk.neural.metamf import MetaMF  # noqa: E402
from fedrecsk.neural.ncf import NCF  # noqa: E402
from fedrecsk.neural.pfedrec import PFedRec  # noqa: E402

__all__ = ["NCF", "FedNCF", "FedRAP", "FederatedModule", "GPFedRec", "MetaMF", "Net", "PFedRec"]
