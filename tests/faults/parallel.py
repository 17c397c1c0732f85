# SPDX-License-Identifier: Apache-2.0
"""Several processes."""

from tests.faults.fault import Fault

FAULTS = [
    Fault(
        "sums_divided_by_the_processes",
        "training/gradients.py",
        "own / total.clamp(min=SMALLEST)",
        "torch.ones_like(own) / self.processes.size",
        "parallel",
    ),
    Fault(
        "all_processes_draw_the_same", "training/together.py", 'f"rays of {self.processes.rank}"', '"rays"', "parallel"
    ),
    Fault(
        "grids_of_processes_drift_apart",
        "training/together.py",
        'seed_step(self.seed, step, "update", self.device)',
        'seed_step(self.seed, step, f"{self.processes.rank}", self.device)',
        "parallel",
    ),
    Fault("models_are_not_compared", "training/together.py", "if differ:", "if False:", "parallel"),
    Fault(
        "one_process_stops_by_itself",
        "training/together.py",
        "self.stop = any_stop > 0",
        "self.stop = stop",
        "parallel",
    ),
    Fault(
        "place_in_the_schedule_forgotten",
        "training/trainer.py",
        'shared.get("scheduled", self.step)',
        "self.step",
        "parallel",
    ),
    Fault(
        "parameters_without_gradient_keep_the_last",
        "training/gradients.py",
        "p.grad = torch.zeros_like(p)",
        "p.grad = torch.ones_like(p)",
        "parallel",
    ),
    Fault(
        "halves_of_a_loss_that_is_not_scaled",
        "training/step.py",
        " or _adds_halves(processes, parallel)",
        "",
        "parallel",
    ),
    Fault(
        "sums_of_halves_stay_behind", "training/gradients.py", "torch._foreach_copy_(large, sums)", "pass", "parallel"
    ),
    Fault("views_are_not_shared_out", "parallel.py", "range(self.rank, n, self.size)", "range(n)", "parallel"),
    Fault("every_process_prints", "commands/__init__.py", 'sys.stdout = open(os.devnull, "w")', "pass", "parallel"),
]
