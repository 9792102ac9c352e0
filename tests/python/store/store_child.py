"""The other process of the tests that kill one: ``python store_child.py ROLE STORE``."""

from __future__ import annotations

import logging
import resource
import sys
import threading
from concurrent.futures import wait

from store_records import rollout, turns

from lightning_lab.store import Store, StoreError


def hold(path: str) -> None:
    """Keep the store open for writing until killed."""
    store = Store(path)
    store.put_event("log", "run").result()
    print("holding", flush=True)
    threading.Event().wait()


def calls(path: str, durability: str) -> None:
    """Put calls of four rollouts from four threads; say each id once it is acknowledged."""
    store = Store(path, durability=durability)  # type: ignore[arg-type]

    def work(name: int) -> None:
        store.put_rollout(rollout(f"r-{name}", "running"))
        for call in turns(150, f"r-{name}", new=3, seed=name):
            store.put_call(call).result()
            sys.stdout.write(f"{call.id}\n")
            sys.stdout.flush()

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def full(path: str) -> None:
    """Put calls until the disk refuses, and report what the futures said."""
    logging.disable()
    store = Store(path)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, resource.RLIM_INFINITY))
    futures = [store.put_call(call) for call in turns(5, new=100)]
    wait(futures)
    futures += [store.put_call(call) for call in turns(60, "r-2", new=200)]
    done, hung = wait(futures, timeout=20)
    failures = [error for future in done if (error := future.exception())]
    try:
        store.flush()
        flushed = "fine"
    except StoreError as error:
        flushed = type(error).__name__
    print(f"named={type(failures[0]).__name__} later={type(store.put_event('log', 'run').exception(1)).__name__}")
    print(f"flush={flushed} hung={len(hung)} acknowledged={len(done) - len(failures)}")


if __name__ == "__main__":
    role, store_path = sys.argv[1:]
    if role.startswith("calls-"):
        calls(store_path, role.removeprefix("calls-"))
    else:
        {"hold": hold, "full": full}[role](store_path)
