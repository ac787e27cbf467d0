"""Say at the end what programs have met, as far as they ran in this process (``-n 0``)."""

import sys


def pytest_terminal_summary(terminalreporter):
    machine = sys.modules.get("tests.life.machine")
    if machine is None or not machine.MET["pairs"]:
        return
    met, n_steps = machine.MET, sum(machine.MET["steps"].values())
    outcomes = {}
    for (_, outcome), number in met["steps"].items():
        outcomes[outcome] = outcomes.get(outcome, 0) + number
    terminalreporter.write_line(
        f"life: {len(met['pairs'])} pairs of settings, {n_steps} steps: "
        + ", ".join(f"{number} {outcome}" for outcome, number in sorted(outcomes.items()))
    )
    for defect, number in sorted(met["known"].items()):
        terminalreporter.write_line(f"life: known defect {defect}: met {number} times")
