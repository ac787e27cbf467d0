"""The receipt of `forget`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Receipt:
    """What `forget` removed and from where, and what may remain. It contains counts, and no ids.

    Attributes
    ----------
    method : str
        Class of the estimator.
    n_users, n_rows : int
        Number of forgotten users, and of their rows, which their clients deleted with the users'
        private state, such as vectors and features.
    n_items : int
        Number of items that only these users had, and that the model no longer knows.
    n_clients : int
        Number of clients that stored the rows.
    n_withdrawn : int
        Number of uploads that these clients withdrew from the server's sum.
    is_exact : bool
        Whether the model equals a new fit without the users, up to rounding. If not, the server's
        parameters were learned from these users too, and later rounds only weaken what they
        learned.
    n_rounds, bytes_up, bytes_down : int
        Cost of forgetting.
    """

    method: str
    n_users: int
    n_rows: int
    n_items: int
    n_clients: int
    n_withdrawn: int
    is_exact: bool
    n_rounds: int
    bytes_up: int
    bytes_down: int

    def __str__(self) -> str:
        if self.is_exact:
            server = f"{_counted(self.n_withdrawn, 'upload')} withdrawn from the sum"
            result = "equal to a new fit without the users, up to rounding"
            remains = "no rows, vectors or ids in this object; the counts above"
        else:
            server = f"nothing withdrawn; {_counted(self.n_rounds, 'round')} without the users"
            result = "not equal to a new fit: see fedrecsk.audit.measure_forgetting"
            remains = "an influence of the users on item vectors and other shared parameters"
        mb = [f"{size / 1e6:.3g} MB" for size in (self.bytes_up, self.bytes_down)]
        lines = {
            "Forgotten": f"{_counted(self.n_users, 'user')} by {self.method}",
            "Clients": f"{_counted(self.n_rows, 'row')} deleted on "
            f"{_counted(self.n_clients, 'client')}, with the users' private state",
            "Server": server,
            "Catalogue": f"{_counted(self.n_items, 'item')} removed, which only these users had",
            "Model": result,
            "Remains": remains,
            "Elsewhere": "copies, files and downloads from before are as they were",
            "Cost": f"{_counted(self.n_rounds, 'round')}, {mb[0]} up, {mb[1]} down",
        }
        width = max(map(len, lines)) + 2
        return "\n".join(f"{name:<{width}}{text}" for name, text in lines.items())


def _counted(number, what):
    return f"{number:,} {what}{'s' * (number != 1)}"
