"""Where tasks come from, and what gives a rollout its reward."""

from lightning_lab.tasks.grader import Grader, grader, posted
from lightning_lab.tasks.sources import from_rows, reasoning_gym
from lightning_lab.tasks.task_set import TaskError, TaskSet

__all__ = ["Grader", "TaskError", "TaskSet", "from_rows", "grader", "posted", "reasoning_gym"]
