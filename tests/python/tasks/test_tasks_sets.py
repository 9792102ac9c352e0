"""Task sets, sources and graders."""

from __future__ import annotations

import subprocess
import sys

import pytest

import lightning_lab as ll
from lightning_lab.records import AgentResult, Task
from lightning_lab.tasks import TaskError, TaskSet


def numbered(count):
    return ll.tasks.from_rows({"prompt": f"task {number}", "answer": number} for number in range(count))


def test_it_is_a_sequence_whose_slices_are_sets():
    tasks = numbered(5)
    assert (len(tasks), tasks[1].prompt, tasks[-1].answer) == (5, "task 1", 4)
    assert isinstance(tasks[1:3], TaskSet) and [task.answer for task in tasks[1:3]] == [1, 2]
    assert repr(tasks) == "TaskSet(5 tasks of rows)"
    assert tasks[0] in tasks and next(reversed(tasks)).answer == 4


def test_split_is_exact_disjoint_and_independent_of_order():
    tasks = numbered(600)
    train, held = tasks.split(0.9)
    assert (len(train), len(held)) == (540, 60)
    assert not {task.prompt for task in train} & {task.prompt for task in held}
    assert sorted(task.answer for task in [*train, *held]) == list(range(600))
    assert [task.answer for task in held] == sorted(task.answer for task in held)
    again = TaskSet(reversed(tasks)).split(0.9)[1]
    assert {task.id for task in again} == {task.id for task in held}


def test_split_is_the_same_in_another_process():
    code = (
        "import lightning_lab as ll; rows=[{'prompt': f'task {n}', 'answer': n} for n in range(40)];"
        "print([task.id for task in ll.tasks.from_rows(rows).split(.5)[0]])"
    )
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert other.strip() == str([task.id for task in numbered(40).split(0.5)[0]])


def test_equal_prompts_stay_on_one_side():
    rows = [{"prompt": prompt, "answer": answer} for answer in range(3) for prompt in ("a b", "a  b\n", "c", "d")]
    train, held = ll.tasks.from_rows(rows).split(0.67)
    sides = [{" ".join(task.prompt.split()) for task in side} for side in (train, held)]
    assert len(train) + len(held) == 12 and not sides[0] & sides[1]


@pytest.mark.parametrize("fraction", [0.0, 1.0, 0.001, -1.0, 2.0])
def test_a_split_with_an_empty_side_is_refused(fraction):
    with pytest.raises(TaskError, match="one side empty"):
        numbered(10).split(fraction)


def test_shuffled_depends_on_the_seed_alone():
    tasks = numbered(50)
    assert tasks.shuffled(1) == tasks.shuffled(1) != tasks.shuffled(2)
    assert sorted(task.answer for task in tasks.shuffled(1)) == list(range(50))
    assert [task.answer for task in tasks] == list(range(50))


def test_rows_become_tasks_with_stable_ids():
    rows = [{"question": "q", "solution": 1, "level": 2}]
    (task,) = ll.tasks.from_rows(rows, prompt="question", answer="solution")
    assert (task.prompt, task.answer, task.fields) == ("q", 1, {"level": 2})
    assert task.id == ll.tasks.from_rows(rows, prompt="question", answer="solution")[0].id
    assert task.id != ll.tasks.from_rows([{**rows[0], "level": 3}], prompt="question", answer="solution")[0].id
    assert ll.tasks.from_rows([{"prompt": "no answer"}])[0].answer is None


def test_bad_rows_are_named():
    with pytest.raises(TaskError, match=r"Row 1 has no text in column 'prompt'; it has question"):
        ll.tasks.from_rows([{"prompt": "p"}, {"question": "q"}])
    with pytest.raises(TaskError, match=r"Row 0, column 'image': object is no JSON value"):
        ll.tasks.from_rows([{"prompt": "p", "image": object()}])


def test_reasoning_gym_gives_distinct_tasks_by_seed():
    pytest.importorskip("reasoning_gym")
    tasks = ll.tasks.reasoning_gym("chain_sum", 50, seed=3)
    assert len(tasks) == len({task.prompt for task in tasks}) == 50
    assert tasks == ll.tasks.reasoning_gym("chain_sum", 50, seed=3)
    assert tasks != ll.tasks.reasoning_gym("chain_sum", 50, seed=4)
    assert tasks[0].source == "reasoning_gym/chain_sum" and tasks[0].answer.lstrip("-").isdigit()


def test_reasoning_gym_replaces_duplicates_and_warns_when_it_cannot():
    pytest.importorskip("reasoning_gym")
    small = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
    assert len(ll.tasks.reasoning_gym("chain_sum", 60, **small)) == 60
    with pytest.warns(UserWarning, match="fewer than the 5000 asked for"):
        assert len(ll.tasks.reasoning_gym("chain_sum", 5000, **small)) < 500


def test_reasoning_gym_refuses_what_it_does_not_know():
    pytest.importorskip("reasoning_gym")
    with pytest.raises(TaskError, match="no_such_dataset"):
        ll.tasks.reasoning_gym("no_such_dataset", 5)
    with pytest.raises(TaskError, match="cannot make 'chain_sum'"):
        ll.tasks.reasoning_gym("chain_sum", 5, min_terms=-4)


def test_graders_are_versioned_functions():
    @ll.grader
    def exact(task, result):
        return result.output == task.answer

    @ll.grader(timeout_s=5, name="slow")
    def other(task, result):
        return 0.5

    result = AgentResult(output="x", exit_code=0, workdir="/nowhere")
    assert exact(Task(id="t", prompt="p", answer="x"), result) is True
    assert (exact.name, exact.timeout_s, other.name, other.timeout_s) == ("exact", 30.0, "slow", 5.0)
    assert "return result.output == task.answer" in exact.source and exact.version != other.version
    with pytest.raises(TaskError, match="above 0"):
        ll.grader(timeout_s=0)(lambda task, result: 1)
    with pytest.raises(TaskError, match="two arguments"):
        ll.grader(1.0)
