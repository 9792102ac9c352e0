"""A kernel that trains until it is killed: ``python notebook_chaos.py FOLDER``. Goes on where the last one stopped."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import urllib.request
from pathlib import Path

from notebook_standin import StandInPolicy, says_yes, tasks

import lightning_lab as ll
from lightning_lab.notebook import Lab
from lightning_lab.records import Task

FOLDER = Path(sys.argv[1])
RUN_FILE, ACKNOWLEDGED = FOLDER / "run", FOLDER / "acknowledged"
STEPS, N, GROUPS = 8, 3, 2


@ll.harness(env={"ACKNOWLEDGED": str(ACKNOWLEDGED)})
def asker(task: Task) -> str:
    """Two calls; what was answered is noted before anything else happens."""
    for _ in range(2):
        body = {"model": "any", "messages": [{"role": "user", "content": task.prompt}]}
        request = urllib.request.Request(
            os.environ["OPENAI_BASE_URL"] + "/chat/completions",
            data=json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request) as response:
            answer = json.load(response)
        with Path(os.environ["ACKNOWLEDGED"]).open("a") as file:
            file.write(answer["id"] + "\n")
    return str(answer["choices"][0]["message"]["content"])


async def main() -> None:
    earlier = RUN_FILE.read_text() if RUN_FILE.exists() else None
    lab = Lab(StandInPolicy(delay_s=0.03), runs=FOLDER / "runs", concurrency=4, resume=earlier)
    trainer = ll.Trainer(lab, asker, tasks(40), says_yes, n=N, groups=GROUPS, schedule="collocated", checkpoint_every=1)
    run = trainer.resume(earlier) if earlier else trainer.fit(steps=STEPS)
    partial = RUN_FILE.with_suffix(".partial")
    partial.write_text(run.id)
    partial.rename(RUN_FILE)
    print("training", flush=True)
    await run
    lab.close()
    print("finished", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
